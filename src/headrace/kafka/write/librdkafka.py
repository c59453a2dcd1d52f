"""librdkafka itself, called without a Python object per record.

Owns one `rd_kafka_t` of the library that confluent_kafka has already loaded, fed through
`rd_kafka_produce_batch` and read through its event queue: both move thousands of records per call,
while `Producer.produce()` and its callback cost about a microsecond of Python for each record.
It knows nothing of files, tallies or retries, and it never falls back by itself: `unusable_because`
says beforehand why this path cannot be taken (another ABI, a Python callback in the configuration,
a transaction), and the caller then uses confluent_kafka's own Producer.

The invariant: a record that `produce` did not return as refused is reported exactly once by
`reports`, acknowledged or undelivered. librdkafka copies the bytes on entry, so nothing here has to
outlive a call. Its own queue limit is off, because `rd_kafka_produce_batch` steps over a record that
does not fit and takes a smaller one behind it, which breaks the order: the caller bounds the queue.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import confluent_kafka
from confluent_kafka import cimpl

from headrace.kafka.client import refused_property

ANY_PARTITION = -1
NO_OFFSET = -1
UNLIMITED = {"queue.buffering.max.messages": "0", "queue.buffering.max.kbytes": "2147483647"}

_PRODUCER = 0
_EVENT_DR = 0x1
_EVENT_ERROR = 0x8
_COPY = 0x2
_PARTITION_PER_RECORD = 0x8
_PURGE_ALL = 0x1 | 0x2
_NOT_PERSISTED = 0
_ERROR_SIZE = 512


class _Message(ctypes.Structure):
    """`rd_kafka_message_t`, part of librdkafka's stable ABI since 0.8: nine 8-byte words on a 64-bit machine.

    Two of its members are 4 bytes wide (err, partition) and padded to 8, so an array of messages can be
    written as an array of 64-bit words, column by column (see `_WORDS`).
    """

    _fields_ = (
        ("err", ctypes.c_int32),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


_WORDS = 9
_ERR, _PARTITION, _PAYLOAD, _LEN, _KEY, _KEY_LEN = 0, 2, 3, 4, 5, 6
_LOW_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Records of one partition that the broker confirmed together; the offsets are -1 with acks=0."""

    partition: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Undelivered:
    """One record that was not acknowledged, whole, and why.

    `maybe_written`: it was sent, and the answer did not come in time. Sending it again may write it twice.
    """

    value: bytes | None
    key: bytes | None
    partition: int
    reason: str
    maybe_written: bool = False


Report = Acknowledged | Undelivered
TIMED_OUT = "Local: Message timed out"
# What librdkafka says of records that were given up, which leaves open what became of them.
_GIVEN_UP = {
    "Local: Purged in queue": "given up before it was sent",
    "Local: Purged in flight": "given up after it was sent: it may have been written or not",
}


def in_words(reason: str) -> str:
    """The reason why a record was not delivered, as a person wants to read it."""
    return _GIVEN_UP.get(reason, reason)


def unusable_because(config: Mapping[str, object]) -> str | None:
    """The reason why this path cannot serve `config` on this machine, or None when it can."""
    if ctypes.sizeof(_Message) != _WORDS * 8 or sys.byteorder != "little":
        return "this machine is not a 64-bit little-endian one"
    if "transactional.id" in config:
        return "a transaction is driven by confluent_kafka's Producer"
    for name, value in config.items():
        if callable(value) or not isinstance(value, str | int | float):
            return f"{name} is a Python object, which librdkafka cannot take as text"
    try:
        found = _library().rd_kafka_version()
    except (OSError, AttributeError) as error:
        return f"librdkafka cannot be called directly ({error})"
    expected = confluent_kafka.libversion()[1]
    if found != expected or found >> 24 != 2:
        return f"librdkafka {found:#x} is not the version {expected:#x} that confluent_kafka runs"
    return None


