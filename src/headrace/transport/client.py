"""How to reach a Kafka: the address, the client properties, and the house defaults of every client.

The defaults are few, and each has a reason: `partitioner=murmur2_random` sends a key to the partition where Java and
Spark send it too; short reconnect times let a client follow a fail-over within a second instead of ten.
Native librdkafka properties pass through untouched and win over the defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import ConfigError, Unreachable, UsageError

_log = logging.getLogger("headrace.kafka")
# librdkafka writes to standard error unless it is given a logger; whoever wants its words turns this one on.
_log.addHandler(logging.NullHandler())
_log.propagate = False

_EVERY_CLIENT: Mapping[str, Any] = {
    "client.id": "headrace",
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 100,
    # A leader that hangs refuses nothing: without asking, a client would wait for it and not notice that another leads.
    "topic.metadata.refresh.interval.ms": 2000,
    "socket.connection.setup.timeout.ms": 5000,
    "allow.auto.create.topics": False,
}
PRODUCER_DEFAULTS: Mapping[str, Any] = {
    "partitioner": "murmur2_random",
    "acks": "all",
    "enable.idempotence": True,
}


class HasBootstrap(Protocol):
    """Anything with an address: a `Cluster`, a `Connection`."""

    @property
    def bootstrap(self) -> str: ...


@dataclass(frozen=True)
class Connection:
    """An address, and the client properties that go with it."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def settings(self, *more: Mapping[str, Any]) -> dict[str, Any]:
        """The librdkafka settings of a client: house defaults, then the user's, then the caller's."""
        merged: dict[str, Any] = {**_EVERY_CLIENT, **self.properties}
        for given in more:
            merged.update(given)
        return {**merged, "bootstrap.servers": self.bootstrap}

    def producer(self, settings: Mapping[str, Any] | None = None) -> Any:
        """A confluent-kafka Producer."""
        from confluent_kafka import Producer

        return make(Producer, {**PRODUCER_DEFAULTS, **self.settings(settings or {})})

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        """A confluent-kafka Consumer."""
        from confluent_kafka import Consumer

        return make(Consumer, self.settings(settings))


def make(kind: Any, settings: Mapping[str, Any]) -> Any:
    """A client of that kind; a property that librdkafka refuses is a usage error with its words."""
    from confluent_kafka import KafkaException

    try:
        return kind(dict(settings), logger=_log)
    except KafkaException as refused:
        raise UsageError(
            "a client property was refused",
            why=refused.args[0].str(),
            hint="native librdkafka names are expected: --set name=value, or the file given with -F",
        ) from None


def connect(where: HasBootstrap | str) -> Connection:
    """The connection meant by a cluster, a connection or an address."""
    if isinstance(where, Connection):
        return where
    return Connection(where if isinstance(where, str) else where.bootstrap)


def read_properties(path: Path) -> dict[str, str]:
    """A librdkafka properties file: `name=value` lines, `#` comments."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the properties file {path} cannot be read", why=error.strerror) from None
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            raise ConfigError(f"{path}, line {number}: no '=' in {stripped[:60]!r}", hint="name=value is expected")
        properties[name.strip()] = value.strip()
    return properties


def unreachable(bootstrap: str, why: str) -> Unreachable:
    return Unreachable(
        f"no Kafka answers at {bootstrap}",
        why=why,
        hint="headrace up starts a cluster here; headrace status shows what runs; --bootstrap names another",
    )
