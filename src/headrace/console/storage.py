"""What a topic is on disk: its segments and the batches in them, of a cluster on this machine; else its batches only.

Files are read where they lie (`cluster.segments`). Of a Kafka elsewhere the batches are looked at as they travel: their
headers say codec, producer and size, but not what they would be without compression.
"""

from __future__ import annotations

import msgspec

from headrace.cluster import Segment, removals
from headrace.console.backend import Backend
from headrace.errors import Failed, NotFound
from headrace.kafka import BatchHeader, Topic

_MOST_BATCHES = 200
# Of so many batches the plain size is looked at, which means to unpack them.
_UNPACKED = 40


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A segment: a log file and the indexes beside it. `removed_at_ms` is when retention may remove it."""

    partition: int
    file: str
    base_offset: int
    next_offset: int
    size_bytes: int
    index_bytes: int
    last_timestamp_ms: int | None
    active: bool
    removed_by: str | None = None
    removed_at_ms: int | None = None


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch: what is stored and sent as one. `plain_bytes` is its size without compression, where that is known."""

    base_offset: int
    last_offset: int
    records: int
    size_bytes: int
    codec: str
    plain_bytes: int | None
    producer_id: int | None
    producer_epoch: int | None
    transactional: bool
    control: bool
    first_timestamp_ms: int

    @property
    def bytes_per_record(self) -> float | None:
        return self.size_bytes / self.records if self.records else None

    @property
    def ratio(self) -> float | None:
        return self.plain_bytes / self.size_bytes if self.plain_bytes else None


def segments(backend: Backend, topic: str, described: Topic, partition: int) -> list[SegmentView]:
    """The segments of a partition, the leader's or those of the first replica that has any."""
    found = _stored_segments(backend, topic, partition)
    limits = [_whole(described, name) for name in ("retention.ms", "retention.bytes")]
    policy = described.configs["cleanup.policy"].value or ""
    gone = {r.segment.base_offset: r for r in (removals(found, *limits) if "delete" in policy else ())}
    views = []
    for at, segment in enumerate(found):
        removal = gone.get(segment.base_offset)
        views.append(
            SegmentView(
                partition=partition,
                file=segment.log.name,
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                size_bytes=segment.size_bytes,
                index_bytes=_index_bytes(segment),
                last_timestamp_ms=segment.largest_timestamp_ms,
                active=at == len(found) - 1,
                removed_by=removal.by if removal else None,
                removed_at_ms=removal.at_ms if removal else None,
            )
        )
    return views


def batches(backend: Backend, topic: str, partition: int, base_offset: int) -> list[BatchView]:
    """The first batches of the segment with that base offset."""
    segment = next((s for s in _stored_segments(backend, topic, partition) if s.base_offset == base_offset), None)
    if segment is None:
        raise NotFound(f"there is no segment {base_offset} of {topic}/{partition}", why="it may have been removed")
    views: list[BatchView] = []
    for batch in segment.batches():
        plain = segment.plain_bytes(batch) if len(views) < _UNPACKED else None
        views.append(_view(batch, plain))
        if len(views) == _MOST_BATCHES:
            break
    return views


def travelling_batches(backend: Backend, topic: str, partition: int) -> list[BatchView]:
    """The newest batches of a partition, as a broker sends them."""
    headers = backend.browser.batches(topic, partition)[-_MOST_BATCHES:]
    return [_view(header, header.size_bytes if header.codec == "none" else None) for header in headers]


def has_files(backend: Backend) -> bool:
    return backend.target.cluster is not None


def _stored_segments(backend: Backend, topic: str, partition: int) -> list[Segment]:
    cluster = backend.target.cluster
    view = backend.now.topics.get(topic)
    place = next((p for p in (view.partitions if view else ()) if p.partition == partition), None)
    if cluster is None or place is None:
        raise NotFound(f"there is no partition {partition} of {topic} on this machine")
    stored = cluster.segments(topic, partition)
    for broker in sorted(place.replicas, key=lambda broker: broker != place.leader):
        if (broker, partition) in stored:
            return stored[broker, partition]
    raise Failed(f"no broker of this machine has {topic}/{partition} on its disk")


def _whole(described: Topic, name: str) -> int:
    value = described.configs[name].value if name in described.configs else None
    return int(value) if value and value.lstrip("-").isdecimal() else -1


def _index_bytes(segment: Segment) -> int:
    """What the indexes take on disk: they are made with 10 MB of nothing, so their length says little."""
    files = (segment.log.with_suffix(suffix) for suffix in (".index", ".timeindex", ".txnindex"))
    return sum(file.stat().st_blocks * 512 for file in files if file.exists())


def _view(batch: BatchHeader, plain: int | None) -> BatchView:
    return BatchView(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        records=batch.records,
        size_bytes=batch.size_bytes,
        codec=batch.codec,
        plain_bytes=plain,
        producer_id=batch.producer_id if batch.producer_id >= 0 else None,
        producer_epoch=batch.producer_epoch if batch.producer_id >= 0 else None,
        transactional=batch.transactional,
        control=batch.control,
        first_timestamp_ms=batch.first_timestamp_ms,
    )