class NativeProducer:
    """A producer of one topic inside librdkafka, which takes lists and reports runs of records."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        self._lib = _library()
        self._rk = self._create({**config, **UNLIMITED})
        self._queue = self._lib.rd_kafka_queue_get_main(self._rk)
        self._topic = self._lib.rd_kafka_topic_new(self._rk, topic.encode(), None)
        self.last_error: str | None = None
        # rd_kafka_outq_len would do for a rough figure, but it counts waiting events besides records.
        self.pending = 0

    def produce(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        partition: int | Sequence[int] = ANY_PARTITION,
    ) -> list[Undelivered]:
        """Every record is in librdkafka's queue, except those returned, which it refused."""
        count = len(values)
        words = array("Q", bytes(8 * _WORDS * count))
        # Both buffers must live until the call returns: the words hold their addresses only.
        value_buffer = _fill(words, _PAYLOAD, _LEN, values)
        key_buffer = _fill(words, _KEY, _KEY_LEN, keys) if keys is not None else b""
        flags, one_partition = _COPY, ANY_PARTITION
        if isinstance(partition, int):
            one_partition = partition
        else:
            flags |= _PARTITION_PER_RECORD
            words[_PARTITION::_WORDS] = array("Q", [number & _LOW_WORD for number in partition])
        address = words.buffer_info()[0]
        taken = self._lib.rd_kafka_produce_batch(self._topic, one_partition, flags, address, count)
        self.pending += taken
        del value_buffer, key_buffer
        if taken == count:
            return []
        return self._refused(words, values, keys, partition)

    def reports(self, timeout_s: float) -> list[Report]:
        """What librdkafka has to say, waiting at most `timeout_s` for the first word of it."""
        found: list[Report] = []
        wait_ms = int(timeout_s * 1000)
        while event := self._lib.rd_kafka_queue_poll(self._queue, wait_ms):
            wait_ms = 0
            try:
                if self._lib.rd_kafka_event_type(event) == _EVENT_DR:
                    self.pending -= self._lib.rd_kafka_event_message_count(event)
                    found.extend(self._delivery(event))
                else:
                    self.last_error = self._event_error(event)
            finally:
                self._lib.rd_kafka_event_destroy(event)
        return found

    def purge(self) -> None:
        """Every record still pending will be reported as undelivered."""
        self._lib.rd_kafka_purge(self._rk, _PURGE_ALL)

    def close(self) -> None:
        """The client is gone, and with it whatever was still pending."""
        if self._rk:
            self._lib.rd_kafka_topic_destroy(self._topic)
            self._lib.rd_kafka_queue_destroy(self._queue)
            self._lib.rd_kafka_destroy(self._rk)
            self._rk = None

    def _create(self, config: Mapping[str, object]) -> Any:
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        conf = self._lib.rd_kafka_conf_new()
        for name, value in config.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self._lib.rd_kafka_conf_set(conf, name.encode(), text.encode(), error, _ERROR_SIZE):
                self._lib.rd_kafka_conf_destroy(conf)
                raise refused_property(_text(error.value))
        self._lib.rd_kafka_conf_set_events(conf, _EVENT_DR | _EVENT_ERROR)
        # librdkafka writes its log to stderr unless told otherwise, and the library never prints.
        self._lib.rd_kafka_conf_set_log_cb(conf, None)
        client = self._lib.rd_kafka_new(_PRODUCER, conf, error, _ERROR_SIZE)
        if not client:
            self._lib.rd_kafka_conf_destroy(conf)
            raise refused_property(_text(error.value))
        return client

    def _refused(
        self,
        words: array[int],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | Sequence[int],
    ) -> list[Undelivered]:
        refused = []
        for index, word in enumerate(words[_ERR::_WORDS]):
            if code := ctypes.c_int32(word & _LOW_WORD).value:
                key = keys[index] if keys is not None else None
                where = partition if isinstance(partition, int) else partition[index]
                refused.append(Undelivered(values[index], key, where, self._reason(code)))
        return refused

    def _delivery(self, event: int) -> Iterator[Report]:
        """One event holds the records of one produce request's batch: one partition, offsets in a row.

        So its first and last record tell about all of them. Should that not hold (a failure, acks=0,
        a broker that rejects single records, KIP-467), every record is looked at.
        """
        size = self._lib.rd_kafka_event_message_count(event)
        pointers = (ctypes.POINTER(_Message) * size)()
        count = self._lib.rd_kafka_event_message_array(event, pointers, size)
        if not count:
            return
        first, last = pointers[0].contents, pointers[count - 1].contents
        together = first.err == last.err == 0 and first.partition == last.partition
        if together and first.offset >= 0 and last.offset - first.offset == count - 1:
            yield Acknowledged(first.partition, count, first.offset, last.offset)
            return
        for pointer in pointers[:count]:
            yield self._report_one(pointer)

    def _report_one(self, pointer: Any) -> Report:
        message = pointer.contents
        if message.err == 0:
            offset = max(message.offset, NO_OFFSET)
            return Acknowledged(message.partition, 1, offset, offset)
        value = ctypes.string_at(message.payload, message.len) if message.payload else None
        key = ctypes.string_at(message.key, message.key_len) if message.key else None
        maybe = self._lib.rd_kafka_message_status(pointer) != _NOT_PERSISTED
        return Undelivered(value, key, message.partition, self._reason(message.err), maybe)

    def _reason(self, code: int) -> str:
        return in_words(_text(self._lib.rd_kafka_err2str(code)))

    def _event_error(self, event: int) -> str:
        return _text(self._lib.rd_kafka_event_error_string(event))


