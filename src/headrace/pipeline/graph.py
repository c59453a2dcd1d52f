"""`Graph`: all pipelines and views of a file, and everything that can be done with them together.

graph = Graph.from_file("headrace.toml")
print(graph.run(cluster, once=True))
graph.refresh("route_speeds", full=True)              # a view
graph.refresh("positions", cluster, full=True)       # a pipeline, and the views that are made from its tables

Each pipeline and each view is a node; a view is behind the pipelines and views that write its tables. Nodes that do not
depend on each other run side by side on one Spark session. If a node fails, what depends on it is skipped, and the
others go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.home import FILE, Home, write_json
from headrace.kafka import Connection, HasBootstrap
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.view_updates import ViewUpdate, updates
from headrace.pipeline.declare.graph import DeclaredGraph, TableNode, read_graph
from headrace.pipeline.pipeline import Pipeline, RunObserver, RunReport, spark_session
from headrace.progress import SILENT, Progress
from headrace.tables import is_delta, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from headrace.pipeline.books.refresh import RebuildPlan
    from headrace.pipeline.spark.run import Run
    from headrace.schemas import Registry

_POLL_S = 2.0
#: Nodes at work at the same time; more of them would only wait for each other.
_SIDE_BY_SIDE = 4


@dataclass(frozen=True)
class GraphNode:
    """A pipeline or a view: what it reads and writes, and, once Spark was asked, the columns of its tables."""

    name: str
    kind: Literal["pipeline", "view"]
    #: Topics of a pipeline, tables of a view.
    reads: tuple[str, ...]
    #: Tables.
    writes: tuple[str, ...]
    #: Tables that a pipeline looks up.
    looks_up: tuple[str, ...] = ()
    #: Topics that a pipeline writes to.
    sends: tuple[str, ...] = ()
    #: What else a pipeline writes, as `postgres trips`.
    elsewhere: tuple[str, ...] = ()
    #: The nodes that have to be done before.
    needs: tuple[str, ...] = ()
    #: By table; None if they are known only once it is written.
    columns: Mapping[str, StructType | None] = field(default_factory=dict)
    #: Of a view that is not updated by the keys that changed: why not.
    full_because: str = ""

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        columns = {
            table: schema and {field.name: field.dataType.simpleString() for field in schema}
            for table, schema in self.columns.items()
        }
        names = ("name", "kind", "reads", "looks_up", "writes", "sends", "elsewhere", "needs")
        shown = {name: getattr(self, name) for name in names}
        view = {"incremental": not self.full_because, "why": self.full_because} if self.kind == "view" else {}
        return {**shown, **view, "columns": columns}


@dataclass(frozen=True)
class NodeResult:
    """How a node ended: a pipeline with its report, a view with its update, or an error, or skipped."""

    name: str
    kind: Literal["pipeline", "view"]
    state: Literal["done", "failed", "skipped"]
    seconds: float = 0.0
    report: RunReport | None = None
    update: ViewUpdate | None = None
    error: HeadraceError | None = None
    #: Of a skipped node: what it waited for.
    because: str = ""

    def __str__(self) -> str:
        said = self.report or self.update or (self.error.problem if self.error else self.because)
        return f"{self.name}: {self.state}: {said}"

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "name": self.name, "kind": self.kind, "state": self.state, "seconds": round(self.seconds, 3),
            "run": self.report.run.document() if self.report else None,
            "update": self.update.document() if self.update else None,
            "error": str(self.error) if self.error else self.because or None,
        }  # fmt: skip


@dataclass(frozen=True)
class GraphReport:
    """How each node of a graph ended, in the order of the graph."""

    nodes: tuple[NodeResult, ...]

    @property
    def failed(self) -> tuple[NodeResult, ...]:
        """Those that failed, not those that were skipped because of them."""
        return tuple(node for node in self.nodes if node.state == "failed")

    def __str__(self) -> str:
        return "\n".join(map(str, self.nodes))


@dataclass(frozen=True)
class RefreshPlan:
    """What a refresh would do: nothing is done yet."""

    name: str
    full: bool
    #: The node itself and what is made from its tables, in order.
    nodes: tuple[str, ...]
    #: Of a full refresh: what it means for each pipeline among them.
    rebuilds: tuple[RebuildPlan, ...] = ()

    @property
    def lost(self) -> int:
        """Records that were read and that Kafka no longer has."""
        return sum(plan.lost for plan in self.rebuilds)

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {**vars(self), "rebuilds": [plan.document() for plan in self.rebuilds], "lost": self.lost}


@dataclass(frozen=True)
class ViewStatus:
    """How far a view is. `behind`: by table, how many versions it has not seen; None if that is not known."""

    view: str
    state: str
    path: str
    error: str | None
    last: ViewUpdate | None
    behind: Mapping[str, int | None]

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {**vars(self), "last": self.last.document() if self.last else None, "behind": dict(self.behind)}


class Graph:
    """The pipelines and views of one file. Their files are in `home`, by default the `.headrace` beside it."""

    def __init__(self, declared: DeclaredGraph, home: Home | Path | str | None = None) -> None:
        self.declared = declared
        self.home = home if isinstance(home, Home) else Home.find(home, declared.file.parent)

    @classmethod
    def from_file(cls, file: Path | str, home: Home | Path | str | None = None) -> Graph:
        """What the file declares. A cycle, or a table that nothing writes, is an error that names the line."""
        path = Path(file)
        return cls(read_graph(path / FILE if path.is_dir() else path), home)

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(self.declared.views)

    @property
    def nodes(self) -> list[GraphNode]:
        """Every pipeline and view, each behind what it needs; found without Spark."""
        return [self._node(name) for name in self.declared.order]

    def _node(self, name: str) -> GraphNode:
        graph = self.declared
        tables = tuple(table.name for table in self._written_by(name))
        needs = tuple(sorted(graph.needs(name)))
        if name in graph.views:
            return GraphNode(name, "view", tuple(graph.sources(name)), tables, needs=needs)
        declaration = graph.pipelines[name]
        known = graph.looked_up(name)
        targets = [lookup.target for lookup in declaration.lookups if lookup.kind == "table"]
        others = [sink for sink in declaration.sinks if not sink.type.table and sink.type.has_target]
        return GraphNode(
            name, "pipeline", declaration.read_topics, tables,
            looks_up=tuple(known[each].name if each in known else Path(each).stem for each in targets),
            sends=tuple(sink.target for sink in others if sink.type.is_topic),
            elsewhere=tuple(f"{sink.kind} {sink.target}" for sink in others if not sink.type.is_topic), needs=needs,
        )  # fmt: skip

    def _written_by(self, name: str) -> list[TableNode]:
        return [table for found in self.declared.tables.values() for table in found if name in table.writers]

    def downstream(self, name: str) -> list[str]:
        """The pipelines and views that depend on that one."""
        return self.declared.downstream(name)

    # -- checking ------------------------------------------------------------------------------------------------------

    def explain(
        self, spark: SparkSession | None = None, registry: Registry | str | None = None, *, progress: Progress = SILENT
    ) -> list[GraphNode]:
        """The nodes with the columns of their tables. A mistake in any of them is an error that names its line."""
        from headrace.pipeline.spark.check import unasked
        from headrace.pipeline.spark.session import java_alive

        known: dict[str, StructType | None] = {}
        with self._given_or_new(spark, progress) as session, java_alive():
            nodes = [
                self._explain_view(name, session, known)
                if name in self.declared.views
                else self._explain_pipeline(name, session, known, registry)
                for name in self.declared.order
            ]
        for declaration in self.declared.pipelines.values():
            for note in unasked(declaration):
                progress.say(note)
        return nodes

    def _explain_pipeline(
        self, name: str, spark: SparkSession, known: dict[str, StructType | None], registry: Registry | str | None
    ) -> GraphNode:
        from headrace.pipeline.spark import check

        pipeline = self._pipeline(name)
        declaration = pipeline.declaration
        looked_up = [table.path for table in self.declared.looked_up(name).values()]
        if any(known.get(path, ...) is None and not Path(path).exists() for path in looked_up):
            known |= {
                table.path: None for table in self._written_by(name)
            }  # Python makes a table that has not been written yet
            return self._node(name)
        with pipeline._with_registry("", registry) as used:
            made = check.checked(
                spark.newSession(), declaration, Connection(""), used, declaration.trigger, to_come=known
            )[1]
        known |= made
        return replace(self._node(name), columns={_last_part(path): columns for path, columns in made.items()})

    def _explain_view(self, name: str, spark: SparkSession, known: dict[str, StructType | None]) -> GraphNode:
        from headrace.pipeline.spark.views import check_view

        view, node = self.declared.views[name], self._node(name)
        tables = {table: at.path for table, at in self.declared.sources(name).items()}
        columns = {table: known.get(path) or _written(spark, path) for table, path in tables.items()}
        schemas = {table: schema for table, schema in columns.items() if schema is not None}
        path = view.location("table", view.target)
        if len(schemas) < len(columns):  # Python makes a table that has not been written yet
            known[path] = None
            return replace(node, columns={_last_part(path): None})
        checked = check_view(spark, view, schemas)
        known[path] = checked.schema
        return replace(node, columns={_last_part(path): checked.schema}, full_because=checked.full_because)

    # -- running -------------------------------------------------------------------------------------------------------

    @contextmanager
    def session(self, master: str | None = None, progress: Progress = SILENT) -> Iterator[SparkSession]:
        """A Spark session with the settings of all pipelines; it is stopped at the end of the block."""
        conf = {name: value for each in self.declared.pipelines.values() for name, value in each.spark.items()}
        with spark_session(self.home, master, progress, conf) as spark:
            yield spark

    def run(
        self,
        where: HasBootstrap | str,
        *,
        once: bool = False,
        spark: SparkSession | None = None,
        registry: Registry | str | None = None,
        observer: GraphObserver | None = None,
    ) -> GraphReport:
        """Run every pipeline and update every view, in order; what does not depend on each other, side by side.

        With `once`, pipelines process the records that are there now. Without, they run as declared until Ctrl-C, and
        views are updated every two seconds. A node that failed is in the report; it raises nothing.
        """
        with self._given_or_new(spark) as session:
            run = _GraphRun(self, session, where, registry, observer or GraphObserver())
            return run.once() if once else run.follow()

    def update(self, name: str, *, full: bool = False, spark: SparkSession | None = None) -> ViewUpdate:
        """The view is up to date with the tables that it reads, by the keys that changed, or in full."""
        from headrace.pipeline.spark.session import java_alive
        from headrace.pipeline.spark.views import update_view

        view = self.declared.view(name)
        paths = {table: node.path for table, node in self.declared.sources(name).items()}
        folder = PipelineFolder(self.home, name)
        with self._given_or_new(spark) as session, folder.lock(), java_alive():
            _note_state(folder, "running")
            try:
                update = update_view(session, view, paths, full=full)
            except BaseException as error:
                _note_state(folder, "failed", str(error))
                raise
            _note_state(folder, "waiting" if update.why.startswith("waits") else "finished")
        return update

    def plan_refresh(self, name: str, where: HasBootstrap | str | None = None, *, full: bool = False) -> RefreshPlan:
        """What `refresh` would do. Of a full refresh of a pipeline, Kafka (`where`) says which records it still has."""
        self._check_known(name)
        nodes = (name, *self.declared.made_from(name))
        made_again = [self._pipeline(node) for node in nodes if full and node in self.declared.pipelines]
        return RefreshPlan(
            name, full, nodes, tuple(each.plan_rebuild(_required(where, each.name)) for each in made_again)
        )

    def refresh(
        self,
        name: str,
        where: HasBootstrap | str | None = None,
        *,
        full: bool = False,
        accept_loss: bool = False,
        spark: SparkSession | None = None,
        registry: Registry | str | None = None,
        observer: GraphObserver | None = None,
    ) -> GraphReport:
        """The pipeline or view, and all that is made from its tables, are up to date; a pipeline needs Kafka (`where`).

        With `full`, pipelines start over: their tables are emptied and made from their records again. Views are
        recomputed. Records that Kafka no longer has are an error of the node unless `accept_loss`.
        """
        self._check_known(name)
        nodes = (name, *self.declared.made_from(name))
        for node in nodes:
            if node in self.declared.pipelines:
                _required(where, node)
        with self._given_or_new(spark) as session:
            run = _GraphRun(self, session, where or "", registry, observer or GraphObserver())
            return run.refresh(nodes, full=full, accept_loss=accept_loss)

    def _check_known(self, name: str) -> None:
        if name not in self.declared.pipelines:
            self.declared.view(name)

    # -- looking -------------------------------------------------------------------------------------------------------

    def updates(self, name: str) -> list[ViewUpdate]:
        """The account of a view: its updates, the latest first. No Spark is needed."""
        return updates(self.declared.view(name).path)

    def status(self, name: str) -> ViewStatus:
        """How far the view is, found without Spark."""
        view = self.declared.view(name)
        last = next(iter(updates(view.path, 20)), None)
        behind: dict[str, int | None] = {}
        for table, node in self.declared.sources(name).items():
            newest = read_table(node.path).version if "://" not in node.path and is_delta(Path(node.path)) else None
            seen = last.sources.get(table) if last else None
            behind[table] = newest - seen.version if newest is not None and seen else None
        error = PipelineFolder(self.home, name).state.get("error")
        return ViewStatus(name, self.state(name), view.path, error, last, behind)

    def state(self, name: str) -> str:
        """`running`, or how the view's last update ended: `finished`, `waiting`, `failed`, `cut off`; `never run`."""
        folder = PipelineFolder(self.home, name)
        state = str(folder.state.get("state", "never run"))
        return "cut off" if state == "running" and not folder.is_locked else state

    # -- what these need -----------------------------------------------------------------------------------------------

    def _given_or_new(
        self, spark: SparkSession | None, progress: Progress = SILENT
    ) -> AbstractContextManager[SparkSession]:
        return self.session(progress=progress) if spark is None else nullcontext(spark)

    def _pipeline(self, name: str) -> Pipeline:
        return Pipeline(self.declared.pipelines[name], self.home)


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True)
class GraphObserver:
    """Callbacks for what happens while a graph runs. They are called from several threads."""

    #: Messages for a person, with the node that they are about.
    say: Callable[[str, str], None] = _ignore
    #: Called when a node begins: its name.
    on_begin: Callable[[str], None] = _ignore
    #: Called when a node has ended; for a view that is updated again and again, after each update.
    on_end: Callable[[NodeResult], None] = _ignore


