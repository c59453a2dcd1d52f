"""`Pipeline`: a declaration, and what can be done with it from Python.

pipeline = Pipeline.from_file("headrace.toml", "breadcrumbs")
run = pipeline.run(cluster, once=True)
print(run.ledger)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError, Unreachable
from headrace.home import FILE, Home
from headrace.pipeline import declaration as declarations
from headrace.pipeline.declaration import Declaration, Trigger
from headrace.pipeline.folder import PipelineFolder
from headrace.pipeline.ledger import Ledger, Line, RunLine, SinkLine
from headrace.progress import SILENT, Progress
from headrace.transport.client import Connection, HasBootstrap, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.run import Run, RunOptions
    from headrace.transport.schemas import Registry


@dataclass(frozen=True)
class RunReport:
    """How a run went: its totals, the lines of its ledger, and what it brought to each sink."""

    run: RunLine
    ledger: tuple[Line, ...]
    sinks: tuple[SinkLine, ...] = ()

    def __str__(self) -> str:
        outcomes = self.run.outcomes
        found = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items() if count)
        found += f" as {self.run.rows:,} rows" if self.run.rows != outcomes["written"] else ""
        return f"{self.run.read:,} read: {found or 'nothing'}; {'balanced' if self.run.balanced else 'NOT BALANCED'}"


class Pipeline:
    """One declared pipeline. What it keeps lies in `home`, by default the `.headrace` beside headrace.toml."""

    def __init__(self, declaration: Declaration, home: Home | Path | str | None = None) -> None:
        declarations.check(declaration)
        self.declaration = declaration
        self.home = home if isinstance(home, Home) else Home.find(home, declaration.folder)
        self.folder = PipelineFolder(self.home, declaration.name)

    @classmethod
    def from_file(cls, file: Path | str, name: str, home: Home | Path | str | None = None) -> Pipeline:
        """The pipeline of that name in the file."""
        path = Path(file)
        return cls(declarations.read(path / FILE if path.is_dir() else path, name), home)

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder.root)

    def run(
        self,
        where: HasBootstrap | str,
        *,
        once: bool = False,
        spark: SparkSession | None = None,
        registry: Registry | str | None = None,
        options: RunOptions | None = None,
    ) -> RunReport:
        """All that is there goes through (`once`), or the pipeline runs until it is interrupted.

        Without `spark` a session is started for it and stopped behind it.
        """
        from headrace.pipeline.run import RunOptions
        from headrace.pipeline.session import stop_spark

        options = options or RunOptions()
        if once:
            options = replace(options, trigger=Trigger("once"))
        session = spark or self.start_session()
        try:
            run = self.begin(session, where, registry, options)
            try:
                run.wait()
            except KeyboardInterrupt:
                run.stop()
            return self.report(run.name)
        finally:
            if spark is None:
                stop_spark()

    def begin(
        self,
        spark: SparkSession,
        where: HasBootstrap | str,
        registry: Registry | str | None = None,
        options: RunOptions | None = None,
    ) -> Run:
        """The pipeline runs on that session; `wait` and `stop` are the caller's."""
        from headrace.pipeline.run import Run

        asked = self._registry(where, registry)
        run = Run(spark, self.declaration, self.folder, connect(where), asked, options)
        if asked is not None and asked is not registry:
            run.close_behind(asked)
        run.start()
        return run

    def start_session(
        self, master: str | None = None, progress: Progress = SILENT, conf: Mapping[str, str] | None = None
    ) -> SparkSession:
        """A Spark session as this pipeline needs it."""
        return start_session(self.home, master, progress, {**self.declaration.spark, **(conf or {})})

    def explain(self, spark: SparkSession, registry: Registry | str | None = None) -> list[tuple[str, Any]]:
        """The schema after each step; what is wrong is told with its line."""
        from headrace.pipeline.run import Run
        from headrace.pipeline.session import java_alive

        with java_alive():
            run = Run(spark, self.declaration, self.folder, Connection(""), self._registry("", registry))
            return run.prepare().check()

    def report(self, run: str) -> RunReport:
        book = self.ledger
        return RunReport(book.run(run), tuple(book.lines(run)), tuple(book.sinks(run)))

    def _registry(self, where: Any, given: Registry | str | None) -> Registry | None:
        """The registry that was named, else that of a cluster which has one; none where there is no need of it."""
        from headrace.transport.schemas import Registry

        if not self.declaration.needs_registry:
            return None
        if isinstance(given, Registry):
            return given
        url = given
        if url is None:
            try:
                url = getattr(where, "registry", None)
            except Unreachable:
                url = None
            except Exception:
                url = None
        return Registry(url) if url else None


def start_session(
    home: Home, master: str | None = None, progress: Progress = SILENT, conf: Mapping[str, str] | None = None,
    folder: str = "spark",
) -> SparkSession:  # fmt: skip
    """A Spark session with the settings that every flow needs; its files lie in the home."""
    from headrace import config
    from headrace.pipeline.flow import SETTINGS
    from headrace.pipeline.session import SessionSpec, start_spark

    home.create()
    runtime = config.load(home.config_file).runtime
    spec = SessionSpec(
        home.root / folder, master or "local[*]", conf={**SETTINGS, **(conf or {})}, progress=progress,
        java_home=runtime.java_home, cache=runtime.cache, ivy_settings=runtime.ivy_settings,
    )  # fmt: skip
    return start_spark(spec)


def example(name: str) -> Path:
    """The headrace.toml of an example: inside the installed package, or beside the sources."""
    here = Path(__file__).parents[1]
    places = [here / "examples" / name / FILE, here.parents[1] / "examples" / name / FILE]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise SetupError(f"the example {name} was not found", why=f"looked at {places[0]} and {places[1]}")
    return found


def all_of(file: Path, home: Home) -> list[Pipeline]:
    """Every pipeline that the file declares."""
    return [Pipeline.from_file(file, name, home) for name in declarations.declared(file)]
