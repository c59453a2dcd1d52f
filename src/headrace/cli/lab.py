"""`headrace lab`: the experiments of the source documents, run, checked and reported."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, cli, everywhere
from headrace.cli.output import print_json, print_table
from headrace.cli.values import pairs

# Not one of the errors' codes: nothing went wrong, and nothing was proved.
_INCONCLUSIVE = 5

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from headrace.labs import Entry, Lab, LabResult


@cli.group()
def lab() -> None:
    """Learn Kafka by experiments that run here and check themselves.

    A lab starts the cluster that it needs (or uses the running one if it fits), does what the document describes,
    compares what it sees with what is expected, measures what it promises, and writes a report.
    """


@lab.command("list")
@click.argument("names", nargs=-1)
@everywhere
@click.pass_obj
def list_(app: App, names: tuple[str, ...]) -> None:
    """List the labs; with NAMES, say what each one shows and which parameters it has."""
    from headrace.labs import every_lab

    labs = every_lab(names or ("all",))
    if app.json:
        for one in labs:
            print_json(_described(one))
    elif names:
        for one in labs:
            _explain(one)
    else:
        print_table(["lab", "rows", "title"], ((one.name, " ".join(one.rows), one.title) for one in labs))


def _described(one: Lab) -> dict[str, object]:
    return {
        "name": one.name,
        "document": one.document,
        "rows": list(one.rows),
        "title": one.title,
        "parameters": {p.name: p.default for p in one.parameters},
        "services": list(one.needs.services),
        "brokers": one.needs.brokers,
    }


def _explain(one: Lab) -> None:
    click.echo(click.style(f"{one.name}: {one.title}", bold=True))
    click.echo(f"  {' '.join(one.rows)}, {one.needs.brokers} brokers" + "".join(f", {s}" for s in one.needs.services))
    click.echo()
    for line in one.about.splitlines():
        click.echo(f"  {line}".rstrip())
    click.echo()
    for p in one.parameters:
        fast = f", fast: {p.fast}" if p.fast is not None else ""
        click.echo(f"  --param {p.name}={p.default}  {p.says}: {p.range}{fast}")
    click.echo()


@lab.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--keep", is_flag=True, help="Keep topics, groups and the labs' own cluster at the end.")
@click.option("--seed", type=int, default=7, help="Seed of the random numbers.")
@click.option(
    "--param", "given", multiple=True, callback=pairs, metavar="NAME=VALUE", help="Value of a parameter, repeatable."
)
@click.option(
    "--profile",
    type=click.Choice(["full", "fast"]),
    default="full",
    help="The documents' own values, or smaller ones with the same checks.",
)
@click.option("--fresh", is_flag=True, help="Always start a cluster, even if a running one would do.")
@everywhere
@click.pass_obj
def run(app: App, /, names: tuple[str, ...], given: dict[str, str], **options: Any) -> None:
    """Run labs by name, or `all`.

    The exit code is 1 if a lab fails, and 5 if none fails but one is inconclusive: it missed a time limit while other
    programs used too much of this machine's CPU.

    \b
    headrace lab run replication
    headrace lab run keys groups --param records=5000
    headrace lab run all
    """
    from headrace.home import Home
    from headrace.labs import RunOptions, every_lab, run_labs
    from headrace.runtime import ended_like_ctrl_c

    labs = every_lab(names)
    home = Home.find(app.home)
    story = len(labs) == 1 and not app.json and not app.quiet
    ended = ended_like_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    with ended, _listening(app, labs, story=story) as listener:
        chosen = RunOptions(given=given, progress=app.progress if story else listener, **options)
        results = run_labs(home, labs, chosen, listener)
    if app.json:
        for result in results:
            print_json(_summary(result, home.labs))
    else:
        _show_results(results)
        app.say(f"report: {home.labs / 'report.html'}")
    verdicts = {result.verdict for result in results}
    if "red" in verdicts:
        raise click.exceptions.Exit(1)
    if "inconclusive" in verdicts:
        raise click.exceptions.Exit(_INCONCLUSIVE)


@lab.command("files")
@click.argument("name")
@everywhere
@click.pass_obj
def files_(app: App, name: str) -> None:
    """Write the files that the commands of the lab NAME need into this folder: schemas, a headrace.toml.

    Files that the commands create themselves are left out. An existing file is kept; an existing headrace.toml gets the
    missing tables. A file of the same name with other contents is an error, and nothing is written.

    \b
    headrace lab files avro
    """
    from headrace.labs import find_lab

    found = find_lab(name).files
    lacking = {file: _lacking(Path(file), make()) for file, make in found.items()}
    written = {file: text for file, text in lacking.items() if text}
    for file, text in written.items():
        with Path(file).open("a", encoding="utf-8") as out:
            out.write(text)
    if app.json:
        print_json({"written": list(written), "kept": [file for file in found if file not in written]})
        return
    for file in found:
        app.say(f"{file}: {'written' if file in written else 'already there, left as it is'}")
    if not found:
        app.say(f"the commands of {name} need no other files than those that they create")


def _lacking(file: Path, text: str) -> str:
    """What is to be written at the end of the file so that it says the same as the text; nothing if it does."""
    if not file.exists():
        return text
    there = file.read_text(encoding="utf-8")
    if there == text:
        return ""
    from headrace.errors import UsageError

    if file.suffix == ".toml":
        has, wanted = _tables(there), _tables(text)
        if wanted.items() <= has.items():
            return ""
        if not wanted.keys() & has.keys():
            return f"\n{text}"
    raise UsageError(f"{file} already exists with other contents", why="nothing was written",
                     hint="move it away, or use another folder with its own cluster")  # fmt: skip


def _tables(text: str) -> dict[str, str]:
    """The tables of a headrace.toml, by name: pipelines.iris, topics.versicolor."""
    import json
    import tomllib

    from headrace.errors import UsageError

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("the headrace.toml here cannot be read", why=str(error)) from None
    return {
        f"{kind}.{name}": json.dumps(table, default=str, sort_keys=True)
        for kind, tables in document.items()
        for name, table in (tables.items() if isinstance(tables, dict) else [("", tables)])
    }


# What follows the NAME is the tool's, whatever it looks like.
@lab.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@everywhere
@click.pass_obj
def tool(app: App, name: str, words: tuple[str, ...]) -> None:
    """Run one of Kafka's own command line tools, to compare with.

    It runs on headrace's Java, with this cluster's bootstrap servers unless WORDS name others. Its exit code is passed
    on. Tools: kafka-configs, kafka-console-consumer, kafka-console-producer, kafka-consumer-groups,
    kafka-dump-log, kafka-producer-perf-test, kafka-topics.

    \b
    headrace lab tool kafka-topics --describe --topic quickstart-events
    headrace lab tool kafka-dump-log --files .headrace/broker-1/data/quickstart-events-0/00000000000000000000.log
    """
    import subprocess

    from headrace.runtime import plain_environment

    argv = app.cluster().tool_command(name, *words)
    raise click.exceptions.Exit(subprocess.run(argv, check=False, env=plain_environment()).returncode)


@lab.command()
@click.argument("names", nargs=-1)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report here: .html or .md. [default: both, under the home]",
)
@everywhere
@click.pass_obj
def report(app: App, names: tuple[str, ...], output: Path | None) -> None:
    """Write the report of all labs that have run again, and show their results."""
    from headrace.errors import UsageError
    from headrace.home import Home
    from headrace.labs import NAMES, every_lab, kept_results, result_folder, to_html, to_markdown, write_reports

    home = Home.find(app.home)
    wanted = tuple(one.name for one in every_lab(names)) if names else NAMES
    results = list(kept_results(home, wanted))
    if not results:
        raise UsageError("no lab has run here yet", why=f"there are no results in {home.labs}",
                         hint="headrace lab run quickstart")  # fmt: skip
    if output and output.suffix == ".md":
        output.write_text(to_markdown(results, lambda one: result_folder(home, one.name)), encoding="utf-8")
    elif output:
        output.write_text(to_html(home, results), encoding="utf-8")
    else:
        output = write_reports(home, results)
    if app.json:
        for result in results:
            print_json(_summary(result, home.labs))
    else:
        _show_results(results)
        app.say(f"report: {output}")


def _summary(result: LabResult, folder: Path) -> dict[str, Any]:
    return {
        "name": result.name,
        "document": result.document,
        "rows": list(result.rows),
        "verdict": result.verdict,
        "reason": result.reason or None,
        "checks": len(result.checks),
        "failed": len(result.failed),
        "inconclusive": len(result.excused),
        "seconds": round(result.seconds, 1),
        "report": str(folder / result.name / "report.html"),
    }


def _show_results(results: list[LabResult]) -> None:
    from headrace.labs import duration, totals

    click.echo()
    rows = [
        (one.name, " ".join(one.rows), one.verdict, f"{one.held}/{len(one.checks)}",
         duration(one.seconds), one.reason)
        for one in results
    ]  # fmt: skip
    print_table(["lab", "rows", "verdict", "checks", "time", ""], rows)
    click.echo(totals(results))


@contextmanager
def _listening(app: App, labs: list[Lab], *, story: bool) -> Iterator[Any]:
    """What reports the run: the whole story of one lab, or a line for each of many."""
    if story:
        yield _Story()
        return
    listener = _Lines(len(labs), silent=app.quiet or app.json)
    with listener.shown():
        yield listener


class _Story:
    """Everything that a lab does and sees, as it happens."""

    def __init__(self) -> None:
        self._steps = 0

    def began(self, lab: Lab) -> None:
        click.echo(click.style(f"{lab.name}: {lab.title}", bold=True) + f"  ({' '.join(lab.rows)})")
        for line in lab.about.splitlines():
            click.echo(f"  {line}".rstrip())

    def entry(self, lab: Lab, entry: Entry) -> None:  # noqa: ARG002 - one lab only
        for line in self._lines(entry):
            click.echo(line)

    def _lines(self, entry: Entry) -> list[str]:
        facts = entry.facts
        match entry.kind:
            case "step":
                self._steps += 1
                heading = click.style(f"\n{self._steps}. {facts['title']}", bold=True)
                return [heading, *([f"   {facts['why']}"] if facts["why"] else [])]
            case "say":
                return [f"   {facts['text']}"]
            case "command":
                return ["   " + click.style(f"$ {facts['line']}", fg="cyan")]
            case "output":
                return [click.style(f"     {line}", dim=True) for line in facts["text"].splitlines()]
            case "check":
                return _check_lines(facts)
            case "measure":
                from headrace.labs import quantity

                note = f" ({facts['note']})" if facts["note"] else ""
                return [f"   · {facts['what']}: {quantity(facts['value'], facts['unit'])}{note}"]
            case "table":
                return [f"   {facts['title']}:", *_columns([facts["headings"], *facts["rows"]])]
            case "figure":
                return [f"   picture: {facts['caption']}"]

    def ended(self, lab: Lab, result: LabResult) -> None:  # noqa: ARG002 - one lab only
        if result.trouble:
            click.echo(click.style(f"\n✗ {result.trouble.problem}", fg="red"))
            for label, text in result.trouble.lines:
                click.echo(f"   {label}: {text}")
            if result.trouble.trace:
                click.echo(result.trouble.trace)
        for node, file in result.logs.items():
            click.echo(f"   log of {node}: {result.name}/{file}")


def _check_lines(facts: dict[str, object]) -> list[str]:
    from headrace.labs import check_sign

    sign = click.style(check_sign(facts), fg={"✓": "green", "?": "yellow"}.get(check_sign(facts), "red"))
    words = f"   {sign} {facts['what']}: expected {facts['expected']}, seen {facts['seen']}"
    if facts.get("excuse"):
        return [words, f"     {facts['excuse']}"]
    return [words, *([f"     look at: {facts['look']}"] if facts["look"] and not facts["holds"] else [])]


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "     " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


class _Lines:
    """A line for each lab that ends; on a terminal also what each running one is doing."""

    def __init__(self, total: int, *, silent: bool) -> None:
        self._total = total
        self._silent = silent
        self._lock = threading.Lock()
        self._running: dict[str, str] = {}
        self._said = ""
        self._done = 0
        self._began = time.monotonic()
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        if self._silent or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        with Live(
            get_renderable=self._picture, console=Console(stderr=True), transient=True, refresh_per_second=4
        ) as live:
            self._live = live
            yield

    def _picture(self) -> RenderableType:
        from rich.text import Text

        with self._lock:
            lines = [f"{self._done} of {self._total} done, {time.monotonic() - self._began:.0f} s  {self._said}"]
            lines += [f"  {name}: {doing}" for name, doing in self._running.items()]
        return Text("\n".join(lines), style="dim")

    def say(self, text: str) -> None:
        self._said = text

    def advance(self, label: str, done: int, total: int) -> None:
        """Nothing is drawn: the display above is enough."""

    def began(self, lab: Lab) -> None:
        with self._lock:
            self._running[lab.name] = "begins"

    def entry(self, lab: Lab, entry: Entry) -> None:
        if entry.kind == "step":
            with self._lock:
                self._running[lab.name] = entry.facts["title"]

    def ended(self, lab: Lab, result: LabResult) -> None:
        from headrace.labs import duration

        with self._lock:
            self._running.pop(lab.name, None)
            self._done += 1
        if self._silent:
            return
        colour = {"green": "green", "red": "red"}.get(result.verdict, "yellow")
        words = click.style(result.verdict.ljust(13), fg=colour) + f"{lab.name.ljust(14)}{duration(result.seconds)}"
        words += f"  {result.reason}" if result.reason else ""
        if self._live:
            self._live.console.print(words, highlight=False, markup=False)
        else:
            click.echo(words)
