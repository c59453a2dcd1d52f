"""`Pipeline`: a declaration, and everything that can be done with it.

pipeline = Pipeline.from_file("headrace.toml", "breadcrumbs")
run = pipeline.run(cluster, once=True)
print(run.ledger)

The command line, the console, the labs and Python programs all call these methods and only format the results. A run is
orchestrated here, in the foreground (`run`) and for the background process (`begin`). What only one verb needs is
imported by it: `pipeline list` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Failed, HeadraceError, NotFound, SetupError, UsageError
from headrace.home import FILE, Home
from headrace.kafka import Connection, HasBootstrap, connect
from headrace.pipeline.books.checkpoint import Checkpoint
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.ledger import BatchEntry, JoinLine, Ledger, Line, LookupLine, RunLine, SinkLine
from headrace.pipeline.declare.checks import check
from headrace.pipeline.declare.declaration import DeadLetters, Declaration, Trigger
from headrace.pipeline.declare.graph import read_graph
from headrace.pipeline.declare.reading import declared, read
from headrace.progress import SILENT, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from headrace.kafka import Topic
    from headrace.pipeline.books.dead_letters import Group, Letter, Wanted
    from headrace.pipeline.books.redrive import RedrivePlan, RedriveReport
    from headrace.pipeline.books.refresh import RebuildPlan
    from headrace.pipeline.books.rewind import Moved, RewindPlan
    from headrace.pipeline.books.status import PipelineStatus
    from headrace.pipeline.spark.run import Run
    from headrace.schemas import Registry


def _ignore(_: object) -> None:
    pass


@dataclass(frozen=True)
class RunObserver:
    """Callbacks for what happens during a run. They may be called from another thread."""

    #: Messages for a person: what the run waits for, what changed.
    say: Callable[[str], None] = _ignore
    #: Called after every batch.
    on_batch: Callable[[BatchEntry], None] = _ignore
    #: Called with the rows that a console sink shows.
    show: Callable[[str, list[dict[str, object]]], None] | None = None


@dataclass(frozen=True)
class RunReport:
    """The result of a run: its totals, its ledger by partition, and its ledger by sink."""

    run: RunLine
    ledger: tuple[Line, ...]
    sinks: tuple[SinkLine, ...] = ()
    #: The versions of what was looked up.
    lookups: tuple[LookupLine, ...] = ()
    joins: tuple[JoinLine, ...] = ()

    def __str__(self) -> str:
        outcomes = self.run.outcomes
        found = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items() if count)
        found += f" as {self.run.rows:,} rows" if self.run.rows != outcomes["written"] else ""
        return f"{self.run.read:,} read: {found or 'nothing'}; {'balanced' if self.run.balanced else 'NOT BALANCED'}"


class Pipeline:
    """One declared pipeline. Its files are in `home`, by default the `.headrace` beside headrace.toml."""

    def __init__(self, declaration: Declaration, home: Home | Path | str | None = None) -> None:
        check(declaration)
        self.declaration = declaration
        self.home = home if isinstance(home, Home) else Home.find(home, declaration.folder)
        self.folder = PipelineFolder(self.home, declaration.name)

    @classmethod
    def from_file(cls, file: Path | str, name: str, home: Home | Path | str | None = None) -> Pipeline:
        """The pipeline of that name in the file."""
        path = Path(file)
        return cls(read(path / FILE if path.is_dir() else path, name), home)

    @classmethod
    def all_of(cls, file: Path, home: Home) -> list[Pipeline]:
        """Every pipeline that the file declares."""
        return [cls.from_file(file, name, home) for name in cls.names(file)]

    @staticmethod
    def names(file: Path) -> tuple[str, ...]:
        """The names of the pipelines that the file declares."""
        return declared(file)

    @property
    def name(self) -> str:
        return self.declaration.name

    # -- running -------------------------------------------------------------------------------------------------------

    @contextmanager
    def session(self, master: str | None = None, progress: Progress = SILENT) -> Iterator[SparkSession]:
        """A Spark session with the settings of this pipeline; it is stopped at the end of the block."""
        with spark_session(self.home, master, progress, self.declaration.spark) as spark:
            yield spark

    def explain(
        self, spark: SparkSession | None = None, registry: Registry | str | None = None, *, progress: Progress = SILENT
    ) -> list[tuple[str, StructType]]:
        """The schema after each step. A mistake in the declaration is an error that names its line."""
        from headrace.pipeline.spark.check import unasked
        from headrace.pipeline.spark.run import Run
        from headrace.pipeline.spark.session import java_alive

        with self._given_or_new(spark, progress) as session, java_alive(), self._with_registry("", registry) as used:
            steps = Run(session, self.declaration, self.folder, Connection(""), used).prepare().check()
        for note in unasked(self.declaration):
            progress.say(note)
        return steps

    def export(self, folder: Path | str, spark: SparkSession | None = None, *, progress: Progress = SILENT) -> Path:
        """A plain PySpark job that does the same without headrace is in the folder; returns its file.

        Its header says how to run it and what is lost. What cannot be expressed so is an error that names its line.
        """
        from headrace.pipeline.spark.export import export
        from headrace.pipeline.spark.run import Run
        from headrace.pipeline.spark.session import java_alive

        with self._given_or_new(spark, progress) as session, java_alive():
            if not self.declaration.needs_registry:  # else it is refused anyway
                Run(session, self.declaration, self.folder, Connection(""), None).prepare().check()
            return export(session, self.declaration, self.dead_letter_queue, Path(folder))

    def run(
        self,
        where: HasBootstrap | str,
        *,
        once: bool = False,
        spark: SparkSession | None = None,
        registry: Registry | str | None = None,
        observer: RunObserver | None = None,
        retry_for_s: float | None = None,
    ) -> RunReport:
        """Process all records that are there now (`once`), or run until Ctrl-C, which ends after the current batch.

        Without `spark`, a session is started and stopped. `retry_for_s` is how long to wait for an unreachable Kafka or
        registry; None: forever.
        """
        observer = observer or RunObserver()
        with self._given_or_new(spark) as session:
            run = self.begin(session, where, registry, observer, once=once, retry_for_s=retry_for_s)
            try:
                run.wait()
            except KeyboardInterrupt:
                observer.say(
                    "stopping after the current batch; Ctrl-C again stops now, and the next run repeats the batch"
                )
                run.stop()
        return self.report(run.name)

    def begin(
        self,
        spark: SparkSession,
        where: HasBootstrap | str,
        registry: Registry | str | None = None,
        observer: RunObserver | None = None,
        *,
        once: bool = False,
        retry_for_s: float | None = None,
    ) -> Run:
        """Start a run on that session; the caller calls `wait` and `stop`."""
        from headrace.pipeline.spark.run import Run, RunOptions

        options = RunOptions(Trigger("once") if once else None, observer or RunObserver(), retry_for_s)
        used = self._registry(where, registry)
        run = Run(spark, self.declaration, self.folder, connect(where), used, options)
        if used is not None and used is not registry:
            run.close_behind(used)
        run.start()
        return run

    def start(
        self, where: HasBootstrap | str, *, registry: Registry | str | None = None, master: str | None = None
    ) -> bool:
        """Run in the background process of the home; return when it runs. False if it runs already."""
        from headrace.pipeline.background import Background

        if self.declaration.file is None:
            raise UsageError(f"{self.name} is not declared in a file", why="the background process reads it from there")
        if self.folder.is_locked:
            return False
        connection, used = connect(where), self._registry(where, registry)
        document = {
            "file": str(self.declaration.file.absolute()), "bootstrap": connection.bootstrap,
            "properties": dict(connection.properties), "registry": used.url if used else None, "master": master,
        }  # fmt: skip
        Background(self.home).start(self.name, document)
        return True

    def stop(self, *, timeout_s: float | None = None, now: bool = False) -> bool:
        """Stop it in the background after the current batch; with `now`, in the middle of it. False if it did not run.

        If the batch takes longer than `timeout_s` (5 minutes), `TimedOut` is raised; it still stops after the batch.
        """
        from headrace.pipeline.background import Background

        ran = bool(Background(self.home).stop(self.name, timeout_s=timeout_s, now=now))
        if not ran and self.folder.is_locked:
            raise Failed(
                f"{self.name} does not run in the background",
                why=self.folder.lock_file.read_text(encoding="utf-8") + " runs it",
                hint="Ctrl-C in its terminal",
            )
        return ran

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """`running`, `waiting`, or how the last run ended: `finished`, `stopped`, `failed`, `cut off`; `never run`."""
        state = str(self.folder.state.get("state", "never run"))
        return "cut off" if state == "running" and not self.folder.is_locked else state

    def status(
        self, where: HasBootstrap | str | None = None, *, extents: Mapping[str, Topic | None] | None = None
    ) -> PipelineStatus:
        """Progress and lag, whether it runs or not. Lag is unknown without a Kafka (`where`) or the topics' extents."""
        from headrace.pipeline.books.status import status

        connection = connect(where) if where is not None else None
        return status(connection, self.home, self.declaration, extents=extents)

    @property
    def ledger(self) -> Ledger:
        """What happened to every record, in all runs."""
        return Ledger(self.folder.root)

    def report(self, run: str) -> RunReport:
        """The report of the run of that name."""
        book = self.ledger
        return RunReport(
            book.run(run), tuple(book.lines(run)), tuple(book.sinks(run)), tuple(book.lookups(run)),
            tuple(book.joins(run)),
        )  # fmt: skip

    def kept_state(
        self, key: str | None = None, *, limit: int = 20, spark: SparkSession | None = None, progress: Progress = SILENT
    ) -> list[dict[str, Any]]:
        """What a join or a streaming aggregate keeps, as of the last batch: `of` which part, `key`, `value`.

        At most `limit` entries of each part; with `key`, those in whose key that value is.
        """
        from headrace.pipeline.spark.state import kept

        with self._given_or_new(spark, progress) as session:
            return list(kept(session, self.checkpoint, key, limit))

    # -- dead letters --------------------------------------------------------------------------------------------------

    @property
    def dead_letter_queue(self) -> DeadLetters:
        """The topic or the table of its dead letters."""
        return self.folder.dead_letters(self.declaration)

    def dead_letters(
        self,
        where: HasBootstrap | str,
        wanted: Wanted | None = None,
        *,
        samples: int = 3,
        registry: Registry | str | None = None,
    ) -> list[Group]:
        """Its dead letters by rule and reason, with samples and what is wrong with each."""
        from headrace.pipeline.books.dead_letters import summary
        from headrace.pipeline.books.diagnosis import diagnose

        found = self._letters(where, wanted)
        with self._with_registry(where, registry) as used:
            return summary(
                found, samples, lambda letter: diagnose(letter, self.declaration.of_topic(letter.topic), used)
            )

    def save_dead_letters(self, where: HasBootstrap | str, path: Path, wanted: Wanted | None = None) -> int:
        """Write them to a new file, to edit and send with `RedrivePlan(edit=path)`. Returns their number."""
        from headrace.pipeline.books.redrive import write_for_editing

        found = self._letters(where, wanted)
        try:
            with path.open("x", encoding="utf-8") as out:
                return write_for_editing(found, out)
        except FileExistsError:
            raise UsageError(f"{path} exists", why="it may hold your edits", hint="another name") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be written", why=str(error)) from None

    def redrive(
        self,
        where: HasBootstrap | str,
        wanted: Wanted | None = None,
        plan: RedrivePlan | None = None,
        *,
        registry: Registry | str | None = None,
        progress: Progress = SILENT,
    ) -> RedriveReport:
        """Send dead letters to their topics again, each once: all, or those that are `wanted`, as the plan says.

        With `plan.try_rules` Spark applies the current rules to them; the report's `outcomes` are the result.
        """
        from headrace.pipeline.books.redrive import RedrivePlan, redrive

        plan = plan or RedrivePlan()
        connection = connect(where)
        with ExitStack() as held:
            trial = None
            if plan.try_rules:
                from headrace.pipeline.spark.dry_run import DryRun
                from headrace.pipeline.spark.run import Run

                def prepare() -> Any:
                    spark = held.enter_context(self.session(progress=progress))
                    used = held.enter_context(self._with_registry(where, registry))
                    return Run(spark, self.declaration, self.folder, connection, used).prepare()

                trial = DryRun(prepare)
            report = redrive(connection, self._letters(where, wanted), plan, trial)
        if trial is not None:
            report.outcomes = sorted((*verdict, records) for verdict, records in trial.outcomes.items())
        return report

    def _letters(self, where: HasBootstrap | str, wanted: Wanted | None) -> Iterator[Letter]:
        from headrace.pipeline.books.dead_letters import Wanted, letters

        wanted, topics = wanted or Wanted(), self.declaration.all_topics
        for span in wanted.spans:
            if span.topic not in topics:
                raise UsageError(f"{self.name} does not read {span.topic}", hint=f"--at {topics[0]}/PARTITION/OFFSET")
        return letters(connect(where), self.dead_letter_queue, replace(wanted, pipeline=self.name))

    # -- the checkpoint ------------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Checkpoint:
        """Spark's progress, read without Spark. One that is not on this machine is an error."""
        return Checkpoint(self.folder.checkpoint(self.declaration))

    def plan_rewind(self, to: str, where: HasBootstrap | str | None = None) -> RewindPlan:
        """What `rewind` would do. `to`: beginning, end, batch:7, a time, or TOPIC:0=1500,…"""
        from headrace.pipeline.books.rewind import Target, plan_rewind

        connection = connect(where) if where is not None else None
        plan = plan_rewind(self.folder, self.declaration, Target.parse(to), connection)
        return replace(plan, consequences=(*plan.consequences, *self._touched())) if plan.again else plan

    def _touched(self) -> Iterator[str]:
        """What a rewind means for what is made from its rows."""
        touched = self.downstream
        pipelines = set(self.names(self.declaration.file)) if self.declaration.file else set()
        if readers := [name for name in touched if name in pipelines]:
            yield f"pipelines that read what it writes are not rewound, and meet its rows again: {', '.join(readers)}"
        if views := [name for name in touched if name not in pipelines]:
            yield f"views made from its tables follow at their next update: {', '.join(views)}"

    @property
    def downstream(self) -> list[str]:
        """The pipelines and views of its file that read its topics and tables, directly or by others."""
        if self.declaration.file is None:
            return []
        try:
            return read_graph(self.declaration.file, lenient=True).downstream(self.name)
        except ConfigError:  # a view that cannot be read is reported when it is to be updated
            return []

    def rewind(self, plan: RewindPlan) -> Moved:
        """Move its progress as planned; the old checkpoint is backed up."""
        from headrace.pipeline.books.rewind import rewind

        return rewind(self.folder, self.declaration, plan)

    def fork_checkpoint(self, new_name: str) -> Moved:
        """Let another pipeline, declared in the same file or not yet, continue from the offsets of this one."""
        from headrace.pipeline.books.rewind import fork

        new = None
        if self.declaration.file is not None:
            with suppress(NotFound):
                new = read(self.declaration.file, new_name)
        return fork(self.folder, self.declaration, PipelineFolder(self.home, new_name), new)

    def wipe_checkpoint(self) -> Moved:
        """Delete its progress: the next run begins at `start`. The old checkpoint is backed up."""
        from headrace.pipeline.books.rewind import wipe

        return wipe(self.folder, self.declaration)

    # -- making its tables again ---------------------------------------------------------------------------------------

    def plan_rebuild(self, where: HasBootstrap | str) -> RebuildPlan:
        """What `start_over` would do: which tables are emptied, and which records Kafka no longer has."""
        from headrace.pipeline.books.refresh import plan_rebuild
        from headrace.pipeline.spark.rebuild import plans

        self._check_sole_writer()
        return plan_rebuild(self.folder, self.declaration, connect(where), plans(self.declaration))

    def start_over(
        self,
        where: HasBootstrap | str,
        *,
        spark: SparkSession | None = None,
        registry: Registry | str | None = None,
        accept_loss: bool = False,
    ) -> list[str]:
        """Empty its tables and delete its progress: the next run makes them again from `start` on.

        Returns where the rows of before are. Records that Kafka no longer has are an error unless `accept_loss`.
        Cut off anywhere, it can be repeated, and no run goes on from there before that.
        """
        from headrace.pipeline.books.rewind import remove_progress
        from headrace.pipeline.spark.check import checked
        from headrace.pipeline.spark.rebuild import empty_tables
        from headrace.pipeline.spark.session import java_alive

        plan = self.plan_rebuild(where)
        if plan.gone and not accept_loss:
            raise Failed(
                f"Kafka no longer has {plan.lost:,} records that {self.name} has read",
                why=", ".join(map(str, plan.gone[:5])) + "; rows that were made from them could not be made again",
                hint="nothing was changed; --accept-loss makes the tables without them",
            )
        folder, declaration = self.folder, self.declaration
        with self._given_or_new(spark) as session, java_alive(), self._with_registry(where, registry) as used:
            columns = checked(session.newSession(), declaration, connect(where), used, declaration.trigger)[1]
            with folder.lock():
                kept = empty_tables(session, declaration, columns, folder, redeclared=self._redeclared)
                remove_progress(folder, declaration, seen=True)
                folder.refresh_file.unlink()
        return kept

    @property
    def _redeclared(self) -> bool:
        """Whether its rows are made otherwise than at the last run."""
        from headrace.pipeline.declare.changes import compare, document, remembered

        before = remembered(self.folder)
        changes = compare(before.declaration, document(self.declaration)) if before else []
        making = ("decode", "select", "lookup", "event_time", "join", "into")
        return any(change.field.startswith(making) for change in changes)

    def _check_sole_writer(self) -> None:
        """No other pipeline of the file writes a table of this one: its rows would be removed, too."""
        if self.declaration.file is None:
            return
        for tables in read_graph(self.declaration.file, lenient=True).tables.values():
            for table in tables:
                if self.name in table.writers and (others := [name for name in table.writers if name != self.name]):
                    raise UsageError(
                        f"the table {table.name} is written by {', '.join(others)} too",
                        why=f"a full refresh of {self.name} would remove rows that it cannot make again",
                        hint="a table of its own for each pipeline",
                    )

    # -- what these need -----------------------------------------------------------------------------------------------

    def _given_or_new(
        self, spark: SparkSession | None, progress: Progress = SILENT
    ) -> AbstractContextManager[SparkSession]:
        return self.session(progress=progress) if spark is None else nullcontext(spark)

    @contextmanager
    def _with_registry(self, where: object, given: Registry | str | None) -> Iterator[Registry | None]:
        """`_registry`, closed at the end of the block unless it is the caller's."""
        used = self._registry(where, given)
        try:
            yield used
        finally:
            if used is not None and used is not given:
                used.close()

    def _registry(self, where: object, given: Registry | str | None) -> Registry | None:
        """The given registry, else that of the cluster; None if the declaration needs none."""
        from headrace.schemas import Registry

        if not self.declaration.needs_registry:
            return None
        if isinstance(given, Registry):
            return given
        url = given
        if url is None:
            with suppress(HeadraceError):
                url = getattr(where, "registry", None)
        return Registry(url) if url else None


