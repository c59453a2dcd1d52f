"""Commands for pipelines: what is declared, what runs, how far it is, and what became of every record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, Trunk, any_kafka, cli, everywhere, registry_option
from headrace.cli.display import Display
from headrace.cli.output import print_json, print_table
from headrace.cli.values import span
from headrace.errors import Failed, UsageError
from headrace.home import FILE, Home
from headrace.text import duration, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.pipeline import Graph, Pipeline, RunReport
    from headrace.schemas import Registry

file_option = click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="File that declares it. [default: headrace.toml in this folder or a parent]",
)
master_option = click.option(
    "--master", metavar="URL", help="A Spark master, as in spark://host:7077. [default: local[*]]"
)
name_argument = click.argument("name")
optional_name = click.argument("name", required=False)


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


def declared_in(app: App, file: Path | None) -> tuple[Path, Home]:
    """The file that is meant and the home where pipelines keep what they must remember."""
    home = Home.find(app.home, file.parent if file else None)
    path = file or home.config_file
    if path.is_dir():
        path = path / FILE
    return path, home


def find(app: App, file: Path | None, name: str) -> Pipeline:
    from headrace.pipeline import Pipeline

    path, home = declared_in(app, file)
    return Pipeline.from_file(path, name, home)


def _as_graph(app: App, file: Path | None, name: str | None) -> Graph | None:
    """The whole file, if that is meant: without a name, or with the name of a view."""
    from headrace.pipeline import declared_views

    if name is not None and name not in declared_views(declared_in(app, file)[0]):
        return None
    from headrace.cli.graph import find_graph

    return find_graph(app, file)


def registry_of(app: App, found: Pipeline) -> Registry | None:
    """The registry, if the declaration needs one."""
    return app.registry() if found.declaration.needs_registry else None


@pipeline.command("list")
@file_option
@any_kafka
@click.pass_obj
def list_(app: App, file: Path | None) -> None:
    """List the declared pipelines and views, and their state."""
    from headrace.pipeline import Pipeline, declared_views

    path, home = declared_in(app, file)
    rows = []
    for found in Pipeline.all_of(path, home):
        d = found.declaration
        rows.append(
            {
                "name": d.name, "from": ", ".join(d.all_topics), "into": ", ".join(sink.name for sink in d.sinks),
                "trigger": d.trigger.kind if d.trigger.kind != "every" else f"{d.trigger.seconds:g} s",
                "state": found.state,
            }
        )  # fmt: skip
    graph = _as_graph(app, file, None) if declared_views(path) else None
    for node in graph.nodes if graph else ():
        if graph and node.kind == "view":
            shown = {"name": node.name, "from": ", ".join(node.reads), "into": graph.declared.views[node.name].target}
            rows.append({**shown, "trigger": "view", "state": graph.state(node.name)})
    if app.json:
        print_json(rows)
        return
    print_table(("name", "from", "into", "trigger", "state"), [list(row.values()) for row in rows])
    if not rows:
        app.say(f"{path} declares no pipeline: add a [pipelines.NAME] table")


@pipeline.command()
@optional_name
@file_option
@registry_option
@any_kafka
@click.pass_obj
def explain(app: App, name: str | None, file: Path | None) -> None:
    """Check NAME and draw its flow, with the schema at each step. Nothing runs.

    Without NAME: check every pipeline and view of the file and draw them as one graph.
    """
    if graph := _as_graph(app, file, name):
        from headrace.cli.graph import explain_graph

        explain_graph(app, graph, name)
        return
    assert name is not None
    found = find(app, file, name)
    steps = found.explain(registry=registry_of(app, found), progress=app.progress)
    if app.json:
        print_json({"name": name, "steps": [{"step": s, "schema": json.loads(t.json())} for s, t in steps]})
        return
    click.echo("\n".join(_drawn(found, steps)))


def _drawn(found: Pipeline, steps: list[tuple[str, Any]]) -> list[str]:
    d = found.declaration
    dead = found.dead_letter_queue
    schema = dict(steps)
    lines = _drawn_rows(d, schema)
    if d.join:
        join = d.join
        lines += ["  │", *_drawn_rows(join.other, schema, "join "), "  │"]
        lines.append(f"  ▼ join on {', '.join(join.on)}, within {join.within}, {join.kind}")
        lines += _fields(schema["join"])
    lines.append(f"  ├── cannot be decoded or computed{'':9} ▶ dead letters: {dead.kind} {dead.target}")
    for at, sink in enumerate(d.sinks):
        branch = "└" if at == len(d.sinks) - 1 else "├"
        lines.append(f"  {branch}─▶ {sink.kind} {sink.name}{_how(sink)}")
    return lines


def _how(sink: Any) -> str:
    """What becomes of its rows."""
    if sink.aggregate:
        return f"  {sink.aggregate.mode} by {', '.join(sink.aggregate.by)}"
    if sink.changes is None:
        return ""
    order = ", ".join(sink.changes.sequence) or "the order of records"
    what = "every version" if sink.changes.history else "the latest row"
    deletes = f", deleted when {sink.changes.delete_when}" if sink.changes.delete_when else ""
    return f"  {what} by {', '.join(sink.changes.key)}, ordered by {order}{deletes}"


@pipeline.command()
@name_argument
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--to", type=click.Choice(["pyspark"]), default="pyspark", help="The kind of job to write.")
@file_option
@everywhere
@click.pass_obj
def export(app: App, name: str, folder: Path, to: str, file: Path | None) -> None:  # noqa: ARG001 - one kind so far
    """Write NAME as a plain PySpark job into DIR: it does the same without headrace.

    The job is one file. Its header says how to run it with spark-submit, and what is lost: the ledger, redrive, exactly
    once into topics. What a plain job cannot do is refused, with the line of the declaration.

    \b
    headrace pipeline export sales --to pyspark jobs
    """
    path = find(app, file, name).export(folder, progress=app.progress)
    if app.json:
        print_json({"name": name, "file": str(path)})
    else:
        click.echo(path)


def _drawn_rows(d: Any, schema: dict[str, Any], side: str = "") -> list[str]:
    """From records to rows."""
    lines = [f"  {topic}" for topic in d.topics]
    lines += ["  │", f"  ▼ decode {d.decode.format if d.decode.step is None else 'by a function'}"]
    lines += _fields(schema[f"{side}decode"])
    if d.select or d.select_step:
        lines += ["  │", "  ▼ select", *_fields(schema[f"{side}select"], d.select)]
    for lookup in d.lookups:
        on = ", ".join(here if there == f"`{here}`" else f"{here} = {there}" for here, there in lookup.on.items())
        otherwise = "dead letters" if lookup.unmatched == "dead" else "null"
        lines += ["  │", f"  ▼ lookup {lookup.kind} {lookup.target} on {on}; without a match: {otherwise}"]
        for name, text in lookup.select.items():
            lines.append(f"  │    {name:24} {schema['lookup'][name].dataType.simpleString():12} {text}")
    if d.where:
        lines += ["  │", f"  ▼ where {d.where}"]
    for rule in d.rules:
        way = {"dead": "dead letters", "drop": "dropped", "warn": "counted, written", "fail": "the run stops"}
        lines.append(f"  ├── not so: {rule.name:28} ▶ {way[rule.action]}")
    return lines


def _fields(schema: Any, texts: Mapping[str, str] | None = None) -> list[str]:
    return [
        f"  │    {field.name:24} {field.dataType.simpleString():12} {(texts or {}).get(field.name, '')}".rstrip()
        for field in schema.fields
    ]


@pipeline.command()
@optional_name
@click.option("--once", is_flag=True, help="Read what is there now, then stop, whatever the declared trigger.")
@file_option
@master_option
@registry_option
@any_kafka
@click.pass_obj
def run(app: App, name: str | None, once: bool, file: Path | None, master: str | None) -> None:
    """Run NAME in the foreground until Ctrl-C, or with --once until it has read what is there now.

    A view is updated once. Without NAME: run every pipeline and update every view of the file, each behind what it
    needs, independent ones side by side. If one fails, what depends on it is skipped, and the exit code is 1.

    \b
    headrace pipeline run --once
    headrace pipeline run breadcrumbs --once
    headrace pipeline run breadcrumbs --bootstrap kafka.example:9092 --master spark://spark.example:7077
    """
    if graph := _as_graph(app, file, name):
        from headrace.cli.graph import run_graph, update_view

        if name is None:
            run_graph(app, graph, once=once, master=master)
        else:
            update_view(app, graph, name, master)
        return
    assert name is not None
    found = find(app, file, name)
    connection, registry = app.connection(), registry_of(app, found)
    began = time.monotonic()
    with found.session(master, app.progress) as spark:
        app.say(f"Spark {spark.version} is ready after {time.monotonic() - began:.1f} s")
        with Display(app, found, connection) as display:
            report = found.run(connection, once=once, spark=spark, registry=registry, observer=display.observer)
    _show_report(app, report, time.monotonic() - began)


def _show_report(app: App, report: RunReport, seconds: float) -> None:
    line = report.run
    parts = {
        "partitions": report.ledger, "sinks": report.sinks, "lookups": report.lookups, "joins": report.joins
    }  # fmt: skip
    if app.json:
        print_json({**line.document(), "seconds": round(seconds, 3), **_part_documents(parts)})
        return
    _print_parts(parts)
    state = click.style("balanced", fg="green") if line.balanced else click.style("NOT BALANCED", fg="red")
    app.say(f"{plural(line.read, 'record')} read, {state}, {seconds:.1f} s")


LEDGER = (
    "topic", "partition", "offsets", "read", "written", "dead", "late", "filtered", "duplicate", "rows", "balanced"
)  # fmt: skip
SINKS = (
    "sink", "rows", "skipped", "waiting", "taken", "made", "in state", "applied", "deleted", "superseded", "balanced"
)  # fmt: skip
LOOKUPS = ("lookup", "version", "batches")
JOINS = ("side of the join", "entered", "matched", "unmatched", "waiting", "balanced")


def ledger_cells(line: Any) -> list[object]:
    span = f"{line.first} to {line.next - 1}" if line.next > line.first else "-"
    counts = [line.read, line.written, line.dead, line.late, line.filtered, line.duplicate, line.rows]
    return [line.topic, line.partition, span, *[f"{count:,}" for count in counts], "yes" if line.balanced else "NO"]


def _sink_cells(line: Any) -> list[object]:
    counts = [
        line.rows, line.skipped, line.waiting, line.taken, line.made, line.state, line.applied, line.deleted,
        line.superseded,
    ]  # fmt: skip
    cells = ["-" if count is None else f"{count:,}" for count in counts]
    return [line.sink, *cells, "yes" if line.balanced else "NO"]


def _lookup_cells(line: Any) -> list[object]:
    span = f"{line.first_batch}" if line.batches == 1 else f"{line.first_batch} to {line.last_batch}"
    return [line.lookup, line.version, span]


def _join_cells(line: Any) -> list[object]:
    counts = [line.entered, line.matched, line.unmatched, line.waiting]
    return [line.side, *[f"{count:,}" for count in counts], "yes" if line.balanced else "NO"]


#: The parts of an account: their titles, and how a line becomes cells.
_PARTS: dict[str, tuple[tuple[str, ...], Callable[[Any], list[object]]]] = {
    "partitions": (LEDGER, ledger_cells), "sinks": (SINKS, _sink_cells),
    "lookups": (LOOKUPS, _lookup_cells), "joins": (JOINS, _join_cells),
}  # fmt: skip
_ONLY_OF_SOME = {"made", "in state", "applied", "deleted", "superseded"}


def _part_documents(parts: Mapping[str, Iterable[Any]], run: str | None = None) -> dict[str, list[dict[str, object]]]:
    return {name: [vars(line) for line in lines if run in {None, line.run}] for name, lines in parts.items()}


def _print_parts(parts: Mapping[str, Sequence[Any]], *, with_run: bool = False) -> None:
    """A table for each part that a pipeline has, without the columns that say nothing of it."""
    for name, lines in parts.items():
        titles, cells = _PARTS[name]
        rows = [cells(line) for line in lines]
        shown = [
            at for at, title in enumerate(titles)
            if title not in _ONLY_OF_SOME or any(row[at] != "-" for row in rows)
        ]  # fmt: skip
        first = [[line.run] if with_run else [] for line in lines]
        if lines or name in {"partitions", "sinks"}:
            head = (*(["run"] if with_run else []), *[titles[at] for at in shown])
            print_table(head, [[*run, *[row[at] for at in shown]] for run, row in zip(first, rows, strict=True)])


@pipeline.command()
@name_argument
@file_option
@master_option
@registry_option
@any_kafka
@click.pass_obj
def start(app: App, name: str, file: Path | None, master: str | None) -> None:
    """Run NAME in the background. Pipelines share one Spark driver: the second one starts at once."""
    found = find(app, file, name)
    connection, registry = app.connection(), registry_of(app, found)
    began = time.monotonic()
    if not found.start(connection, registry=registry, master=master):
        app.say(f"{name} runs already")
        return
    app.say(f"{name} runs in the background, after {time.monotonic() - began:.1f} s; headrace pipeline status {name}")


@pipeline.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Stop every pipeline and the Spark driver.")
@click.option(
    "--timeout", callback=span, metavar="SPAN", help="How long to wait for the current batch, as in 1h. [default: 5min]"
)
@click.option("--now", is_flag=True, help="Stop in the middle of the current batch; the next run repeats it.")
@file_option
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
    from headrace.pipeline import Background, Pipeline

    path, home = declared_in(app, file)
    background = Background(home)
    if everything == bool(name):
        raise UsageError("which pipeline?", hint="headrace pipeline stop NAME, or --all")
    found = Pipeline.all_of(path, home) if everything else [find(app, file, name or "")]
    stopped = background.stop(*[each.name for each in found], timeout_s=timeout, now=now)
    for each in found:
        if each.name in stopped:
            how = "was stopped in the middle of a batch: its next run repeats it" if now else "has stopped"
            app.say(f"{each.name} {how}")
        elif not each.stop() and not everything:  # one that runs in the foreground is an error
            app.say(f"{each.name} did not run")
    if everything:
        background.end()


@pipeline.command()
@click.argument("name", required=False)
@click.option("-n", "--lines", type=click.IntRange(1), default=40)
@file_option
@any_kafka
@click.pass_obj
def logs(app: App, name: str | None, lines: int, file: Path | None) -> None:
    """Show the logs of the background driver and of Spark. With NAME, only its lines of the driver log."""
    from headrace.pipeline import Background

    _, home = declared_in(app, file)
    for log, said in Background(home).logs(name):
        click.echo("\n".join([f"==> {log} <==", *said[-lines:]]))


@pipeline.command()
@name_argument
@click.option("--run", "wanted", metavar="RUN", help="One run only; `last` is the latest.")
@click.option("--by-rule", is_flag=True, help="Show the records that were not written, by rule.")
@file_option
@any_kafka
@click.pass_obj
def ledger(app: App, name: str, wanted: str | None, by_rule: bool, file: Path | None) -> None:
    """Account for every record of NAME: read = written + dead + late + filtered + duplicate.

    ROWS counts the rows that the written records became. Below, for each sink: the rows, those that its own `where`
    skipped, those that it took, and, with a watermark, those in open windows (TAKEN counts finished windows). Of
    changes by key: those that were applied, that deleted, and that a later change had superseded. Of a lookup: which
    version which batches have used. For each side of a join: the records that entered it, and of these those that found
    a partner, that can find none any more, and that still wait for one.

    Of a view: its updates, the versions that each read, the keys it recomputed, rows removed and written.

    The exit code is 1 if a run does not balance.
    """
    if graph := _as_graph(app, file, name):
        from headrace.cli.graph import view_ledger

        view_ledger(app, graph, name)
        return
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
    parts: dict[str, Sequence[Any]] = {
        "partitions": book.lines(wanted), "sinks": book.sinks(wanted),
        "lookups": book.lookups(wanted), "joins": book.joins(wanted),
    }  # fmt: skip
    wrong = [text for line in chosen for text in line.unbalanced]
    if app.json:
        documents = [{**line.document(), **_part_documents(parts, line.run)} for line in chosen]
        print_json({"name": name, "balanced": not wrong, "runs": documents})
    elif by_rule:
        print_table(("outcome", "rule", "records"), [(o, r, f"{n:,}") for o, r, n in book.by_rule(wanted)])
    else:
        _print_parts(parts, with_run=True)
        for line in chosen:
            ended = duration(line.ended - line.started) if line.ended else "-"
            app.say(f"{line.run}: {line.state}, {line.batches} batches, {line.read:,} read, {ended}")
    if wrong:
        raise Failed(f"the ledger of {name} does not balance", why="; ".join(wrong[:5]))


@pipeline.command()
@name_argument
@click.option("--key", metavar="VALUE", help="Only entries with this value in their key.")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, help="Entries of each part.")
@file_option
@any_kafka
@click.pass_obj
def state(app: App, name: str, key: str | None, limit: int, file: Path | None) -> None:
    """Show the state that a join or an aggregate of mode watermark or state of NAME keeps, as of its last batch.

    Spark reads it from the checkpoint, whether the pipeline runs or not. For a join: the rows of both sides that may
    still find partners. For a class: its variables and timers, by key.

    \b
    headrace pipeline state transit
    headrace pipeline state transit --key 160999964
    """
    found = find(app, file, name).kept_state(key, limit=limit, progress=app.progress)
    if app.json:
        print_json(found)
        return
    print_table(("of", "key", "value"), [(e["of"], json.dumps(e["key"]), json.dumps(e["value"])) for e in found])


@pipeline.command()
@click.argument("name", required=False)
@file_option
@any_kafka
@click.pass_obj
def status(app: App, name: str | None, file: Path | None) -> None:
    """Show the progress of NAME, or of every pipeline, running or not: offset, end, lag, time to catch up.

    The exit code is 1 if records expired before they were read, or a topic was recreated.
    """
    from headrace.cli.graph import show_view_status
    from headrace.pipeline import Pipeline, declared_views

    path, home = declared_in(app, file)
    graph = _as_graph(app, file, name) if declared_views(path) else None
    views = [graph.status(view) for view in graph.views if name in (None, view)] if graph else []
    found = [] if name and views else [find(app, file, name)] if name else Pipeline.all_of(path, home)
    connection = app.connection() if found else None
    statuses = [each.status(connection) for each in found]
    if app.json:
        documents = [*[each.document() for each in statuses], *[each.document() for each in views]]
        print_json(documents[0] if name else documents)
    else:
        for each in statuses:
            _show_status(app, each)
        for view in views:
            show_view_status(app, view)
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
