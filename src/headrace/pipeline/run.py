"""One run of a pipeline: a Spark query that takes batch after batch, and the account of each.

A batch is read and sorted out once and kept; whatever follows (counts, sinks, dead letters) looks at the kept rows.
Within a batch the order is: count, object (a rule with action `fail`), sinks, dead letters, ledger. Spark then commits
the batch; if anything fails or is killed before that, the whole batch is replayed, and what a sink has taken already it
does not take again.

When Kafka or the registry is away, at the start or later, the run waits, says so, and goes on from its checkpoint.
Everything else ends it; `failures.py` knows which is which.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.errors import Failed, HeadraceError, Unreachable
from headrace.home import write_json
from headrace.pipeline import aggregate, changes, failures, many, shared_tables, sinks, source, topics
from headrace.pipeline.counted import Counted
from headrace.pipeline.declaration import LETTERS, Declaration, Sink, Trigger
from headrace.pipeline.decode import decoder
from headrace.pipeline.flow import SETTINGS, Flow, in_words, nothing, placed
from headrace.pipeline.folder import PipelineFolder
from headrace.pipeline.ledger import BatchEntry, Ledger, SinkCount
from headrace.pipeline.session import java_alive

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from headrace.pipeline.small_batches import Relay
    from headrace.transport.client import Connection
    from headrace.transport.schemas import Registry

_ASK_EVERY_S = 1.0
_SILENCE_S = 5.0
_SOON_S = 0.1


@dataclass
class RunOptions:
    """How a run is to go, beside what is declared."""

    trigger: Trigger | None = None
    #: Words for a person: what the run waits for, what changed.
    say: Callable[[str], None] = lambda _: None
    #: Called after every batch.
    on_batch: Callable[[BatchEntry], None] = lambda _: None
    #: Called with the rows that a console sink shows.
    show: Callable[[str, list[dict[str, Any]]], None] | None = None
    #: How long to wait for a Kafka or a registry that is away; None: for ever.
    patience_s: float | None = None


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
        # A session of its own: settings of one pipeline are not those of its neighbour on the same driver.
        self.spark = spark.newSession()
        self.declaration = declaration
        self.folder = folder
        self.connection = connection
        self.registry = registry
        self.options = options or RunOptions()
        self.trigger = self.options.trigger or declaration.trigger
        self.name = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:4]
        self.ledger = Ledger(folder.root)
        self.dead_letters = folder.dead_letters(declaration)
        self.batches = 0
        self.error: HeadraceError | None = None
        self.query: StreamingQuery | None = None
        self._flow: Flow | None = None
        self._relay: Relay | None = None
        self.epoch = 0
        #: Of a realtime query: the partitions that are counted, and the last stretch that was.
        self.places: list[tuple[str, int]] = []
        self.last_stretch = -1
        self._ended_when_asked: int | None = None
        self._fresh = True
        #: When a batch was done, or those whom the run needs were asked whether they are there.
        self._heard_s = time.monotonic()
        self._cause: Exception | None = None
        self._stop = threading.Event()
        self._held = ExitStack()
        self._aside = ThreadPoolExecutor(1, f"dead letters of {declaration.name}")
        # Not the thread's own end: after a Ctrl-C in `join`, Python takes a running thread for ended.
        self._ended = threading.Event()

    # -- life --------------------------------------------------------------------------------------------------------

    def prepare(self) -> Flow:
        """Everything that can be wrong without a record being read has been looked at."""
        for name, value in {**SETTINGS, **self.declaration.spark}.items():
            with suppress(PySparkException):  # a setting of the whole session was given when it started
                self.spark.conf.set(name, value)
        source.check(self.spark, self.declaration, self.connection)
        flow, written = self._checked(self.declaration)
        self._check_many(flow)
        shared_tables.check(self.declaration, written, lambda other: self._checked(other)[1])
        return flow

    def _checked(self, declaration: Declaration) -> tuple[Flow, dict[str, StructType | None]]:
        """The flow of the declaration, and the columns of the tables that it writes."""
        flow = Flow(self.spark, declaration, decoder(self.spark, declaration, self.registry))
        steps = flow.check()
        identity = StructType.fromDDL("_topic string, _partition int, _offset long, _timestamp timestamp")
        rows = nothing(self.spark, StructType([*identity, *steps[-1][1]]))
        made = {id(sink): self._check_sink(declaration, sink, rows) for sink in declaration.sinks}
        flow.check_demands()
        return flow, {place: made[id(sink)] for place, sink in shared_tables.tables(declaration).items()}

    def _check_sink(self, declaration: Declaration, sink: Sink, rows: DataFrame) -> StructType | None:
        """The sink can take such rows, of which there is none; the columns that it writes, unless Python makes them."""
        at = declaration.path_of(sink)
        given = aggregate.taken(sink, rows, declaration) if sink.aggregate else rows
        with placed(declaration, *at, "where"):
            given = sinks.wanted(sink, given)
        with placed(declaration, *at, "select"):
            given = sinks.shape(sink, given)
        if sink.aggregate is not None:
            if sink.aggregate.step is not None:
                return None
            hint = "the aggregate sees the columns of this sink's select" if sink.select else None
            with placed(declaration, *at, "aggregate", hint=hint):
                given = aggregate.made(sink, given, declaration)
        with placed(declaration, *at, "partition_by"):
            given.select(*[F.col(f"`{name}`") for name in sink.partition_by])
        if sink.kind == "topic" and sink.format == "json":
            with placed(declaration, *at, "key"):
                sinks.as_records(sink, given)
        return sinks.without_identity(given).schema

    def _check_many(self, flow: Flow) -> None:
        """Rows are judged one by one where a batch is not looked at as a whole: a record must be one row there."""
        realtime, stateful = self.trigger.kind == "realtime", self.declaration.streaming_aggregate is not None
        loose = flow.loose_steps if realtime else ()
        what = flow.generator.text if flow.generator else f"the {loose[0]} function" if loose else None
        if what is None or not (realtime or stateful):
            return
        raise self.declaration.wrong(
            f"{what} may make several rows of a record, or none", "select" if flow.generator else loose[0],
            why=f"{'realtime' if realtime else 'an aggregate of mode watermark'} sees rows, not records: "
            "one that is set aside could not take the others of its record with it",
            hint='another trigger, as "1 second"' if realtime else 'mode = "merge" or mode = "recompute"',
        )  # fmt: skip

    def close_behind(self, registry: Registry) -> None:
        """The registry's connections are closed when the run has ended."""
        self._held.enter_context(registry)

    def start(self) -> None:
        """The run is under way, in a thread of its own; nobody else can run this pipeline meanwhile."""
        self._held.enter_context(self.folder.lock())
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
                state = self._lived()
        except HeadraceError as error:
            self.error, state = error, "failed"
        except Exception as error:
            self.error, state = Failed(f"pipeline {self.declaration.name} failed", why=in_words(error)), "failed"
        try:
            self.ledger.end(self.name, state, str(self.error) if self.error else None)
            self._say_state(state)
        finally:
            self._aside.shutdown()
            self._held.close()
            self._ended.set()

    def _lived(self) -> str:
        """The whole life of the run; how it ended."""
        self.ledger.prepare()
        self.ledger.begin(self.name, self.trigger.kind, self.spark.sparkContext.master)
        self.epoch = self.folder.epoch
        with suppress(_StopAsked):
            self._patiently(self._get_ready)
            self._say_state("running")
            self._go_on()
        wrong = self.ledger.run(self.name).unbalanced
        if wrong:
            raise Failed(f"the ledger of {self.declaration.name} does not balance", why=wrong[0])
        return "stopped" if self._stop.is_set() else "finished"

    def _get_ready(self) -> None:
        """All that the query needs is there, and whatever can be wrong beforehand was looked at."""
        self._require_answers()
        self._flow = self.prepare()
        self._compare()
        self._make_places()

    def _go_on(self) -> None:
        """The query, started again from its checkpoint as often as somebody was away."""
        while True:
            self._fresh = True
            self.query = self._start_query()
            try:
                self._watch(self.query)
            except PySparkException as error:
                if self._stop.is_set() and "_StopAsked" in str(error):
                    return
                cause, self._cause = self._cause or error, None
                if not failures.passes(cause):
                    raise failures.in_words(cause, self.declaration, self.folder, self.connection) from cause
                self.options.say(f"cut off: {failures.short(cause)}")
                self._patiently(self._require_answers)
                continue
            finally:
                with java_alive():
                    self.query.stop()
            return

    def _watch(self, query: StreamingQuery) -> None:
        while not query.awaitTermination(_SOON_S if self._stop.is_set() else 1):
            self._enter_stretches(query)
            if self._stop.is_set() and self._may_stop(query):
                query.stop()
            # Spark itself tries for minutes before it gives up, and says nothing meanwhile.
            if time.monotonic() - self._heard_s > _SILENCE_S and not self._stop.is_set():
                self._patiently(self._require_answers)
                self._patiently(lambda: failures.require_executors(self.spark))
                self._heard_s = time.monotonic()

    def _may_stop(self, query: StreamingQuery) -> bool:
        """Between two batches, where nothing has to be replayed; in real-time mode when another has just begun."""
        if self.trigger.kind != "realtime":
            status = query.status
            # While Kafka is away, Spark asks it for minutes what there is. A batch that begins after all does nothing.
            return not status["isTriggerActive"] or status["message"].startswith("Getting offsets")
        ended = query.lastProgress["batchId"] if query.lastProgress else -1
        if self._ended_when_asked is None:
            self._ended_when_asked = ended
        return bool(ended > self._ended_when_asked)

    def _enter_stretches(self, query: StreamingQuery) -> None:
        """Real-time mode has no batches of ours: it tells what it has done when a stretch of it ends."""
        if self.trigger.kind == "realtime":
            from headrace.pipeline import realtime

            for entry in realtime.entries(self, query):
                self.enter(entry)

    def _start_query(self) -> StreamingQuery:
        from headrace.pipeline import realtime, small_batches, watermark

        if self.trigger.kind == "realtime":
            return realtime.start(self)
        stream = self.read_stream()
        if self.declaration.streaming_aggregate is not None:
            return watermark.start(self, stream)
        if small_batches.fits(self.declaration, self.flow, self.folder.checkpoint(self.declaration)):
            self._relay = small_batches.Relay(self)
        return self.start_writer(stream.writeStream.foreachBatch(self.take))

    def read_stream(self, *, latency: bool = False) -> DataFrame:
        return source.stream(self.spark, self.declaration, self.connection, latency=latency)

    def start_writer(self, writer: Any) -> StreamingQuery:
        """The query of that writer, with our checkpoint, name and trigger."""
        if self.trigger.kind == "once":
            writer = writer.trigger(availableNow=True)
        elif self.trigger.kind == "every":
            writer = writer.trigger(processingTime=f"{self.trigger.seconds} seconds")
        checkpoint = self.folder.checkpoint(self.declaration)
        query: StreamingQuery = writer.option("checkpointLocation", checkpoint).queryName(self.declaration.name).start()
        return query

    # -- a batch -----------------------------------------------------------------------------------------------------

    @property
    def flow(self) -> Flow:
        assert self._flow is not None
        return self._flow

    def take(self, raw: DataFrame, number: int) -> None:
        """One batch: sorted out, counted, written, accounted for."""
        began = time.monotonic()
        batch = self.batch(raw.sparkSession, number)
        with self.culprit():
            carried = self._relay.carry(raw, batch) if self._relay else None
            entry = carried or self.process(raw, batch)
            entry.seconds = time.monotonic() - began
            self.enter(entry)

    @contextmanager
    def culprit(self) -> Iterator[None]:
        """What goes wrong in a batch is remembered as it was: Spark hands back a text that contains it somewhere."""
        try:
            yield
        except Exception as error:
            self._cause = error
            raise

    def batch(self, spark: SparkSession, number: int) -> sinks.Batch:
        """What sinks must know of the batch that begins; none begins after the run was asked to stop."""
        if self._stop.is_set():
            raise _StopAsked
        return sinks.Batch(
            spark=spark, declaration=self.declaration, number=number, run=self.name, writer=self._writer,
            connection=self.connection, registry=self.registry, replaying=self._fresh,
            tasks=self.tasks, show=self.options.show,
        )  # fmt: skip

    @property
    def _writer(self) -> str:
        """What sinks remember batches by: the checkpoint's own id, and how often it was rewound."""
        assert self.query is not None
        return f"headrace/{self.declaration.name}/{self.query.id}/{self.epoch}"

    @property
    def tasks(self) -> int:
        """Tasks that write to Kafka: few, and the same number for every batch of a checkpoint."""
        return 2

    def process(
        self, raw: DataFrame, batch: sinks.Batch, late: Column | None = None,
        look: Callable[[DataFrame], None] = lambda _: None,
    ) -> BatchEntry:  # fmt: skip
        """The sinks have the batch; the entry says what became of each record. `look` is shown the sorted-out rows."""
        delivered = Counted(raw)
        kept, entry = self._sorted_out(delivered.frame, batch, late)
        try:
            entry.delivered = delivered.rows
            self.complete(entry, raw)
            look(kept)
            self.finish(kept, entry, batch)
        finally:
            kept.unpersist()
        return entry

    def complete(self, entry: BatchEntry, raw: DataFrame) -> None:
        """Every record of the batch has an outcome; nothing was written yet, so nothing has to be taken back."""
        steps = self.flow.loose_steps
        if steps:
            self._fill_in(entry, many.delivered(raw), ", ".join(steps))
        if self.declaration.streaming_aggregate and entry.written_rows != entry.total("written"):
            raise Failed(
                f"{self.declaration.place(*steps[:1])}: the function made several rows of one record",
                why="an aggregate of mode watermark sees rows, not records; nothing of the batch was written",
                hint='mode = "merge" or mode = "recompute"',
            )
        if entry.delivered != entry.counted:
            raise Failed(
                f"{self.declaration.place(*steps[:1])}: batch {entry.batch} does not balance",
                why=f"{entry.delivered:,} records were read, {entry.counted:,} have an outcome; nothing was written",
                hint="a Python function must leave the columns that begin with an underscore as they are",
            )

    def _fill_in(self, entry: BatchEntry, read: list[Mapping[str, Any]], steps: str) -> None:
        """Records that a Python function left without a row are filtered, by that function."""
        entry.delivered = sum(row["records"] for row in read)
        for row in read:
            place = (row["topic"], row["partition"])
            left = row["records"] - entry.spans.get(place, (0, 0, 0))[2]
            if left > 0:
                entry.counts[(*place, "filtered", steps)] = entry.counts.get((*place, "filtered", steps), 0) + left
            entry.spans[place] = (row["first"], row["last"] + 1, row["records"])

    def finish(self, kept: DataFrame, entry: BatchEntry, batch: sinks.Batch) -> None:
        """Sinks and dead letters have their rows, side by side: each waits for the driver and for disks meanwhile."""
        self.object_to(entry)
        batch.expect(entry)
        buried = self._aside.submit(self.bury, kept, entry.total("dead") + entry.total("late"), batch)
        try:
            if batch.written:
                rows = kept.where("_outcome = 'written'")
                entry.sinks += [sinks.write(sink, rows, batch) for sink in self._row_sinks]
        finally:
            wait([buried])  # nothing of the batch may be under way when it is given up
        entry.sinks += buried.result()

    @property
    def _row_sinks(self) -> list[Any]:
        stateful = self.declaration.streaming_aggregate
        return [sink for sink in self.declaration.sinks if sink is not stateful]

    def _sorted_out(self, raw: DataFrame, batch: sinks.Batch, late: Column | None) -> tuple[DataFrame, BatchEntry]:
        """The batch with its outcomes, kept for all who look at it, and its counts."""
        while True:
            kept = self.flow.sort_out(raw, late).persist()
            try:
                entry = self.count(kept, batch)
                strange = entry.total("dead") and any(rule == "decode" for *_, rule in entry.counts)
                if not strange or not self.flow.decoder.learn(kept.where("_rule = 'decode'")):
                    break
            except BaseException:
                kept.unpersist()
                raise
            kept.unpersist()  # schemas were met for the first time: the same batch again, knowing them
        if self.flow.makes_many and entry.counted > entry.total("written") + entry.total("filtered"):
            whole = many.without_rest(kept).persist()
            whole.count()
            kept.unpersist()
            kept = whole
        if self.declaration.deduplicate is not None:
            from headrace.pipeline import duplicates

            return duplicates.set_aside(kept, batch, self)
        return kept, entry

    def count(self, kept: DataFrame, batch: sinks.Batch) -> BatchEntry:
        """What the batch holds, per partition, outcome and rule."""
        summed = many.sums(self.flow.demands.counts)
        rows = kept.withColumns(summed)
        records = many.by_record(rows, summed) if self.flow.makes_many else rows
        grouped = records.groupBy("_topic", "_partition", "_outcome", "_rule").agg(
            F.count(F.lit(1)).alias("records"), F.min("_offset").alias("first"), F.max("_offset").alias("last"),
            *[F.sum(name).alias(name) for name in summed],
        )  # fmt: skip
        return self.account((row.asDict() for row in grouped.collect()), batch)

    def account(self, groups: Iterable[Mapping[str, Any]], batch: sinks.Batch) -> BatchEntry:
        """The entry of the batch, from its records by partition, outcome and rule."""
        entry = BatchEntry(batch.number, self.epoch)
        for row in groups:
            place = (row["_topic"], row["_partition"])
            entry.counts[(*place, row["_outcome"], row["_rule"] or "")] = row["records"]
            entry.warnings += row["_warned"]
            if row["_outcome"] == "written" and self.flow.makes_many:
                entry.rows[place] = entry.rows.get(place, 0) + row["_rows"]
            for name in self.flow.demands.counts:
                wanted, rows = entry.wanted.get(name, (0, 0))
                entry.wanted[name] = wanted + row[f"{name}_wanted"], rows + row[f"{name}_rows"]
            first, after, records = entry.spans.get(place, (row["first"], 0, 0))
            entry.spans[place] = (min(first, row["first"]), max(after, row["last"] + 1), records + row["records"])
        return entry

    def object_to(self, entry: BatchEntry) -> None:
        """A rule with action `fail` that does not hold ends the run before anything of the batch is written."""
        broken = {rule: n for (_, _, outcome, rule), n in entry.counts.items() if outcome == "failed"}
        if broken:
            rule, records = next(iter(broken.items()))
            raise Failed(
                f"{self.declaration.place('expect', rule)}: expectation {rule!r} does not hold",
                why=f"for {records:,} records of batch {entry.batch}; its action is fail, so nothing of it was written",
                hint='mend the data or the rule; action = "dead" would set such records aside and go on',
            )

    def bury(self, kept: DataFrame, expected: int, batch: sinks.Batch) -> list[SinkCount]:
        """Dead and late records are where they can be found again."""
        if not expected:
            return []
        from headrace.pipeline import dead_letters
        from headrace.pipeline.delta_sink import write_delta
        from headrace.pipeline.kafka_sink import write_exactly_once

        rows = kept.where("_outcome in ('dead', 'late')")
        place = self.dead_letters
        if place.kind == "topic":
            letters = dead_letters.as_letters(rows, place.target, self.declaration.name, self.name)
            made = write_exactly_once(letters, batch.into(place.target))
            written = None if made.replayed else made.records
        else:
            letters = dead_letters.as_rows(rows, self.declaration.name, self.name)
            written = write_delta(place.target, letters, batch)
        return [SinkCount.of(LETTERS, expected, written)]

    def enter(self, entry: BatchEntry) -> None:
        """The batch is in the ledger, and whoever watches is told."""
        self.ledger.enter(self.name, entry)
        self.batches += 1
        self._fresh = False
        self._heard_s = time.monotonic()
        self._say_state("running", batch=entry.batch)
        self.options.on_batch(entry)

    # -- around it ---------------------------------------------------------------------------------------------------

    def _make_places(self) -> None:
        """Topics that are written to exist, and what exactly once needs."""
        from headrace.pipeline import kafka_sink

        topics.make(self.connection, self.declaration, self.dead_letters)
        to_kafka = self.dead_letters.kind == "topic" or any(sink.kind == "topic" for sink in self.declaration.sinks)
        if to_kafka and self.trigger.kind != "realtime":
            kafka_sink.prepare(self.connection)

    def _compare(self) -> None:
        """The checkpoint fits the declaration and the topics; what changed is told, and what is now is remembered."""
        found = failures.held(self.connection, self.declaration)
        failures.check_losses(self.declaration, self.folder, found)
        for change in changes.check_changes(self.folder, self.declaration):
            self.options.say(f"changed since the last run: {change}")
        changes.remember(self.folder, self.declaration, {t: extent.topic_id for t, extent in found.items() if extent})

    def _require_answers(self) -> None:
        """Kafka answers and has the topics; so does the registry, where there is need of one."""
        topics.require(self.connection, self.declaration)
        if self.registry is not None and self.declaration.needs_registry:
            self.registry.subjects()

    def _patiently(self, attempt: Callable[[], None]) -> None:
        """The attempt succeeded. While those whom it asks do not answer, it is repeated, and that is said once."""
        began, told = time.monotonic(), ""
        while not self._stop.is_set():
            try:
                attempt()
            except Unreachable as error:
                if self.options.patience_s is not None and time.monotonic() - began > self.options.patience_s:
                    raise
                if told != error.problem:
                    told = error.problem
                    self.options.say(f"waiting: {told} ({error.why})")
                    self._say_state("waiting", why=told)
                self._stop.wait(_ASK_EVERY_S)
            else:
                if told:
                    self.options.say("there is an answer again: going on")
                    self._say_state("running")
                return
        raise _StopAsked

    def _say_state(self, state: str, **more: Any) -> None:
        document = {
            "state": state, "run": self.name, "pid": os.getpid(), "at": time.time(), "batches": self.batches,
            "trigger": self.trigger.kind, "error": str(self.error) if self.error else None, **more,
        }  # fmt: skip
        write_json(self.folder.state_file, document)