@contextmanager
def spark_session(
    home: Home, master: str | None = None, progress: Progress = SILENT, conf: Mapping[str, str] | None = None,
    folder: str = "spark",
) -> Iterator[SparkSession]:  # fmt: skip
    """A Spark session with the settings that every pipeline needs; its files are in the home.

    It is in the JVM of `headrace up --with spark` if that one is free and fits. A session in a `folder` of its own
    lasts longer, and has a JVM of its own.
    """
    from headrace.pipeline.spark.classify import SETTINGS
    from headrace.pipeline.spark.session import SessionSpec, start_spark, stop_spark

    home.create()
    spec = replace(
        SessionSpec.in_home(home, folder), master=master or "local[*]", conf={**SETTINGS, **(conf or {})},
        progress=progress, warm=home.node("spark") if folder == "spark" else None,
    )  # fmt: skip
    spark = start_spark(spec)
    try:
        yield spark
    finally:
        stop_spark()


def example(name: str) -> Path:
    """The headrace.toml of an example: inside the installed package, or beside the sources."""
    here = Path(__file__).parents[1]
    places = [here / "examples" / name / FILE, here.parents[1] / "examples" / name / FILE]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise SetupError(f"the example {name} was not found", why=f"searched {places[0]} and {places[1]}")
    return found
