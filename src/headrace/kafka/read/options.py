"""What a reading is asked for and what it tells: options, batches, and the report of who read what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headrace.errors import UsageError
from headrace.kafka.bounds import Isolation, Place, Start, Until
from headrace.kafka.read.records import Filter, Record

if TYPE_CHECKING:
    from headrace.kafka.client import Message
    from headrace.kafka.read.records import MaybeDecoded
    from headrace.schemas import Codec


@dataclass(frozen=True)
class ConsumeOptions:
    """How to read. Without a group nothing is committed and every partition is read."""

    group: str | None = None
    start: Start | None = None
    until: Until = field(default_factory=lambda: Until("end"))
    partitions: Sequence[int] = ()
    filter: Filter = field(default_factory=Filter)
    isolation: Isolation = "committed"
    protocol: Literal["classic", "consumer"] = "classic"
    members: int = 1
    settings: Mapping[str, object] = field(default_factory=dict)
    #: Read values, and keys, as their schemas say.
    value_codec: Codec | None = None
    key_codec: Codec | None = None
    #: A batch whose bytes are damaged ends the reading, or is left out and counted.
    on_bad: Literal["stop", "skip"] = "stop"
    #: Called when the last record was handed on; with it nothing is committed before it has returned.
    on_finish: Callable[[], None] | None = None
    #: Called when a member is given partitions or gives them up, on that member's thread.
    on_ownership: Callable[[OwnershipEvent], None] | None = None

    def check(self) -> None:
        """The wishes do not contradict each other."""
        if self.start and self.start.kind == "committed" and not self.group:
            raise UsageError("only a group has committed offsets", hint="--group NAME, or --from beginning")
        if self.members < 1:
            raise UsageError(f"invalid number of members: {self.members}")
        if self.members > 1 and not self.group:
            raise UsageError("several members need a group to share the partitions", hint="--group NAME")
        if self.members > 1 and self.on_finish:
            raise UsageError("a file of this format can be written by one member only", hint="--members 1")
        if self.members > 1 and self.partitions:
            raise UsageError("chosen partitions can be read by one member only", hint="--members 1, or no --partition")


@dataclass
class Span:
    """What one member read of one partition."""

    records: int = 0
    first_offset: int = -1
    last_offset: int = -1


@dataclass(frozen=True)
class OwnershipEvent:
    """A member was given partitions, or gave them up, at a time."""

    at: float
    member: int
    what: Literal["assigned", "revoked", "lost"]
    places: tuple[Place, ...]


@dataclass(frozen=True)
class DamagedBatch:
    """Records that cannot be read, because the bytes of their batch are not those that were written."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}, offsets {self.first_offset} to {self.last_offset}"


@dataclass
class ConsumeReport:
    """What was read and handed on, by whom, and who owned what when."""

    read: int = 0
    matched: int = 0
    bytes: int = 0
    #: From the start to the end, and to the last record: the rest was spent waiting for more.
    seconds: float = 0.0
    seconds_to_last: float = 0.0
    spans: dict[tuple[int, str, int], Span] = field(default_factory=dict)
    ownership: list[OwnershipEvent] = field(default_factory=list)
    #: Keys and values that their codec could not read, and the first few of them in words.
    undecodable: int = 0
    undecodable_samples: list[str] = field(default_factory=list)
    #: Batches that were left out (`on_bad="skip"`).
    damaged: list[DamagedBatch] = field(default_factory=list)
    #: What the user should know, such as records that expired before this group read them.
    notes: list[str] = field(default_factory=list)

    @property
    def records_per_second(self) -> float:
        return self.read / max(self.seconds_to_last, 0.001)


@dataclass
class Batch:
    """Messages that one member read, in order within each partition."""

    member: int
    messages: list[Message]
    #: What the codecs of the reading made of values and keys, in the same order.
    decoded: list[MaybeDecoded] | None = None
    decoded_keys: list[MaybeDecoded] | None = None

    @property
    def with_codec(self) -> bool:
        return self.decoded is not None or self.decoded_keys is not None

    def parts(self) -> Iterator[tuple[Message, MaybeDecoded, MaybeDecoded]]:
        """Each message with its decoded value and key, None where there is no codec."""
        nothing: list[MaybeDecoded] = [None] * len(self.messages)
        return zip(self.messages, self.decoded or nothing, self.decoded_keys or nothing, strict=True)

    def records(self) -> Iterator[Record]:
        return (Record.of(message, self.member, value, key) for message, value, key in self.parts())