def _fill(words: array[int], address_column: int, size_column: int, parts: Sequence[bytes | None]) -> bytes:
    """The columns point into the returned buffer, which holds all parts; None is a null pointer."""
    present = cast(Sequence[bytes], parts)
    try:
        buffer = b"".join(present)
    except TypeError:  # a null among them; asking for it beforehand costs as much as joining
        present = [part or b"" for part in parts]
        buffer = b"".join(present)
    sizes = array("Q", map(len, present))
    start = ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0
    addresses = array("Q", accumulate(sizes, initial=start))
    addresses.pop()
    if present is not parts:
        for index, part in enumerate(parts):
            if part is None:
                addresses[index] = 0
    words[address_column::_WORDS] = addresses
    words[size_column::_WORDS] = sizes
    return buffer


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "rd_kafka_version": (ctypes.c_int, ()),
    "rd_kafka_err2str": (ctypes.c_char_p, (ctypes.c_int,)),
    "rd_kafka_conf_new": (ctypes.c_void_p, ()),
    "rd_kafka_conf_destroy": (None, (ctypes.c_void_p,)),
    "rd_kafka_conf_set": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
    ),
    "rd_kafka_conf_set_events": (None, (ctypes.c_void_p, ctypes.c_int)),
    "rd_kafka_conf_set_log_cb": (None, (ctypes.c_void_p, ctypes.c_void_p)),
    "rd_kafka_new": (
        ctypes.c_void_p,
        (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
    ),
    "rd_kafka_destroy": (None, (ctypes.c_void_p,)),
    "rd_kafka_topic_new": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)),
    "rd_kafka_topic_destroy": (None, (ctypes.c_void_p,)),
    "rd_kafka_queue_get_main": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "rd_kafka_queue_destroy": (None, (ctypes.c_void_p,)),
    "rd_kafka_queue_poll": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int)),
    "rd_kafka_event_type": (ctypes.c_int, (ctypes.c_void_p,)),
    "rd_kafka_event_destroy": (None, (ctypes.c_void_p,)),
    "rd_kafka_event_error_string": (ctypes.c_char_p, (ctypes.c_void_p,)),
    "rd_kafka_event_message_count": (ctypes.c_size_t, (ctypes.c_void_p,)),
    "rd_kafka_event_message_array": (
        ctypes.c_size_t,
        (ctypes.c_void_p, ctypes.POINTER(ctypes.POINTER(_Message)), ctypes.c_size_t),
    ),
    "rd_kafka_message_status": (ctypes.c_int, (ctypes.POINTER(_Message),)),
    "rd_kafka_produce_batch": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
    ),
    "rd_kafka_purge": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int)),
}


def _library() -> ctypes.CDLL:
    """librdkafka as confluent_kafka has loaded it: the extension module leads to the symbols it is linked to."""
    library = ctypes.CDLL(cimpl.__file__)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
