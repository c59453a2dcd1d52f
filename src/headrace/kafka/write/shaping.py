"""How an input record becomes a Kafka record: its key, partition, topic, timestamp, headers and value.

Pure: nothing here reads a file or speaks to a broker. The common case, values as they came and one key for all, costs
nothing per record; whatever needs the record's fields is done on the parsed form that the reader hands over.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from headrace.errors import CodecError, Failed, UsageError
from headrace.kafka.client import kafka_python
from headrace.kafka.write.inputs import InputBatch, InputOptions, Place, RecordReader, field, key_bytes

if TYPE_CHECKING:
    from headrace.schemas import Codec

ANY_PARTITION = -1
OBJECTS_AT_ONCE = 1000

Source = str | Path | BinaryIO | Iterable[object]

#: A topic, and the partitions in it that are taken in turn; none: the partitioner decides.
Target = tuple[str, tuple[int, ...]]
#: Decides for a parsed record: a partition of the topic, or a topic and a partition.
RouteFunction = Callable[[object], int | tuple[str, int]]


@dataclass(frozen=True)
class Route:
    """A routing table: the value of a field decides on topic and partition. `*` stands for any other value."""

    field: str
    table: Mapping[str, Target]


@dataclass(frozen=True)
class Shaping:
    """What is wanted. The key comes from a field, is the same for all, or is drawn from a range."""

    key_field: str | None = None
    key: bytes | None = None
    random_key: tuple[int, int] | None = None
    partition: int | None = None
    route: Route | RouteFunction | None = None
    timestamp_field: str | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    value_fields: Sequence[str] = ()
    #: Each record is reported as it is sent: these fields of it, and its value.
    echo: Sequence[str] | None = None
    #: A value that is exactly this becomes null: a tombstone.
    null_value: bytes | None = None
    seed: int | None = None
    #: Write the value, and the key, as a schema says. A key that is a record has the record's fields of those names.
    value_codec: Codec | None = None
    key_codec: Codec | None = None

    @property
    def needs_fields(self) -> bool:
        """True if records must be parsed."""
        coded = self.value_codec or self.key_codec
        return bool(self.key_field or self.route or self.timestamp_field or self.value_fields or self.echo or coded)

    @property
    def rich(self) -> bool:
        """True if records carry more than key and value."""
        return bool(self.timestamp_field or self.headers)

    def check(self) -> None:
        """The wishes do not contradict each other."""
        keys = [name for name in ("key_field", "key", "random_key") if getattr(self, name) is not None]
        if len(keys) > 1:
            raise UsageError("a record can have only one key", why=f"given were {' and '.join(keys)}")
        if self.partition is not None and self.route:
            raise UsageError("a fixed partition and a route contradict each other", hint="give one of them")
        if self.value_codec and self.value_fields:
            raise UsageError("a schema and an array of fields contradict each other", hint="give one of them")
        if self.key_codec and not (keys or self.key_codec.field_names):
            raise UsageError(
                "the key's schema is not a record, so it has no fields to take from the record", hint="--key-field F"
            )


class Input:
    """Batches of records from a path, a stream or Python objects (`at_once` of them), behind those to skip."""

    def __init__(self, source: Source, options: InputOptions, shaping: Shaping, at_once: int = 1) -> None:
        self._source = source
        self._options = replace(options, parsed=options.parsed or shaping.needs_fields)
        self._at_once = at_once
        #: The shape of the file, once it is known.
        self.shape: str | None = None
        #: Pieces of the input that cannot be parsed as a record.
        self.bad = 0

    def __iter__(self) -> Iterator[InputBatch]:
        if not isinstance(self._source, (str, Path)) and not hasattr(self._source, "read"):
            self.shape = "objects"
            return self._object_batches(self._source)
        return self._read(self._source)  # type: ignore[arg-type] # it has `read`

    def _read(self, source: str | Path | BinaryIO) -> Iterator[InputBatch]:
        with RecordReader(source, self._options) as reader:
            self.shape = str(reader.shape)
            try:
                yield from reader
            finally:
                self.bad = reader.bad

    def _object_batches(self, objects: Iterable[object]) -> Iterator[InputBatch]:
        number = self._options.skip
        left = itertools.islice(objects, number, None)
        while taken := list(itertools.islice(left, self._at_once)):
            yield InputBatch([encode_value(one) for one in taken], Place("line", number + 1), taken)  # type: ignore[misc]
            number += len(taken)


@dataclass
class Outgoing:
    """Records for one topic, column by column."""

    topic: str
    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    partition: int | list[int] = ANY_PARTITION
    timestamps_ms: list[int] | None = None
    headers: list[Sequence[tuple[str, bytes]]] | None = None
    echoes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, begin: int, end: int) -> Outgoing:
        """The records from `begin` up to `end`."""
        if begin == 0 and end >= len(self):
            return self
        cut = slice(begin, end)
        return Outgoing(
            self.topic,
            self.values[cut],
            self.keys[cut] if self.keys is not None else None,
            self.partition if isinstance(self.partition, int) else self.partition[cut],
            self.timestamps_ms[cut] if self.timestamps_ms is not None else None,
            self.headers[cut] if self.headers is not None else None,
            self.echoes[cut] if self.echoes is not None else None,
        )


class Dealer:
    """Deals records without a key out to the partitions in turn, in runs."""

    LONGEST_RUN = 500

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._next = 0

    def deal(self, count: int, *, one_by_one: bool = False) -> list[int]:
        """A partition for each of `count` records; where the last call ended, this one goes on."""
        run = 1 if one_by_one else max(1, min(self.LONGEST_RUN, -(-count // self.partitions)))
        dealt: list[int] = []
        while len(dealt) < count:
            dealt += [self._next] * min(run, count - len(dealt))
            self._next = (self._next + 1) % self.partitions
        return dealt


class Shaper:
    """Shapes batch after batch; the random keys and turns go on from one to the next."""

    def __init__(self, wanted: Shaping, topic: str) -> None:
        wanted.check()
        self.wanted = wanted
        self.topic = topic
        self._random = random.Random(wanted.seed)  # noqa: S311 - a draw of keys, not of secrets
        self._turns: dict[str, Iterator[int]] = {}

    def shape(self, batch: InputBatch) -> Iterator[Outgoing]:
        """The batch as Kafka records, split by topic where a route says so; order within a topic is kept."""
        wanted, objects = self.wanted, batch.objects or []
        values = self._values(batch)
        count = len(values)
        whole = Outgoing(
            self.topic,
            values,
            self._keys(objects, count, batch.text),
            ANY_PARTITION if wanted.partition is None else wanted.partition,
            [timestamp_ms(field(o, wanted.timestamp_field)) for o in objects] if wanted.timestamp_field else None,
            [wanted.headers] * count if wanted.headers else None,
            self._echoes(objects, values) if wanted.echo is not None else None,
        )
        if wanted.route is None:
            yield whole
        else:
            yield from self._routed(whole, objects)

    def shape_fitting(self, batch: InputBatch, reject: Callable[[InputBatch, Failed], None]) -> Iterator[Outgoing]:
        """The batch as Kafka records; each that cannot be shaped is handed to `reject`, alone, with the reason."""
        try:
            shaped = list(self.shape(batch))
        except Failed as error:
            if len(batch.values) == 1:
                reject(batch, error)
                return
            middle = len(batch.values) // 2
            yield from self.shape_fitting(batch.part(0, middle), reject)
            yield from self.shape_fitting(batch.part(middle, len(batch.values)), reject)
            return
        yield from shaped

    def _values(self, batch: InputBatch) -> list[bytes | None]:
        wanted = self.wanted
        values: list[bytes | None] = list(batch.values)
        if wanted.value_fields:
            names = wanted.value_fields
            values = [encode_value([field(o, name) for name in names]) for o in batch.objects or []]
        if wanted.null_value is not None:
            values = [None if value == wanted.null_value else value for value in values]
        if wanted.value_codec:
            rows = [None if value is None else row for value, row in zip(values, batch.objects or [], strict=True)]
            return _encoded(wanted.value_codec, rows, batch.text)
        return values

    def _keys(self, objects: Sequence[object], count: int, text: bool) -> list[bytes | None] | None:
        wanted = self.wanted
        if wanted.key_codec:
            return _encoded(wanted.key_codec, self._key_objects(objects, count), text, "key: ")
        if wanted.key_field:
            return [key_bytes(field(o, wanted.key_field)) for o in objects]
        if wanted.key is not None:
            return [wanted.key] * count
        if wanted.random_key:
            low, high = wanted.random_key
            return [str(self._random.randint(low, high)).encode() for _ in range(count)]
        return None

    def _echoes(self, objects: Sequence[object], values: Sequence[bytes | None]) -> list[str]:
        """A line for each record: the wanted fields of what came in, then the value that is sent."""
        names = self.wanted.echo or ()
        shown = [[str(field(record, name)) for name in names] for record in objects] or [[] for _ in values]
        return [
            " ".join([*fields, "null" if value is None else value.decode(errors="replace")])
            for fields, value in zip(shown, values, strict=True)
        ]

    def _key_objects(self, objects: Sequence[object], count: int) -> list[object]:
        wanted = self.wanted
        if wanted.key_field:
            return [field(o, wanted.key_field) for o in objects]
        if wanted.key is not None:
            return [_json_or_text(wanted.key)] * count
        if wanted.random_key:
            return [self._random.randint(*wanted.random_key) for _ in range(count)]
        names = (wanted.key_codec and wanted.key_codec.field_names) or ()
        return [{name: o[name] for name in names if name in o} if isinstance(o, dict) else o for o in objects]

    def _routed(self, whole: Outgoing, objects: Sequence[object]) -> Iterator[Outgoing]:
        places: dict[str, list[int]] = {}
        partitions: list[int] = []
        for at, record in enumerate(objects):
            topic, partition = self._target(record)
            places.setdefault(topic, []).append(at)
            partitions.append(partition)
        for topic, rows in places.items():
            yield Outgoing(
                topic,
                [whole.values[at] for at in rows],
                [whole.keys[at] for at in rows] if whole.keys is not None else None,
                [partitions[at] for at in rows],
                [whole.timestamps_ms[at] for at in rows] if whole.timestamps_ms is not None else None,
                [whole.headers[at] for at in rows] if whole.headers is not None else None,
                [whole.echoes[at] for at in rows] if whole.echoes is not None else None,
            )

    def _target(self, record: object) -> tuple[str, int]:
        route = self.wanted.route
        if not isinstance(route, Route):
            decided = route(record) if route else ANY_PARTITION
            return decided if isinstance(decided, tuple) else (self.topic, int(decided))
        value = str(field(record, route.field))
        target = route.table.get(value) or route.table.get("*")
        if target is None:
            raise Failed(
                f"the route has no entry for {route.field} = {value!r}",
                why=f"it has {', '.join(route.table)}",
                hint="add an entry for it, or *=TOPIC for all the others",
            )
        topic, partitions = target
        if not partitions:
            return topic, ANY_PARTITION
        turn = self._turns.setdefault(value if value in route.table else "*", itertools.cycle(partitions))
        return topic, next(turn)


def _encoded(codec: Codec, objects: Sequence[object], text: bool, what: str = "") -> list[bytes | None]:
    """The objects as their schema says, null as null; the first that does not fit is raised."""
    given = [o for o in objects if o is not None]
    encoded = codec.encode_many(given, text=text)
    for data in encoded:
        if isinstance(data, CodecError):
            data.problem = what + data.problem
            raise data
    fitting: Iterator[Any] = iter(encoded)
    return [None if o is None else next(fitting) for o in objects]


def _json_or_text(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return data.decode(errors="replace")


def parse_route(text: str, topic: str) -> Route | RouteFunction:
    """`class:setosa=iris/1,versicolor=iris/0+1,*=rest`, or `file.py:function`."""
    if re.fullmatch(r".+\.py:\w+", text):
        return _function_in(text)
    name, colon, rest = text.partition(":")
    entries = [entry.partition("=") for entry in rest.split(",") if entry]
    if not colon or not entries or not all(equals for _, equals, _ in entries):
        raise UsageError(
            f"invalid route: {text!r}",
            hint="FIELD:VALUE=TOPIC/PARTITION,…  as in class:setosa=iris/1,versicolor=iris/0+1  or FILE.py:FUNCTION",
        )
    return Route(name, {value: parse_target(target, topic) for value, _, target in entries})


def parse_target(text: str, default_topic: str) -> Target:
    """`TOPIC`, `TOPIC/1` or `TOPIC/0+1`."""
    topic, slash, partitions = text.partition("/")
    try:
        return topic or default_topic, tuple(int(p) for p in partitions.split("+")) if slash else ()
    except ValueError:
        raise UsageError(f"invalid topic and partition: {text!r}", hint="TOPIC, TOPIC/1 or TOPIC/0+1") from None


def _function_in(text: str) -> RouteFunction:
    path, _, name = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("headrace_route", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UsageError(f"the route file {path} does not exist")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: RouteFunction | None = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function {name!r}")
    return function


def timestamp_ms(value: Any) -> int:
    """Milliseconds since 1970: from seconds, milliseconds or ISO 8601 text (UTC unless it says otherwise)."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        pass
    else:
        # Seconds reach 1e11 in the year 5138; milliseconds passed it in 1973.
        return int(number if abs(number) >= 1e11 else number * 1000)
    try:
        when = datetime.fromisoformat(str(value))
    except ValueError:
        raise Failed(f"invalid time: {value!r}", hint="seconds or milliseconds since 1970, or ISO 8601") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def encode_value(value: object) -> bytes | None:
    """A Python object as a record's value: bytes and text as they are, None as a tombstone, the rest as JSON.

    NumPy scalars and arrays serialise like the numbers and lists they hold.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: object) -> Any:
    """NumPy's and pandas' objects know their plain Python form."""
    for method in ("tolist", "item", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise UsageError(f"a {type(value).__name__} cannot be sent as JSON", hint="send bytes, text or plain objects")


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that every record with this key goes to, in a topic of so many partitions.

    It is murmur2 modulo the number of partitions for Java's clients, Spark and, with `partitioner=murmur2_random`,
    librdkafka, whose default (CRC32) is another.
    """
    if partitions < 1:
        raise UsageError(f"a topic cannot have {partitions} partitions", hint="name an existing topic")
    return int((kafka_python().partitioner.murmur2(key) & 0x7FFFFFFF) % partitions)
