"""One batch of a run, from the records to the entry in the ledger.

A batch is classified once and cached; counts, sinks and dead letters read the cached rows. The order is: count, rules
with action `fail`, sinks and dead letters. Spark commits the batch afterwards; if anything fails or is killed before
that, the whole batch is replayed, and a sink does not take again what it has taken already.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from pyspark.sql import Column, DataFrame

from headrace.errors import Failed
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.ledger import BatchEntry
from headrace.pipeline.declare.declaration import Declaration
from headrace.pipeline.spark import duplicates, outcomes
from headrace.pipeline.spark.classify import Classifier
from headrace.pipeline.spark.internals import Counted
from headrace.pipeline.spark.letters import write_dead_letters
from headrace.pipeline.spark.sinks import sinks


class BatchProcessor:
    """Classifies, counts and writes the batches of one run."""

    def __init__(self, declaration: Declaration, classifier: Classifier, folder: PipelineFolder) -> None:
        self.declaration = declaration
        self.classifier = classifier
        self.dead_letters = folder.dead_letters(declaration)
        self.epoch = folder.epoch
        self.sums = outcomes.sums(classifier.demands.counts)
        self._seen = str(folder.root / "seen")
        self._looked_up = folder.root / "lookups"
        self._aside = ThreadPoolExecutor(1, f"dead letters of {declaration.name}")

    def close(self) -> None:
        self._aside.shutdown()
        self.classifier.lookups.close()

    def beside(self, classifier: Classifier) -> BatchProcessor:
        """The same for the other side of a join."""
        other = copy.copy(self)
        other.declaration, other.classifier = classifier.declaration, classifier
        other.sums = outcomes.sums(classifier.demands.counts)
        return other

    def process(
        self, raw: DataFrame, batch: sinks.Batch, late: Column | None = None,
        inspect: Callable[[DataFrame], None] = lambda _: None,
    ) -> BatchEntry:  # fmt: skip
        """The sinks have the batch; the entry says what became of each record. `inspect` gets the classified rows."""
        versions = self.classifier.lookups.begin(batch, self._looked_up)
        delivered = Counted(raw)
        kept, entry = self._classified(delivered.frame, batch, late)
        try:
            entry.delivered, entry.lookups = delivered.rows, versions
            self.require_balance(entry, raw)
            inspect(kept)
            self._write(kept, entry, batch)
        finally:
            kept.unpersist()
        return entry

    def entry_of(self, groups: Iterable[Mapping[str, object]], batch: sinks.Batch) -> BatchEntry:
        """The entry of the batch, from its records by partition, outcome and rule."""
        entry = BatchEntry(batch.number, self.epoch)
        outcomes.fill(entry, groups, self.classifier.demands.counts, several=self.classifier.makes_many)
        return entry

    def require_balance(self, entry: BatchEntry, raw: DataFrame) -> None:
        """Every record of the batch has an outcome; nothing was written yet, so nothing has to be taken back."""
        steps = self.classifier.loose_steps
        if steps:
            outcomes.fill_filtered(entry, outcomes.delivered(raw), ", ".join(steps))
        streaming = self.declaration.streaming_aggregate
        if streaming and entry.written_rows != entry.total("written"):
            raise Failed(
                f"{self.declaration.place(*steps[:1])}: the function made several rows of one record",
                why=f"an aggregate of mode {streaming.mode} sees rows, not records; nothing was written",
                hint='mode = "merge" or mode = "recompute"',
            )
        if entry.delivered != entry.counted:
            raise Failed(
                f"{self.declaration.place(*steps[:1])}: batch {entry.batch} does not balance",
                why=f"{entry.delivered:,} records were read, {entry.counted:,} have an outcome; nothing was written",
                hint="a Python function must leave the columns that begin with an underscore as they are",
            )

    def fail_on_rules(self, entry: BatchEntry) -> None:
        """A rule with action `fail` that does not hold ends the run before anything of the batch is written."""
        broken = {rule: n for (_, _, outcome, rule), n in entry.counts.items() if outcome == "failed"}
        if broken:
            rule, records = next(iter(broken.items()))
            raise Failed(
                f"{self.declaration.place('expect', rule)}: expectation {rule!r} does not hold",
                why=f"for {records:,} records of batch {entry.batch}; its action is fail, so nothing of it was written",
                hint='correct the data or the rule; action = "dead" would set such records aside and go on',
            )

    def _classified(self, raw: DataFrame, batch: sinks.Batch, late: Column | None) -> tuple[DataFrame, BatchEntry]:
        """The batch with its outcomes, cached, and its counts."""
        while True:
            kept = self.classifier.classify(raw, late).persist()
            try:
                entry = self._count(kept, batch)
                undecoded = entry.total("dead") and any(rule == "decode" for *_, rule in entry.counts)
                if not undecoded or not self.classifier.decoder.learn(kept.where("_rule = 'decode'")):
                    break
            except BaseException:
                kept.unpersist()
                raise
            kept.unpersist()  # schemas were met for the first time: the same batch again, knowing them
        if self.classifier.makes_many and entry.counted > entry.total("written") + entry.total("filtered"):
            whole = outcomes.without_rest(kept).persist()
            whole.count()
            kept.unpersist()
            kept = whole
        return self._without_duplicates(kept, batch) if self.declaration.deduplicate else (kept, entry)

    def _without_duplicates(self, kept: DataFrame, batch: sinks.Batch) -> tuple[DataFrame, BatchEntry]:
        marked = duplicates.mark(kept, self._seen, batch).persist()
        entry = self._count(marked, batch)
        kept.unpersist()
        duplicates.remember(self._seen, marked, batch)
        return marked, entry

    def _count(self, kept: DataFrame, batch: sinks.Batch) -> BatchEntry:
        return self.entry_of(outcomes.count(kept, self.sums, several=self.classifier.makes_many), batch)

    def _write(self, kept: DataFrame, entry: BatchEntry, batch: sinks.Batch) -> None:
        """Sinks and dead letters have their rows, side by side: each waits for the driver and for disks meanwhile."""
        self.fail_on_rules(entry)
        batch.expect(entry)
        letters = entry.total("dead") + entry.total("late")
        letters_written = self._aside.submit(write_dead_letters, kept, letters, self.dead_letters, batch)
        try:
            if batch.written:
                rows, stateful = kept.where("_outcome = 'written'"), self.declaration.streaming_aggregate
                row_sinks = [sink for sink in self.declaration.sinks if sink is not stateful]
                entry.sinks += [sinks.write_sink(sink, rows, batch) for sink in row_sinks]
        finally:
            wait([letters_written])  # nothing of the batch may be under way when it is given up
        entry.sinks += letters_written.result()
