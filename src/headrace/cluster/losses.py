"""Are all acknowledged records still in a broker's files? Asked before the broker starts, without Kafka.

A broker notes for each partition up to where records are committed (the high watermark, in
`replication-offset-checkpoint`). A log that ends before that has lost acknowledged records: a file was cut off, or
removed. So has one whose segments do not follow each other without a gap, unless the gap was made by compaction. Kafka
itself says nothing about it when the broker was stopped cleanly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.cluster.segments import Segment, segments_in
from headrace.errors import HeadraceError


@dataclass(frozen=True)
class Loss:
    """Acknowledged records of a partition that one broker does not hold any more: from `first` to before `behind`."""

    broker: str
    partition: str
    first: int
    behind: int
    holders: tuple[str, ...]

    def __str__(self) -> str:
        elsewhere = f"{', '.join(self.holders)} still hold them" if self.holders else "no other broker holds them"
        return (
            f"{self.behind - self.first} acknowledged records of {self.partition} are gone from {self.broker}: offsets"
            f" {self.first} to {self.behind - 1}; {elsewhere}"
        )


def losses(broker: str, folders: Mapping[str, Path]) -> Iterator[Loss]:
    """What is missing on the broker. `folders` are the data folders of all brokers by name; those of it are at rest."""
    data = folders[broker]
    others = {name: folder for name, folder in folders.items() if name != broker}
    for partition, committed in _noted(data / "replication-offset-checkpoint").items():
        for first, behind in _gaps(data, partition, committed):
            # A topic that was just removed is noted for some seconds more.
            if (data / partition).is_dir() or any(_ends(folder / partition) for folder in others.values()):
                holders = tuple(name for name, folder in others.items() if not _gaps(folder, partition, committed))
                yield Loss(broker, partition, first, behind, holders)


def _noted(file: Path) -> dict[str, int]:
    """An offset for each partition by the name of its folder, as Kafka notes it; what is damaged says nothing."""
    found = {}
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()[2:]:
            with suppress(ValueError):
                topic, number, offset = line.rsplit(" ", 2)
                found[f"{topic}-{number}"] = int(offset)
    return found


def _gaps(data: Path, partition: str, committed: int) -> list[tuple[int, int]]:
    """The offsets below `committed` that are missing: where each gap begins, and what comes behind it."""
    ends = _ends(data / partition) or [(0, 0)]
    begins = [begin for begin, _ in ends[1:]]
    between = [(end, min(begin, committed)) for (_, end), begin in zip(ends[:-1], begins, strict=True)]
    gaps = [(end, begin) for end, begin in between if end < begin]
    if gaps and partition in _noted(data / "cleaner-offset-checkpoint"):
        gaps = []  # compaction has removed records
    return gaps + [(end, committed) for _, end in ends[-1:] if end < committed]


def _ends(folder: Path) -> list[tuple[int, int]]:
    """Where each segment begins, and the offset behind its last record that is whole."""
    try:
        return [(segment.base_offset, _end(segment)) for segment in segments_in(folder)]
    except (HeadraceError, OSError):
        return []


def _end(segment: Segment) -> int:
    try:
        return segment.next_offset
    except (HeadraceError, OSError, ValueError):
        return segment.base_offset
