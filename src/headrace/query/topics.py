"""A topic as a source of SQL: its records up to the ends at the start, streamed, with the fields of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, NotFound
from headrace.kafka.read import Batch, ConsumeOptions, headers_of, reading
from headrace.query.fields import UNDECODED, Decoder, Row, declared_decoder, registered_decoder
from headrace.schemas import VALUE_HEADER
from headrace.tables import Stream
from headrace.text import plural

if TYPE_CHECKING:
    import threading

    import pyarrow as pa

    from headrace.kafka import Connection
    from headrace.pipeline import Decode
    from headrace.schemas import Registry


@dataclass
class Notes:
    """What the user should know about the sources of a query, each thing once."""

    lines: dict[str, str] = field(default_factory=dict)

    def say(self, about: str, text: str) -> None:
        self.lines[about] = text


def decoder_of(
    topic: str, declared: tuple[Decode, Path] | None, registry: Registry | None, notes: Notes
) -> Decoder | None:
    """How the values of the topic become columns; None if nothing is known about them."""
    try:
        found = declared_decoder(*declared, topic, registry) if declared is not None else None
        return registered_decoder(registry, f"{topic}-value") if found is None and registry is not None else found
    except NotFound:
        return None
    except HeadraceError as error:
        why = f" ({error.why})" if error.why else ""
        notes.say(f"decoder of {topic}", f"topic {topic} is read without its fields: {error.problem}{why}")
        return None


class TopicSource:
    """One topic, ready to be scanned any number of times, each time up to the same ends."""

    def __init__(
        self, connection: Connection, topic: str, decoder: Decoder | None, stopped: threading.Event, notes: Notes
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._decoder = decoder
        self._stopped = stopped
        self._notes = notes
        self._undecoded = 0
        self._ends = self._reading().ends
        #: The columns: the record's own, then the fields of its value.
        self.schema = _schema(decoder)

    def narrow(self, wanted: set[str] | None) -> None:
        """Only these columns are made (None: all); if none of them is a field, nothing is decoded."""
        if wanted is None:
            return
        kept = [field for field in self.schema if field.name.lower() in wanted] or [self.schema.field(1)]
        if self._decoder is not None and not {field.name for field in kept} & set(self._decoder.schema.names):
            self._decoder = None
        self.schema = self.schema.empty_table().select([field.name for field in kept]).schema

    @property
    def stream(self) -> Stream:
        return Stream(self.schema, self._batches)

    def _reading(self) -> Any:
        made = reading(self._connection, [self._topic], options=ConsumeOptions(on_bad="skip"))
        made.stopping = self._stopped  # whoever ends the query ends the reading
        return made

    def _batches(self) -> Iterator[pa.RecordBatch]:
        made, undecoded = self._reading(), 0
        made.ends = self._ends
        for batch in made.batches():
            columns, failed = self._columns(batch)
            undecoded += failed
            # A query may scan the topic several times, and some scans only in part.
            self._undecoded = max(self._undecoded, undecoded)
            self._report(made.report.damaged)
            yield columns

    def _report(self, damaged: Sequence[Any]) -> None:
        if self._undecoded:
            count = plural(self._undecoded, "record")
            words = f"{count} of topic {self._topic} could not be decoded: their fields are null"
            self._notes.say(f"fields of {self._topic}", words)
        if damaged:
            words = f"damaged batches were left out: {'; '.join(map(str, damaged[:3]))}"
            self._notes.say(f"damage of {self._topic}", f"{words}, {len(damaged)} in all" if damaged[3:] else words)

    def _columns(self, batch: Batch) -> tuple[pa.RecordBatch, int]:
        import pyarrow as pa

        messages = batch.messages
        rows: list[Row] = []
        if self._decoder is not None:
            ids = [next((data for name, data in headers_of(m) if name == VALUE_HEADER), None) for m in messages]
            rows = self._decoder.rows([message.value() for message in messages], ids)
        fields = set(self._decoder.schema.names) if self._decoder else set()

        def values(name: str) -> list[Any]:
            if name in fields:
                return [row.get(name) if isinstance(row, dict) else None for row in rows]
            return [_OWN[name.removeprefix("_")](message) for message in messages]

        columns = [pa.array(values(field.name), field.type) for field in self.schema]
        return pa.record_batch(columns, schema=self.schema), sum(row is UNDECODED for row in rows)


#: What every record has.
_OWN: dict[str, Callable[[Any], Any]] = {
    "topic": methodcaller("topic"),
    "partition": methodcaller("partition"),
    "offset": methodcaller("offset"),
    "timestamp": lambda message: at if (at := message.timestamp()[1]) >= 0 else None,
    "key": methodcaller("key"),
    "value": methodcaller("value"),
    "headers": lambda message: [{"name": name, "value": value} for name, value in headers_of(message)],
}


def _schema(decoder: Decoder | None) -> pa.Schema:
    """The record's own columns, then the fields. A field of the same name makes them `_offset` and the like."""
    import pyarrow as pa

    fields = list(decoder.schema) if decoder else []
    taken = {field.name.lower() for field in fields}
    headers = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.timestamp("ms", "UTC"), pa.binary(), pa.binary(), headers)
    own = [(f"_{name}" if name in taken else name, kind) for name, kind in zip(_OWN, kinds, strict=True)]
    return pa.schema([*(pa.field(*pair) for pair in own), *fields])
