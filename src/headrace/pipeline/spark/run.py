"""One run of a pipeline: a Spark query that takes batch after batch, and its entries in the ledger.

A strategy (`strategies/`) starts the query and says what becomes of a batch; the run does what all of them share: it
holds the pipeline's lock, checks before it starts, records batches, and reports its state.

When Kafka, the registry or a database is unreachable, at the start or later, the run waits, reports that, and goes on
from its checkpoint. Every other failure ends it; `failures.py` knows which is which.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import Failed, HeadraceError, Unreachable, UsageError
from headrace.home import write_json
from headrace.pipeline.books.checkpoint import Checkpoint
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.ledger import BatchEntry, Ledger
from headrace.pipeline.declare import changes, topics
from headrace.pipeline.declare.declaration import Declaration, Trigger
from headrace.pipeline.pipeline import RunObserver
from headrace.pipeline.spark import check, failures
from headrace.pipeline.spark.classify import Classifier, message_of
from headrace.pipeline.spark.process import BatchProcessor
from headrace.pipeline.spark.session import java_alive
from headrace.pipeline.spark.sinks import sinks
from headrace.pipeline.spark.strategies import choose
from headrace.pipeline.spark.strategies.strategy import Process, RunContext, Strategy

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from headrace.kafka import Connection
    from headrace.schemas import Registry

_RETRY_EVERY_S = 1.0
_SILENCE_S = 5.0
_SOON_S = 0.1


@dataclass
class RunOptions:
    """How a run is to go, beside what is declared."""

    trigger: Trigger | None = None
    observer: RunObserver = field(default_factory=RunObserver)
    #: How long to wait for a Kafka or a registry that is unreachable; None: for ever.
    retry_for_s: float | None = None


class _StopAsked(Exception):
    """The run was asked to stop, and what comes next was not begun."""


class Run:
    """A pipeline at work. `start`, then `wait` or `stop`; used once."""

    def __init__(
        self,
        spark: SparkSession,
        declaration: Declaration,
        folder: PipelineFolder,
        connection: Connection,
        registry: Registry | None = None,
        options: RunOptions | None = None,
    ) -> None:
        # A session of its own: settings of one pipeline are not those of another one on the same driver.
        self.spark = spark.newSession()
        self.declaration = declaration
        self.folder = folder
        self.connection = connection
        self.registry = registry
        self.options = options or RunOptions()
        self.observer = self.options.observer
        self.trigger = self.options.trigger or declaration.trigger
        self.name = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:4]
        self.ledger = Ledger(folder.root)
        self.batches = 0
        self.error: HeadraceError | None = None
        self.query: StreamingQuery | None = None
        self._strategy: Strategy | None = None
        #: The first batch of a query may have been attempted by an earlier one.
        self._replaying = True
        #: When a batch was done, or Kafka and the registry were last asked.
        self._answered_s = time.monotonic()
        self._cause: Exception | None = None
        self._stop = threading.Event()
        self._closed_at_end = ExitStack()
        # Not the thread's own end: after a Ctrl-C in `join`, Python takes a running thread for ended.
        self._ended = threading.Event()

    # -- life --------------------------------------------------------------------------------------------------------

    def prepare(self) -> Classifier:
        """Everything that can be wrong without a record being read was checked."""
        return check.checked_classifier(self.spark, self.declaration, self.connection, self.registry, self.trigger)

    def close_behind(self, registry: Registry) -> None:
        """The registry's connections are closed when the run has ended."""
        self._closed_at_end.enter_context(registry)

    def start(self) -> None:
        """The run is under way, in a thread of its own; no other process can run this pipeline meanwhile."""
        self._closed_at_end.enter_context(self.folder.lock())
        threading.Thread(target=self._live, name=f"pipeline-{self.declaration.name}", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """True when the run has ended; its error is raised."""
        if not self._ended.wait(timeout_s):
            return False
        if self.error is not None:
            raise self.error
        return True

    def ask_to_stop(self) -> None:
        """The run will end after the batch at work; what was not begun is read the next time."""
        self._stop.set()

    def stop(self) -> None:
        """The run has ended, after the batch at work."""
        self.ask_to_stop()
        self._ended.wait()

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def _live(self) -> None:
        try:
            with java_alive():
                state = self._run()
        except HeadraceError as error:
            self.error, state = error, "failed"
        except Exception as error:
            self.error, state = Failed(f"pipeline {self.declaration.name} failed", why=message_of(error)), "failed"
        try:
            self.ledger.end(self.name, state, str(self.error) if self.error else None)
            self._write_state(state)
        finally:
            self._closed_at_end.close()
            self._ended.set()

    def _run(self) -> str:
        """The whole run; how it ended."""
        self.ledger.prepare()
        self.ledger.begin(self.name, self.trigger.kind, str(self.spark.sparkContext.master))
        with suppress(_StopAsked):
            self._retry(self._get_ready)
            self._write_state("running")
            self._run_queries()
        wrong = self.ledger.run(self.name).unbalanced
        if wrong:
            raise Failed(f"the ledger of {self.declaration.name} does not balance", why=wrong[0])
        return "stopped" if self._stop.is_set() else "finished"

    def _get_ready(self) -> None:
        """All that the query needs exists, and the declaration was checked."""
        if self.folder.refresh_file.is_file():
            raise Failed(
                f"a full refresh of {self.declaration.name} was cut off",
                why="its tables may be empty, and its checkpoint is that of before",
                hint=f"headrace pipeline refresh {self.declaration.name} --full",
            )
        self._require_answers()
        classifier = self.prepare()
        processor = BatchProcessor(classifier.declaration, classifier, self.folder)
        self._closed_at_end.callback(processor.close)
        self._compare()
        self._make_outputs(processor)
        self._strategy = choose(
            RunContext(
                spark=self.spark, declaration=self.declaration, connection=self.connection, processor=processor,
                trigger=self.trigger, run=self.name, checkpoint=self.folder.checkpoint(self.declaration),
                folder=self.folder.root, say=self.observer.say, each_batch=self._each_batch,
            )
        )  # fmt: skip

    @property
    def strategy(self) -> Strategy:
        assert self._strategy is not None
        return self._strategy

    def _run_queries(self) -> None:
        """The query, started again from its checkpoint whenever Kafka or the registry was unreachable."""
        while True:
            self._replaying = self._may_replay()
            self.query = self.strategy.start()
            try:
                self._watch(self.query)
            except PySparkException as error:
                if self._stop.is_set() and "_StopAsked" in str(error):
                    return
                cause, self._cause = self._cause or error, None
                if not failures.is_temporary(cause):
                    raise failures.describe(cause, self.declaration, self.folder, self.connection) from cause
                self.observer.say(f"cut off: {failures.one_line(cause)}")
                self._retry(self._require_answers)
                continue
            finally:
                with java_alive():
                    self.query.stop()
            return

    def _watch(self, query: StreamingQuery) -> None:
        # Its annotation says int; it takes fractions of a second.
        while not query.awaitTermination(_SOON_S if self._stop.is_set() else 1):  # type: ignore[arg-type]
            for entry in self.strategy.entries(query):
                self._record_batch(entry)
            if self._stop.is_set() and self.strategy.may_stop(query):
                query.stop()
            # Spark itself retries for minutes before it gives up, and reports nothing meanwhile.
            if time.monotonic() - self._answered_s > _SILENCE_S and not self._stop.is_set():
                self._retry(self._require_answers)
                self._retry(lambda: failures.require_executors(self.spark))
                self._answered_s = time.monotonic()
        self.strategy.ended(query)

    # -- a batch -----------------------------------------------------------------------------------------------------

    def _each_batch(self, process: Process) -> Callable[[DataFrame, int], None]:
        """What Spark calls with each batch: it is processed, and recorded."""

        def take(raw: DataFrame, number: int) -> None:
            began = time.monotonic()
            batch = self._begin(raw.sparkSession, number)
            try:
                entry = process(raw, batch)
                entry.seconds = time.monotonic() - began
                self._record_batch(entry)
            except Exception as error:
                # Spark gives back a text that contains it somewhere.
                self._cause = error
                raise

        return take

    def _begin(self, spark: SparkSession, number: int) -> sinks.Batch:
        """What sinks must know of the batch that begins; none begins after the run was asked to stop."""
        if self._stop.is_set():
            raise _StopAsked
        assert self.query is not None
        # Sinks know batches by the checkpoint's own id, and how often it was rewound.
        writer = f"headrace/{self.declaration.name}/{self.query.id}/{self.strategy.context.processor.epoch}"
        return sinks.Batch(
            spark=spark, declaration=self.declaration, number=number, run=self.name, writer=writer,
            connection=self.connection, registry=self.registry, replaying=self._replaying,
            tasks=sinks.TASKS, checkpoint=self.strategy.context.checkpoint, show=self.observer.show,
        )  # fmt: skip

    def _may_replay(self) -> bool:
        """Whether the first batch may have been attempted before: Spark plans a batch before it begins with it."""
        try:
            return Checkpoint(self.folder.checkpoint(self.declaration)).is_pending
        except UsageError:  # it is on another file system
            return True

    def _record_batch(self, entry: BatchEntry) -> None:
        """The batch is in the ledger and in the state, and was reported."""
        self.ledger.enter(self.name, entry)
        self.batches += 1
        self._replaying = False
        self._answered_s = time.monotonic()
        self._write_state("running", batch=entry.batch)
        self.observer.on_batch(entry)

    # -- around it ---------------------------------------------------------------------------------------------------

    def _make_outputs(self, processor: BatchProcessor) -> None:
        """Topics that are written to exist, and what exactly once needs."""
        topics.make(self.connection, self.declaration, processor.dead_letters)
        kinds = {sink.kind for sink in self.declaration.sinks}
        kinds |= {"topic"} if processor.dead_letters.kind == "topic" else set()
        if self.trigger.kind != "realtime":
            for kind in sorted(kinds):
                sinks.writer_of(kind).prepare(self.connection)

    def _compare(self) -> None:
        """The checkpoint fits the declaration and the topics; what changed is reported, and what is now is stored."""
        found = failures.topic_extents(self.connection, self.declaration)
        failures.check_losses(self.declaration, self.folder, found)
        for change in changes.check_changes(self.folder, self.declaration):
            self.observer.say(f"changed since the last run: {change}")
        changes.remember(self.folder, self.declaration, {t: extent.topic_id for t, extent in found.items() if extent})

    def _require_answers(self) -> None:
        """Kafka answers and has the topics; so do the registry and databases, if the pipeline needs them."""
        topics.require(self.connection, self.declaration)
        if self.registry is not None and self.declaration.needs_registry:
            self.registry.subjects()
        for sink in self.declaration.sinks:
            sinks.writer_of(sink.kind).require(self.declaration, sink)

    def _retry(self, attempt: Callable[[], None]) -> None:
        """The attempt succeeded. While Kafka or the registry is unreachable, it is retried, which is reported once."""
        began, reported = time.monotonic(), ""
        while not self._stop.is_set():
            try:
                attempt()
            except Unreachable as error:
                if self.options.retry_for_s is not None and time.monotonic() - began > self.options.retry_for_s:
                    raise
                if reported != error.problem:
                    reported = error.problem
                    self.observer.say(f"waiting: {reported} ({error.why})")
                    self._write_state("waiting", why=reported)
                self._stop.wait(_RETRY_EVERY_S)
            else:
                if reported:
                    self.observer.say("there is an answer again: going on")
                    self._write_state("running")
                return
        raise _StopAsked

    def _write_state(self, state: str, **more: object) -> None:
        document = {
            "state": state, "run": self.name, "pid": os.getpid(), "at": time.time(), "batches": self.batches,
            "trigger": self.trigger.kind, "error": str(self.error) if self.error else None, **more,
        }  # fmt: skip
        write_json(self.folder.state_file, document)
