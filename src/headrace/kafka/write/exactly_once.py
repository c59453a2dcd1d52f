"""Batches of records that are written once, however often the writing is tried.

A writer has a name, which is its transactional id. Its records and a mark that says which batch they were are sent in
one transaction. The mark lies in a compacted topic under the writer's name:

    headrace.batches    key: the transactional id    value: {"batch": 17, "records": 1000, "parts": 2}

The order makes it right: a new writer first initialises the id, which ends whatever an earlier one left open
and takes from it the power to commit (Kafka fences it), and then reads the last mark. From then on that mark can change
only by this writer's own commits: a batch up to the mark was written, a later one was not. Where a commit was asked for
and no answer came, the writer is closed; the next one to open finds out from the mark.

The mark is sent last, when the records have been acknowledged: an open transaction keeps readers from what follows it
in a partition, and others read their marks there too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import UsageError
from headrace.kafka.bounds import Place, Start, look_up
from headrace.kafka.client import Connection
from headrace.kafka.kafka import Kafka
from headrace.kafka.model import NewTopic
from headrace.kafka.ranges import records_between
from headrace.kafka.write.shaping import partition_of
from headrace.kafka.write.writer import Records, Writer, timeout_s

if TYPE_CHECKING:
    from headrace.kafka.client import Message

MARKS = "headrace.batches"
# Part of where a mark is found, so it never changes: with more partitions keys would move away from their marks.
_PARTITIONS = 12
_REPLICAS = 3
# What is not compacted yet is read whenever a writer is opened: small segments keep that short.
_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(4 << 20), "min.cleanable.dirty.ratio": "0.2"}


@dataclass(frozen=True)
class Mark:
    """The last batch that a writer has committed, how many records it had, and among how many writers it was shared."""

    batch: int
    records: int
    parts: int = 1


def prepare(connection: Connection) -> None:
    """The topic of the marks is there."""
    with Kafka(connection) as admin:
        replicas = min(_REPLICAS, len(admin.brokers()))
        admin.ensure_topic(NewTopic(MARKS, _PARTITIONS, replicas, _CONFIGS))
        found = len(admin.topic(MARKS).partitions)
    if found < _PARTITIONS:
        raise UsageError(
            f"topic {MARKS} has {found} partitions",
            why=f"writers look for their marks in {_PARTITIONS}",
            hint=f"headrace topic alter {MARKS} --partitions {_PARTITIONS}, before anything is written by pipelines",
        )


def settle(connection: Connection, names: Iterable[str]) -> None:
    """No writer of those names has an open transaction, if marks of some transaction are held up at all."""
    wanted = list(names)
    places = {(MARKS, _partition(name)) for name in wanted}
    stable = look_up(connection, places, Start("end"), "committed")
    if stable == look_up(connection, places, Start("end")):
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(partial(Writer, connection), wanted):
            pass


class MarkedWriter(Writer):
    """A writer that knows which batches it has committed."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        #: It is read after the initialising, not before: see above.
        self.mark = read_mark(connection, name)

    def has(self, batch: int) -> bool:
        """True if that batch was committed."""
        return self.mark is not None and self.mark.batch >= batch

    def commit_batch(self, mark: Mark) -> None:
        """The records are visible, and the mark says so."""
        self.flush()
        value = json.dumps(asdict(mark)).encode()
        places = [_partition(self.name)]
        self.send(Records([MARKS], [self.name.encode()], [value], None, lambda _: "a mark", places))
        self.commit()
        self.mark = mark


def read_mark(connection: Connection, name: str) -> Mark | None:
    """The last committed mark of the writer, None if there is none."""
    key, found = name.encode(), None
    for message in committed(connection, (MARKS, _partition(name))):
        if message.key() == key:
            found = message.value()
    if found is None:
        return None
    mark = json.loads(found)
    return Mark(int(mark["batch"]), int(mark["records"]), int(mark.get("parts", 1)))


def committed(connection: Connection, place: Place) -> Iterator[Message]:
    """Every committed record of the partition that is there now, as confluent-kafka's Messages.

    That is up to the high watermark, not just to where a transaction is open: what is looked for may lie behind it.
    """
    ends = look_up(connection, [place], Start("end"))
    return records_between(connection, {place: 0}, ends, "committed", timeout_s(connection))


def _partition(name: str) -> int:
    return partition_of(name.encode(), _PARTITIONS)
