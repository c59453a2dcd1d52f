"""Are all acknowledged records still in a broker's files? Asked before the broker starts, without Kafka.

A broker notes for each partition up to where records are committed (the high watermark, in
`replication-offset-checkpoint`). A log that ends before that has lost acknowledged records: a file was cut off, or
removed. Kafka itself says nothing about it when the broker was stopped cleanly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.cluster.segments import segments_in
from headrace.errors import HeadraceError


@dataclass(frozen=True)
class Loss:
    """A partition whose log on one broker ends before what was acknowledged."""

    broker: str
    partition: str
    end: int
    committed: int
    holders: tuple[str, ...]

    def __str__(self) -> str:
        elsewhere = f"{', '.join(self.holders)} still hold them" if self.holders else "no other broker holds them"
        return (
            f"{self.committed - self.end} acknowledged records of {self.partition} are gone from {self.broker}: its log"
            f" ends at offset {self.end}, {self.committed} were committed; {elsewhere}"
        )


def losses(broker: str, folders: Mapping[str, Path]) -> Iterator[Loss]:
    """What is missing on the broker. `folders` are the data folders of all brokers by name; those of it are at rest."""
    data = folders[broker]
    for partition, committed in _committed(data / "replication-offset-checkpoint"):
        end = _end(data / partition)
        if end >= committed:
            continue
        others = {name: _end(folder / partition) for name, folder in folders.items() if name != broker}
        # A topic that was just removed is noted for some seconds more.
        if (data / partition).is_dir() or any(others.values()):
            holders = tuple(name for name, other in others.items() if other >= committed)
            yield Loss(broker, partition, end, committed, holders)


def _committed(file: Path) -> Iterator[tuple[str, int]]:
    """The high watermark of each partition by the name of its folder; none if the file says none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()[2:]
    except OSError:
        return
    for line in lines:
        topic, number, offset = line.rsplit(" ", 2)
        yield f"{topic}-{number}", int(offset)


def _end(folder: Path) -> int:
    """The offset behind the last record that is whole."""
    try:
        return max((segment.next_offset for segment in segments_in(folder)[-1:]), default=0)
    except (HeadraceError, OSError, ValueError):
        return 0
