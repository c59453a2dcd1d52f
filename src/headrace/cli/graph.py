"""Commands for the whole file: pipelines and views as one graph, and views by themselves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, any_kafka, registry_option, yes_option
from headrace.cli.output import print_json, print_table
from headrace.cli.pipeline import declared_in, file_option, master_option, name_argument, pipeline
from headrace.errors import Failed, UsageError
from headrace.text import duration, plural

if TYPE_CHECKING:
    from headrace.pipeline import (
        Graph,
        GraphNode,
        GraphObserver,
        GraphReport,
        NodeResult,
        RefreshPlan,
        ViewStatus,
        ViewUpdate,
    )  # fmt: skip
    from headrace.schemas import Registry


def find_graph(app: App, file: Path | None) -> Graph:
    """What the file declares; a file that declares nothing is an error."""
    from headrace.pipeline import Graph

    path, home = declared_in(app, file)
    graph = Graph.from_file(path, home)
    if not graph.declared.order:
        raise UsageError(f"{path} declares no pipeline", hint="add a [pipelines.NAME] table")
    return graph


def explain_graph(app: App, graph: Graph, only: str | None = None) -> None:
    """Draw the graph, or one view of it; what is wrong with any node is an error."""
    nodes = graph.explain(registry=_registry(app, graph), progress=app.progress)
    if app.json:
        documents = [node.document() for node in nodes if only in (None, node.name)]
        print_json(documents[0] if only else {"nodes": documents})
        return
    click.echo("\n".join(_drawn([node for node in nodes if only in (None, node.name)])))
    if not only:
        views = sum(node.kind == "view" for node in nodes)
        app.say(f"{plural(len(nodes) - views, 'pipeline')}, {plural(views, 'view')}: nothing is wrong")


def _registry(app: App, graph: Graph) -> Registry | None:
    needed = any(declaration.needs_registry for declaration in graph.declared.pipelines.values())
    return app.registry() if needed else None


def _drawn(nodes: list[GraphNode]) -> list[str]:
    """Each node below what it needs: what it reads, itself, the tables that it writes."""
    lines: list[str] = []
    for node in nodes:
        lines += [f"  {node.kind} {click.style(node.name, bold=True)}", f"  │  reads {', '.join(node.reads)}"]
        if node.kind == "view":
            how = f"computed in full: {node.full_because}" if node.full_because else "updated by the keys that changed"
            lines.append(f"  │  {how}")
        if node.looks_up:
            lines.append(f"  │  looks up {', '.join(node.looks_up)}")
        written = (*node.writes, *[f"topic {name}" for name in node.sends], *node.elsewhere)
        for at, name in enumerate(written):
            last = at == len(written) - 1
            columns = node.columns.get(name)
            known = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in columns) if columns else ""
            readers = [each.name for each in nodes if name in (each.reads if each.kind == "view" else each.looks_up)]
            lines.append(f"  {'└' if last else '├'}─▶ {name}{f' ({known})' if known else ''}")
            lines += [f"  {' ' if last else '│'}     └─▶ {reader}" for reader in readers]
        lines.append("")
    return lines[:-1]


def run_graph(app: App, graph: Graph, *, once: bool, master: str | None) -> None:
    """Run all of it; the exit code is 1 if a node failed."""
    connection = app.connection() if graph.declared.pipelines else ""
    registry = _registry(app, graph)
    began = time.monotonic()
    observer = _observer(app)
    with graph.session(master, app.progress) as spark:
        app.say(f"Spark {spark.version} is ready after {time.monotonic() - began:.1f} s")
        report = graph.run(connection, once=once, spark=spark, registry=registry, observer=observer)
    seconds = time.monotonic() - began
    if app.json:
        print_json({"seconds": round(seconds, 3), "nodes": [node.document() for node in report.nodes]})
    else:
        states = [(node.name, node.kind, node.state, f"{node.seconds:.1f} s", _said(node)) for node in report.nodes]
        print_table(("name", "kind", "state", "time", "what"), states)
        app.say(f"{plural(len(report.nodes), 'node')} in {seconds:.1f} s")
    _require_all(report)


def _observer(app: App) -> GraphObserver:
    from headrace.pipeline import GraphObserver

    return GraphObserver(
        say=lambda name, text: app.say(f"{name}: {text}" if name else text),
        on_begin=lambda name: app.say(f"{name} …"),
        on_end=lambda result: app.say(_ended(result)),
    )


def _require_all(report: GraphReport) -> None:
    """No node has failed."""
    if report.failed:
        raise Failed(
            f"{plural(len(report.failed), 'node')} of {len(report.nodes)} failed: "
            + ", ".join(node.name for node in report.failed),
            why="; ".join(str(node.error) for node in report.failed),
        )


def _said(node: NodeResult) -> str:
    return str(node.report or node.update or (node.error.problem if node.error else node.because))


def _ended(node: NodeResult) -> str:
    colour = {"done": "green", "failed": "red", "skipped": "yellow"}[node.state]
    return f"{node.name} {click.style(node.state, fg=colour)} after {node.seconds:.1f} s: {_said(node)}"


def update_view(app: App, graph: Graph, name: str, master: str | None) -> None:
    """Bring one view up to date."""
    with graph.session(master, app.progress) as spark:
        _show_updates(app, [graph.update(name, spark=spark)])


@pipeline.command()
@name_argument
@click.option("--full", is_flag=True, help="Make tables again from all records, and views from all rows.")
@click.option("--accept-loss", is_flag=True, help="Go on without records that Kafka no longer has.")
@yes_option
@file_option
@master_option
@registry_option
@any_kafka
@click.pass_obj
def refresh(
    app: App, name: str, full: bool, accept_loss: bool, yes: bool, file: Path | None, master: str | None
) -> None:
    """Bring NAME, a pipeline or a view, and all that is made from its tables up to date.

    A pipeline reads what is new. With --full its tables are emptied and made again from its records: it shows what it
    will do and asks. The rows of before stay in an earlier version of each table, or in a table beside it. Records that
    it has read and that Kafka has deleted since are counted first; without --accept-loss nothing is changed then. Views
    are recomputed, also with other columns than before.

    \b
    headrace pipeline refresh route_speeds
    headrace pipeline refresh breadcrumbs --full
    """
    graph = find_graph(app, file)
    # A view and what is made from it need no Kafka.
    connection = app.connection() if name in graph.declared.pipelines else None
    plan = graph.plan_refresh(name, connection, full=full)
    if plan.rebuilds:
        _agree_to(app, plan, accept_loss=accept_loss, yes=yes)
    observer = _observer(app)
    with graph.session(master, app.progress) as spark:
        report = graph.refresh(
            name, connection, full=full, accept_loss=accept_loss, spark=spark, registry=_registry(app, graph),
            observer=observer,
        )  # fmt: skip
    if app.json:
        print_json([node.document() for node in report.nodes])
    else:
        click.echo(str(report))
    _require_all(report)


def _agree_to(app: App, plan: RefreshPlan, *, accept_loss: bool, yes: bool) -> None:
    """What a full refresh means is shown, and agreed to."""
    for rebuild in plan.rebuilds:
        for text in rebuild.steps:
            app.say(f"· {text}")
    if views := [node for node in plan.nodes if node not in {each.pipeline for each in plan.rebuilds}]:
        app.say(f"· recomputed afterwards: {', '.join(views)}")
    if plan.lost and not accept_loss:
        raise Failed(
            f"Kafka no longer has {plan.lost:,} records that were read", why="rows made from them would be missing",
            hint="nothing was changed; --accept-loss makes the tables without them",
        )  # fmt: skip
    if not yes:
        app.require_yes("make them again?", "nothing was changed", hint="--yes makes them without asking")


def _show_updates(app: App, made: list[ViewUpdate]) -> None:
    if app.json:
        print_json([update.document() for update in made])
        return
    for update in made:
        click.echo(f"{update.view}: {update}")


def view_ledger(app: App, graph: Graph, name: str) -> None:
    """The account of a view: one line per update."""
    made = graph.updates(name)
    if not made:
        raise UsageError(f"{name} was never updated", hint=f"headrace pipeline run {name} --once")
    if app.json:
        print_json({"name": name, "updates": [update.document() for update in made]})
        return
    rows = [
        (
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(update.at_ms / 1000)), update.mode,
            ", ".join(f"{table} {_span(version)}" for table, version in update.sources.items()),
            "all" if update.keys is None else f"{update.keys:,}",
            "-" if update.rows_removed is None else f"{update.rows_removed:,}",
            f"{update.rows_written or 0:,}", duration(update.seconds), update.why,
        )
        for update in made
    ]  # fmt: skip
    print_table(("at", "mode", "versions", "keys", "removed", "written", "time", "why"), rows)


def _span(version: Any) -> str:
    return f"{version.version}" if version.before is None else f"{version.before} to {version.version}"


def show_view_status(app: App, found: ViewStatus) -> None:
    """How far a view is, in a line or two."""
    if found.last is None:
        app.say(f"{found.view}: {found.state}, never updated")
    else:
        behind = [f"{table} by {count:,} versions" for table, count in found.behind.items() if count]
        app.say(f"{found.view}: {found.state}, {'behind ' + ', '.join(behind) if behind else 'up to date'}")
    if found.error:
        app.say(click.style("warning: ", fg="yellow") + f"the last update failed: {found.error.splitlines()[0]}")