class _GraphRun:
    """One run of a graph on one session."""

    def __init__(
        self, graph: Graph, spark: SparkSession, where: HasBootstrap | str, registry: Registry | str | None,
        observer: GraphObserver,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.spark = spark
        self.where = where
        self.registry = registry
        self.observer = observer
        self.full = self.accept_loss = False
        self.runs: list[Run] = []
        self._stopping = threading.Event()
        self._slots = threading.Semaphore(_SIDE_BY_SIDE)

    def refresh(self, names: tuple[str, ...], *, full: bool, accept_loss: bool) -> GraphReport:
        self.full, self.accept_loss = full, accept_loss
        return self._each_once(names)

    def once(self) -> GraphReport:
        return self._each_once(tuple(self.graph.declared.order))

    def _each_once(self, order: tuple[str, ...]) -> GraphReport:
        ended: dict[str, Future[NodeResult]] = {}
        with _threads(len(order)) as threads:
            for name in order:
                # A thread waits only for nodes before its own, which have theirs already.
                ended[name] = threads.submit(self._in_turn, name, dict(ended))
            self._wait(lambda: all(each.done() for each in ended.values()))
        return GraphReport(tuple(each.result() for each in ended.values()))

    def follow(self) -> GraphReport:
        """Pipelines run as declared; views follow until the last of them has ended."""
        graph = self.graph.declared
        results: dict[str, NodeResult] = {}
        with _threads(len(graph.pipelines)) as threads:
            running: dict[str, Future[NodeResult]] = {}
            for name in graph.order:
                if name in graph.pipelines:
                    running[name] = threads.submit(self._run_behind, name, dict(running), results)
            seen: dict[str, object] = {}

            def turn() -> bool:
                over = all(each.done() for each in running.values())
                for name in graph.order:
                    if name in graph.views:
                        self._follow_view(name, seen, results)
                return over

            self._wait(turn)
            results |= {name: each.result() for name, each in running.items()}
        return GraphReport(tuple(results[name] for name in graph.order))

    def _run_behind(
        self, name: str, running: Mapping[str, Future[NodeResult]], results: Mapping[str, NodeResult]
    ) -> NodeResult:
        """The pipeline starts when the tables that it looks up exist, or when all that could write them has ended."""
        announced = False
        while not self._stopping.is_set():
            missing = [t for t in self.graph.declared.looked_up(name).values() if not self._is_written(t)]
            if not any(self._may_write(each, running, results) for table in missing for each in table.writers):
                break
            if not announced:
                self.observer.say(name, f"waits for the table {missing[0].name}, which it looks up")
            announced = True
            self._stopping.wait(_POLL_S)
        return self._run_pipeline(name, once=False)

    def _is_written(self, table: TableNode) -> bool:
        from headrace.pipeline.spark import internals

        if table.kind == "delta":
            return internals.is_delta_table(self.spark, table.path)
        return "://" in table.path or any(Path(table.path).rglob("*.parquet"))

    def _may_write(
        self, name: str, running: Mapping[str, Future[NodeResult]], results: Mapping[str, NodeResult]
    ) -> bool:
        """Whether that pipeline or view, which has written nothing, still may."""
        if name in self.graph.declared.pipelines:
            return name not in running or not running[name].done()
        if name in results and results[name].state != "done":
            return False
        needs, sources = self.graph.declared.needs(name), self.graph.declared.sources(name).values()
        return all(map(self._is_written, sources)) or any(self._may_write(each, running, results) for each in needs)

    def _follow_view(self, name: str, seen: dict[str, object], results: dict[str, NodeResult]) -> None:
        from headrace.pipeline.spark import internals

        before = results.get(name)
        needs = [results[need] for need in self.graph.declared.needs(name) if need in results]
        if broken := [each.name for each in needs if each.state != "done"]:
            if before is None or before.state != "skipped":
                results[name] = self._ended(self._skipped(name, broken))
            return
        paths = [node.path for node in self.graph.declared.sources(name).values()]
        versions = [
            internals.newest_version(self.spark, path) if internals.is_delta_table(self.spark, path) else None
            for path in paths
        ]
        # One that failed is tried again as soon as there is something new to try it with.
        if name in seen and seen[name] == versions:
            return
        result = results[name] = self._attempt(name, self._update)
        seen[name] = versions
        news = before is None or {before.state, result.state} != {"done"}
        if news or (result.update and result.update.mode != "none"):
            self._ended(result)

    def _wait(self, done: Callable[[], bool]) -> None:
        """Until it is done; Ctrl-C stops the pipelines after their current batches."""
        while True:
            try:
                if done():
                    return
                time.sleep(0.2 if self._stopping.is_set() else min(_POLL_S, 0.5))
            except KeyboardInterrupt:
                if self._stopping.is_set():
                    raise
                self._stopping.set()
                self.observer.say("", "stopping after the current batches; Ctrl-C again stops now")
                for run in self.runs:
                    threading.Thread(target=run.stop, daemon=True).start()

    def _in_turn(self, name: str, ended: Mapping[str, Future[NodeResult]]) -> NodeResult:
        before = [ended[need].result() for need in self.graph.declared.needs(name) if need in ended]
        if broken := [each.name for each in before if each.state != "done"]:
            return self._ended(self._skipped(name, broken))
        with self._slots:
            if self._stopping.is_set():
                return self._ended(NodeResult(name, self._kind(name), "skipped", because="the run was stopped"))
            self.observer.on_begin(name)
            if name in self.graph.declared.pipelines:
                return self._run_pipeline(name, once=True)
            return self._ended(self._attempt(name, self._update))

    def _update(self, name: str) -> dict[str, Any]:
        return {"update": self.graph.update(name, full=self.full, spark=self.spark)}

    def _run_pipeline(self, name: str, *, once: bool) -> NodeResult:
        pipeline = self.graph._pipeline(name)

        def run(_: str) -> dict[str, Any]:
            observer = RunObserver(say=lambda text: self.observer.say(name, text))
            if self.full:
                where, spark, registry = self.where, self.spark, self.registry
                kept = pipeline.start_over(where, spark=spark, registry=registry, accept_loss=self.accept_loss)
                for text in kept:
                    observer.say(text)
            made = pipeline.begin(self.spark, self.where, self.registry, observer, once=once)
            self.runs.append(made)
            made.wait()
            report = pipeline.report(made.name)
            if not report.run.balanced:
                raise Failed(f"the ledger of {name} does not balance", why="; ".join(report.run.unbalanced[:5]))
            return {"report": report}

        return self._ended(self._attempt(name, run))

    def _attempt(self, name: str, act: Callable[[str], dict[str, Any]]) -> NodeResult:
        began, kind = time.monotonic(), self._kind(name)
        try:
            return NodeResult(name, kind, "done", **act(name), seconds=time.monotonic() - began)
        except HeadraceError as error:
            return NodeResult(name, kind, "failed", error=error, seconds=time.monotonic() - began)

    def _skipped(self, name: str, broken: list[str]) -> NodeResult:
        return NodeResult(name, self._kind(name), "skipped", because=f"it depends on {', '.join(sorted(broken))}")

    def _kind(self, name: str) -> Literal["pipeline", "view"]:
        return "view" if name in self.graph.declared.views else "pipeline"

    def _ended(self, result: NodeResult) -> NodeResult:
        self.observer.on_end(result)
        return result


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    threads = ThreadPoolExecutor(max(count, 1), "graph")
    try:
        yield threads
    except BaseException:
        # After a second Ctrl-C they are not waited for: they end with the Spark session.
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()


def _required(where: HasBootstrap | str | None, pipeline: str) -> HasBootstrap | str:
    if where is None:
        raise UsageError(f"{pipeline} is a pipeline: a refresh needs Kafka", hint='graph.refresh(name, "HOST:PORT")')
    return where


def _last_part(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _written(spark: SparkSession, path: str) -> StructType | None:
    from headrace.pipeline.spark import internals

    return spark.read.format("delta").load(path).schema if internals.is_delta_table(spark, path) else None


def _note_state(folder: PipelineFolder, state: str, error: str | None = None) -> None:
    folder.create()
    write_json(folder.state_file, {"state": state, "error": error, "at": time.time()})
