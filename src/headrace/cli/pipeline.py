"""Commands for pipelines: what is declared, what runs, how far it is, and what became of every record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, Trunk, any_kafka, cli, registry_option
from headrace.cli.display import Display
from headrace.cli.output import counted, duration, print_json, print_table
from headrace.cli.values import span
from headrace.errors import Failed, UsageError
from headrace.home import FILE, Home

if TYPE_CHECKING:
    from headrace.pipeline.pipeline import Pipeline, RunReport
    from headrace.transport.schemas import Registry

_file = click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="File that declares it. [default: headrace.toml in this folder or a parent]",
)
_master = click.option("--master", metavar="URL", help="A Spark master, as in spark://host:7077. [default: local[*]]")
_name = click.argument("name")


@cli.group(cls=Trunk)
def pipeline() -> None:
    """Run pipelines on Spark: topics to tables and topics.

    A pipeline is declared in headrace.toml, and every record is accounted for.

    \b
    headrace pipeline list                   what is declared, what runs
    headrace pipeline explain breadcrumbs    the flow, and the schema at each step
    headrace pipeline run breadcrumbs --once read what is there now, then stop
    headrace pipeline ledger breadcrumbs     what became of every record
    """


def _place(app: App, file: Path | None) -> tuple[Path, Home]:
    """The file that is meant and the home where pipelines keep what they must remember."""
    home = Home.find(app.home, file.parent if file else None)
    path = file or home.config_file
    if path.is_dir():
        path = path / FILE
    return path, home


def find(app: App, file: Path | None, name: str) -> Pipeline:
    from headrace.pipeline.pipeline import Pipeline

    path, home = _place(app, file)
    return Pipeline.from_file(path, name, home)


def registry_of(app: App, found: Pipeline) -> Registry | None:
    """The registry, if the declaration needs one."""
    return app.registry() if found.declaration.needs_registry else None


@pipeline.command("list")
@_file
@any_kafka
@click.pass_obj
def list_(app: App, file: Path | None) -> None:
    """List the declared pipelines and their state."""
    from headrace.pipeline.pipeline import all_of

    path, home = _place(app, file)
    rows = []
    for found in all_of(path, home):
        d, state = found.declaration, found.folder.state
        running = found.folder.is_locked
        rows.append(
            {
                "name": d.name, "from": ", ".join(d.topics), "into": ", ".join(sink.name for sink in d.sinks),
                "trigger": d.trigger.kind if d.trigger.kind != "every" else f"{d.trigger.seconds:g} s",
                "state": state.get("state", "never run") if running or state.get("state") != "running" else "cut off",
            }
        )  # fmt: skip
    if app.json:
        print_json(rows)
        return
    print_table(("name", "from", "into", "trigger", "state"), [list(row.values()) for row in rows])
    if not rows:
        app.say(f"{path} declares no pipeline: add a [pipelines.NAME] table")


@pipeline.command()
@_name
@_file
@registry_option
@any_kafka
@click.pass_obj
def explain(app: App, name: str, file: Path | None) -> None:
    """Check NAME and draw its flow, with the schema at each step. Nothing runs."""
    from headrace.pipeline.session import stop_spark

    found = find(app, file, name)
    registry = registry_of(app, found)
    spark = found.start_session(progress=app.progress)
    try:
        steps = found.explain(spark, registry)
    finally:
        stop_spark()
    if app.json:
        print_json({"name": name, "steps": [{"step": s, "schema": json.loads(t.json())} for s, t in steps]})
        return
    click.echo("\n".join(_drawn(found, steps)))


def _drawn(found: Pipeline, steps: list[tuple[str, Any]]) -> list[str]:
    d = found.declaration
    dead = found.folder.dead_letters(d)
    schema = dict(steps)
    lines = [f"  {topic}" for topic in d.topics]
    lines += ["  │", f"  ▼ decode {d.decode.format if d.decode.step is None else 'by a function'}"]
    lines += [f"  │    {field.name:24} {field.dataType.simpleString()}" for field in schema["decode"].fields]
    if d.select or d.select_step:
        lines += ["  │", "  ▼ select"]
        for field in schema["select"].fields:
            text = d.select.get(field.name, "")
            lines.append(f"  │    {field.name:24} {field.dataType.simpleString():12} {text}")
    if d.where:
        lines += ["  │", f"  ▼ where {d.where}"]
    for rule in d.rules:
        way = {"dead": "dead letters", "drop": "dropped", "warn": "counted, written", "fail": "the run stops"}
        lines.append(f"  ├── not so: {rule.name:28} ▶ {way[rule.action]}")
    lines.append(f"  ├── cannot be decoded or computed{'':9} ▶ dead letters: {dead.kind} {dead.target}")
    for at, sink in enumerate(d.sinks):
        branch = "└" if at == len(d.sinks) - 1 else "├"
        how = f"  {sink.aggregate.mode} by {', '.join(sink.aggregate.by)}" if sink.aggregate else ""
        lines.append(f"  {branch}─▶ {sink.kind} {sink.name}{how}")
    return lines


@pipeline.command()
@_name
@click.option("--once", is_flag=True, help="Read what is there now, then stop, whatever the declared trigger.")
@_file
@_master
@registry_option
@any_kafka
@click.pass_obj
def run(app: App, name: str, once: bool, file: Path | None, master: str | None) -> None:
    """Run NAME in the foreground until Ctrl-C, or with --once until it has read what is there now.

    \b
    headrace pipeline run breadcrumbs --once
    headrace pipeline run breadcrumbs --bootstrap kafka.example:9092 --master spark://spark.example:7077
    """
    from headrace.pipeline.declaration import Trigger
    from headrace.pipeline.session import stop_spark

    found = find(app, file, name)
    connection, registry = app.connection(), registry_of(app, found)
    began = time.monotonic()
    spark = found.start_session(master, app.progress)
    app.say(f"Spark {spark.version} is ready after {time.monotonic() - began:.1f} s")
    try:
        with Display(app, found, connection) as display:
            begun = found.begin(spark, connection, registry, display.options(Trigger("once") if once else None))
            try:
                begun.wait()
            except KeyboardInterrupt:
                display.say(
                    "stopping after the current batch; Ctrl-C again stops now, and the next run repeats the batch"
                )
                begun.stop()
    finally:
        stop_spark()
    _show_report(app, found.report(begun.name), time.monotonic() - began)


def _show_report(app: App, report: RunReport, seconds: float) -> None:
    line = report.run
    if app.json:
        parts = {"partitions": [vars(entry) for entry in report.ledger], "sinks": [vars(sink) for sink in report.sinks]}
        print_json({**line.document(), "seconds": round(seconds, 3), **parts})
        return
    print_table(LEDGER, [ledger_cells(entry) for entry in report.ledger])
    print_table(SINKS, [_sink_cells(sink) for sink in report.sinks])
    state = click.style("balanced", fg="green") if line.balanced else click.style("NOT BALANCED", fg="red")
    app.say(f"{counted(line.read, 'record')} read, {state}, {seconds:.1f} s")


LEDGER = (
    "topic", "partition", "offsets", "read", "written", "dead", "late", "filtered", "duplicate", "rows", "balanced"
)  # fmt: skip
SINKS = ("sink", "rows", "skipped", "waiting", "taken", "balanced")


def ledger_cells(line: Any) -> list[object]:
    span = f"{line.first} to {line.next - 1}" if line.next > line.first else "-"
    counts = [line.read, line.written, line.dead, line.late, line.filtered, line.duplicate, line.rows]
    return [line.topic, line.partition, span, *[f"{count:,}" for count in counts], "yes" if line.balanced else "NO"]


def _sink_cells(line: Any) -> list[object]:
    counts = [line.rows, line.skipped, line.waiting, line.taken]
    told = ["-" if count is None else f"{count:,}" for count in counts]
    return [line.sink, *told, "yes" if line.balanced else "NO"]


@pipeline.command()
@_name
@_file
@_master
@registry_option
@any_kafka
@click.pass_obj
def start(app: App, name: str, file: Path | None, master: str | None) -> None:
    """Run NAME in the background. Pipelines share one Spark driver: the second one starts at once."""
    from headrace.pipeline.driver import Driver

    found = find(app, file, name)
    connection, registry = app.connection(), registry_of(app, found)
    if found.folder.is_locked:
        app.say(f"{name} runs already")
        return
    began = time.monotonic()
    Driver(found.home).start(
        found.folder,
        {
            "file": str((found.declaration.file or Path()).absolute()), "bootstrap": connection.bootstrap,
            "properties": dict(connection.properties), "registry": registry.url if registry else None,
            "master": master,
        },
    )  # fmt: skip
    app.say(f"{name} runs in the background, after {time.monotonic() - began:.1f} s; headrace pipeline status {name}")


@pipeline.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Stop every pipeline and the Spark driver.")
@click.option(
    "--timeout", callback=span, metavar="SPAN", help="How long to wait for the current batch, as in 1h. [default: 5min]"
)
@click.option("--now", is_flag=True, help="Stop in the middle of the current batch; the next run repeats it.")
@_file
@any_kafka
@click.pass_obj
def stop(app: App, name: str | None, everything: bool, timeout: float | None, now: bool, file: Path | None) -> None:
    """Stop NAME after the current batch; its next run continues from there.

    --now kills the Spark driver. No record is lost or written twice; other pipelines of this driver start again.

    \b
    headrace pipeline stop breadcrumbs
    headrace pipeline stop breadcrumbs --timeout 1h
    headrace pipeline stop breadcrumbs --now
    """
    from headrace.pipeline.driver import STOP_WITHIN_S, Driver
    from headrace.pipeline.pipeline import all_of

    path, home = _place(app, file)
    driver = Driver(home)
    if everything == bool(name):
        raise UsageError("which pipeline?", hint="headrace pipeline stop NAME, or --all")
    found = all_of(path, home) if everything else [find(app, file, name or "")]
    folders = [each.folder for each in found]
    within_s = STOP_WITHIN_S if timeout is None else timeout
    stopped = driver.cut_off(*folders) if now else driver.stop(*folders, within_s=within_s)
    for each in found:
        if each.name in stopped:
            how = "was stopped in the middle of a batch: its next run repeats it" if now else "has stopped"
            app.say(f"{each.name} {how}")
        elif each.folder.is_locked:
            raise Failed(
                f"{each.name} does not run in the background",
                why=each.folder.lock_file.read_text(encoding="utf-8") + " runs it",
                hint="Ctrl-C in its terminal",
            )
        elif not everything:
            app.say(f"{each.name} did not run")
    if everything:
        driver.end()


@pipeline.command()
@click.argument("name", required=False)
@click.option("-n", "--lines", type=click.IntRange(1), default=40, show_default=True)
@_file
@any_kafka
@click.pass_obj
def logs(app: App, name: str | None, lines: int, file: Path | None) -> None:
    """Show the logs of the background driver and of Spark. With NAME, only its lines of the driver log."""
    from headrace.pipeline.driver import Driver

    _, home = _place(app, file)
    driver = Driver(home)
    for log in (driver.log, driver.folder / "spark" / "spark.log", home.root / "spark" / "spark.log"):
        if log.is_file():
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()
            if name and log == driver.log:
                said = _lines_of(name, said)
            click.echo("\n".join([f"==> {log} <==", *said[-lines:]]))


def _lines_of(name: str, said: list[str]) -> list[str]:
    """What the driver said of that pipeline; indented lines belong to the one above them."""
    kept: list[str] = []
    ours = False
    for line in said:
        ours = line.partition(" ")[2].startswith(f"{name}: ") if not line.startswith(" ") else ours
        kept += [line] if ours else []
    return kept


@pipeline.command()
@_name
@click.option("--run", "wanted", metavar="RUN", help="One run only; `last` is the latest.")
@click.option("--by-rule", is_flag=True, help="Show the records that were not written, by rule.")
@_file
@any_kafka
@click.pass_obj
def ledger(app: App, name: str, wanted: str | None, by_rule: bool, file: Path | None) -> None:
    """Account for every record of NAME: read = written + dead + late + filtered + duplicate.

    ROWS counts the rows that the written records became. Below, for each sink: the rows, those that its own `where`
    skipped, those that it took, and, with a watermark, those in open windows (TAKEN counts finished windows).

    The exit code is 1 if a run does not balance.
    """
    found = find(app, file, name)
    book = found.ledger
    runs = book.runs()
    if not runs:
        raise UsageError(f"{name} has never run", hint=f"headrace pipeline run {name} --once")
    if wanted == "last":
        wanted = runs[-1].run
    if wanted and wanted not in {line.run for line in runs}:
        raise UsageError(f"there is no run {wanted!r}", hint=f"the latest is {runs[-1].run}")
    chosen = [line for line in runs if not wanted or line.run == wanted]
    lines, sinks = book.lines(wanted), book.sinks(wanted)
    wrong = [text for line in chosen for text in line.unbalanced]
    if app.json:
        documents = [
            {
                **line.document(),
                "partitions": [vars(entry) for entry in lines if entry.run == line.run],
                "sinks": [vars(entry) for entry in sinks if entry.run == line.run],
            }
            for line in chosen
        ]
        print_json({"name": name, "balanced": not wrong, "runs": documents})
    elif by_rule:
        print_table(("outcome", "rule", "records"), [(o, r, f"{n:,}") for o, r, n in book.by_rule(wanted)])
    else:
        print_table(("run", *LEDGER), [[line.run, *ledger_cells(line)] for line in lines])
        print_table(("run", *SINKS), [[line.run, *_sink_cells(line)] for line in sinks])
        for line in chosen:
            ended = duration(line.ended - line.started) if line.ended else "-"
            app.say(f"{line.run}: {line.state}, {line.batches} batches, {line.read:,} read, {ended}")
    if wrong:
        raise Failed(f"the ledger of {name} does not balance", why="; ".join(wrong[:5]))


@pipeline.command()
@click.argument("name", required=False)
@_file
@any_kafka
@click.pass_obj
def status(app: App, name: str | None, file: Path | None) -> None:
    """Show the progress of NAME, or of every pipeline, running or not: offset, end, lag, time to catch up.

    The exit code is 1 if records expired before they were read, or a topic was recreated.
    """
    from headrace.pipeline.pipeline import all_of
    from headrace.pipeline.status import status as status_of

    path, home = _place(app, file)
    found = [find(app, file, name)] if name else all_of(path, home)
    connection = app.connection()
    statuses = [status_of(connection, home, each.declaration) for each in found]
    if app.json:
        documents = [each.document() for each in statuses]
        print_json(documents[0] if name else documents)
    else:
        for each in statuses:
            _show_status(app, each)
    loud = [warned.text for each in statuses for warned in each.warnings if warned.loud]
    if loud:
        raise Failed("a pipeline has lost records", why="; ".join(loud))


def _show_status(app: App, found: Any) -> None:
    rate = f", {found.rate:,.0f} records/s" if found.rate else ""
    ahead = f", caught up in {duration(found.catch_up_s)}" if found.catch_up_s else ""
    why = f" ({found.why.splitlines()[0]})" if found.why else ""  # the ledger has the rest of an error
    app.say(f"{found.pipeline}: {found.state}{why}{rate}{ahead}")
    print_table(
        ("topic", "partition", "processed", "end", "lag", "lag time", "lost"),
        [
            (p.topic, p.partition, _told(p.processed), _told(p.end), _told(p.lag), duration(p.lag_s), p.lost)
            for p in found.partitions
        ],
    )
    totals = found.totals
    app.say(
        f"{totals.read:,} read in all, {totals.dead_letters:,} dead letters, "
        f"{'balanced' if totals.balanced else 'NOT BALANCED'}"
    )
    for warned in found.warnings:
        app.say(click.style("warning: ", fg="yellow") + warned.text)


def _told(value: int | None) -> str:
    return "-" if value is None else str(value)
