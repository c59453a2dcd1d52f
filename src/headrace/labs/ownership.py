"""`Ownership`: who owns which partition of a group, asked again and again, and the picture of it over time.

The group's coordinator is asked, so it is the truth of the cluster, not what some member believes. A member is known by
its client id.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from headrace import Cluster, HeadraceError, Kafka
from headrace.labs.background import Poll
from headrace.labs.figures import COLOURS, GREY, Figure

#: The partitions of each member, by client id.
Owners = Mapping[str, tuple[int, ...]]


class Ownership(Poll):
    """Watches a group until the block is left."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        super().__init__(f"owners of {group}", every_s=0.15)
        self.seen: list[tuple[float, Owners]] = []
        self.marks: list[tuple[float, str]] = []
        self._kafka = Kafka(cluster)
        self._group = group

    def stop(self) -> None:
        super().stop()
        self._kafka.close()

    def poll(self) -> None:
        with suppress(HeadraceError):  # it does not exist yet, or its coordinator is moving
            members = self._kafka.groups.describe(self._group).members or ()
            owners = {member.client_id: tuple(p for _, p in sorted(member.partitions)) for member in members}
            self.seen.append((time.monotonic(), owners))

    @property
    def now(self) -> Owners:
        """Who owns what, as of the last poll."""
        return self.seen[-1][1] if self.seen else {}

    def mark(self, words: str) -> None:
        """Something happened just now."""
        self.marks.append((time.monotonic(), words))

    def draw(self, figure: Figure) -> None:
        """A band for each partition, coloured by its owner."""
        axes = figure.subplots()
        zero = self.seen[0][0]
        names = sorted({name for _, owners in self.seen for name in owners})
        colours = dict(zip(names, COLOURS, strict=False))
        for name, partition, begin, until in self._spans():
            axes.barh(partition, until - begin, left=begin - zero, height=0.62, color=colours[name], linewidth=0)
        for name in names:
            axes.barh(0, 0, color=colours[name], label=name)
        for at, words in self.marks:
            axes.axvline(at - zero, color=GREY, linestyle="--", linewidth=1)
            axes.annotate(words, (at - zero, 1.0), xycoords=("data", "axes fraction"), xytext=(3, 2),
                          textcoords="offset points", color=GREY, fontsize=8)  # fmt: skip
        axes.set_yticks(sorted({p for _, owners in self.seen for each in owners.values() for p in each}))
        axes.set_ylabel("partition")
        axes.set_xlabel("seconds")
        axes.grid(visible=False)
        figure.legend(ncols=len(names), loc="outside lower center")

    def _spans(self) -> Iterator[tuple[str, int, float, float]]:
        """Owner, partition, from when, until when: polls that saw the same are one."""
        since: dict[tuple[str, int], float] = {}
        for at, owners in self.seen:
            now = {(name, partition) for name, partitions in owners.items() for partition in partitions}
            for lost in [place for place in since if place not in now]:
                yield (*lost, since.pop(lost), at)
            since = {place: since.get(place, at) for place in now}
        for place, begin in since.items():
            yield (*place, begin, self.seen[-1][0])


def busy(owners: Owners) -> list[str]:
    """The members that own something."""
    return sorted(name for name, partitions in owners.items() if partitions)


def idle(owners: Owners) -> list[str]:
    """The members that own nothing."""
    return sorted(name for name, partitions in owners.items() if not partitions)


def covers(owners: Owners, partitions: Sequence[int]) -> bool:
    """True if each partition has exactly one owner."""
    return sorted(p for each in owners.values() for p in each) == sorted(partitions)
