"""How to reach a Kafka: the address, the client properties, the defaults of every client, and the two admin clients.

The defaults are few, and each has a reason: `partitioner=murmur2_random` sends a key to the partition where Java and
Spark send it too; short reconnect times let a client follow a fail-over within a second instead of ten.
Native librdkafka properties pass through untouched and win over the defaults.

Of the admin clients, confluent-kafka answers what it can, because it is fast to import and to connect; kafka-python
answers the requests that librdkafka does not support: metadata quorum, log directories, eligible leaders. A broker
that is down or silent delays no answer; what a broker refuses is raised as a headrace error with the broker's words.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from headrace.errors import ConfigError, Failed, HeadraceError, Unreachable, UsageError
from headrace.kafka.model import ConfigValue

if TYPE_CHECKING:
    from concurrent.futures import Future

    import confluent_kafka
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource

    class Message(confluent_kafka.Message):
        """A record that was read or delivered: it has a place, where confluent-kafka's types allow for none."""

        def topic(self) -> str: ...
        def partition(self) -> int: ...
        def offset(self) -> int: ...

    class Consumer(confluent_kafka.Consumer):
        """A consumer whose Messages have places."""

        def poll(self, timeout: float = -1) -> Message | None: ...
        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]: ...  # type: ignore[override]
        def commit(  # type: ignore[override]
            self,
            message: Message | None = None,
            offsets: list[confluent_kafka.TopicPartition] | None = None,
            asynchronous: bool = True,
        ) -> list[confluent_kafka.TopicPartition] | None: ...

    class Producer(confluent_kafka.Producer):
        """A producer that reports Messages with places."""

        def produce(
            self,
            topic: str,
            value: str | bytes | None = None,
            key: str | bytes | None = None,
            partition: int = -1,
            callback: Callable[[KafkaError | None, Message], None] | None = None,
            on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
            timestamp: int = 0,
            headers: Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None = None,
        ) -> None: ...


K = TypeVar("K")
T = TypeVar("T")

_log = logging.getLogger("headrace.kafka")
# librdkafka writes to standard error unless it is given a logger; whoever wants its words turns this one on.
_log.addHandler(logging.NullHandler())
_log.propagate = False

_EVERY_CLIENT: Mapping[str, object] = {
    "client.id": "headrace",
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 100,
    # A leader that hangs refuses nothing: without asking, a client would wait for it and not notice that another leads.
    "topic.metadata.refresh.interval.ms": 2000,
    "socket.connection.setup.timeout.ms": 5000,
    "allow.auto.create.topics": False,
}
PRODUCER_DEFAULTS: Mapping[str, object] = {
    "partitioner": "murmur2_random",
    "acks": "all",
    "enable.idempotence": True,
}

# A live broker answers within milliseconds; one that has not after this long is paused, dying or cut off.
BROKER_TIMEOUT_S = 3.0

#: Written at every start to prove that the cluster takes writes; not the user's, so not shown among theirs.
PROBE_TOPIC = "__headrace_probe"

# kafka-python knows the same things under other names.
_FOR_KAFKA_PYTHON = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}

# The numbers of Kafka's DescribeConfigs response.
_SOURCES = {
    0: "unknown",
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default",
    4: "server.properties",
    5: "default",
    6: "dynamic broker logger",
}
# Brokers count these two in hours and so name no synonym from which their default could be read.
_WEEK_MS = str(7 * 24 * 3600 * 1000)
_DEFAULTS_IN_HOURS = {"retention.ms": _WEEK_MS, "segment.ms": _WEEK_MS}
_ROOM_S = 0.1


class HasBootstrap(Protocol):
    """Anything with an address: a `Cluster`, a `Connection`."""

    @property
    def bootstrap(self) -> str: ...


@dataclass(frozen=True)
class Connection:
    """An address, and the client properties that go with it."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_file(cls, path: Path) -> Connection:
        """The connection that a librdkafka properties file describes; it names `bootstrap.servers`."""
        properties = read_properties(path)
        bootstrap = properties.pop("bootstrap.servers", "")
        if not bootstrap:
            raise ConfigError(f"the properties file {path} has no bootstrap.servers")
        return cls(bootstrap, properties)

    def settings(self, *more: Mapping[str, object]) -> dict[str, object]:
        """The librdkafka settings of a client: house defaults, then the user's, then the caller's."""
        merged: dict[str, object] = {**_EVERY_CLIENT, **self.properties}
        for given in more:
            merged.update(given)
        return {**merged, "bootstrap.servers": self.bootstrap}

    def producer(self, settings: Mapping[str, object] | None = None) -> Producer:
        """A confluent-kafka Producer."""
        import confluent_kafka

        kind: Callable[..., Producer] = confluent_kafka.Producer  # type: ignore[assignment] # see the class above
        return make(kind, {**PRODUCER_DEFAULTS, **self.settings(settings or {})})

    def consumer(self, settings: Mapping[str, object]) -> Consumer:
        """A confluent-kafka Consumer."""
        import confluent_kafka

        kind: Callable[..., Consumer] = confluent_kafka.Consumer  # type: ignore[assignment]
        return make(kind, self.settings(settings))

    def answers_of(self, broker: int, topic: str, partition: int = 0) -> tuple[str, str]:
        """Kafka's names for what this one broker answers to a producer (which writes a record) and to a consumer.

        Clients ask only the leader of a partition; this asks any broker.
        """
        from headrace.kafka.one_broker import answers_of

        return answers_of(self, broker, topic, partition)


def make(kind: Callable[..., T], settings: Mapping[str, object]) -> T:
    """A client of that kind; a property that librdkafka refuses is a usage error with its words."""
    from confluent_kafka import KafkaException

    try:
        return kind(dict(settings), logger=_log)
    except KafkaException as refused:
        raise refused_property(refused.args[0].str()) from None


def refused_property(why: str) -> UsageError:
    return UsageError(
        "a client property was refused",
        why=why,
        hint="native librdkafka names are expected: --set name=value, or the file given with -F",
    )


def produce_when_room(producer: confluent_kafka.Producer, *record: Any, **extras: Any) -> None:
    """Confluent-kafka's Producer has taken the record, after waiting while its queue was full."""
    while True:
        try:
            producer.produce(*record, **extras)
        except BufferError:
            producer.poll(_ROOM_S)
        else:
            return


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


class AdminClients:
    """Both clients of one Kafka, each made when it is first needed."""

    def __init__(self, where: HasBootstrap | str, *, timeout_s: float = 10.0) -> None:
        self.connection: Connection = connect(where)
        self.timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def client(self) -> AdminClient:
        """The confluent-kafka AdminClient, for the modules of this room."""
        from confluent_kafka.admin import AdminClient

        return make(AdminClient, self.connection.settings())

    @cached_property
    def _other_client(self) -> Any:
        # It picks one of its bootstrap servers and waits for that one alone: it gets the one that just answered.
        answered = self._metadata()
        awake = answered.brokers.get(answered.orig_broker_id)
        servers = [f"{awake.host}:{awake.port}"] if awake else self.connection.bootstrap.split(",")
        timeout_ms = int(self.timeout_s * 1000)
        try:
            client = kafka_python_client(
                self.connection, servers, request_timeout_ms=timeout_ms, bootstrap_timeout_ms=timeout_ms
            )
            if awake:
                # An open connection is preferred for every question that any broker can answer.
                client.describe_log_dirs({PROBE_TOPIC: [0]}, brokers=[awake.id])
        except kafka_python().errors.KafkaError as error:
            raise unreachable(self.connection.bootstrap, str(error)) from None
        return client

    def close(self) -> None:
        """No connection is open; the next question opens new ones."""
        # librdkafka's client has no end but its last reference, and a caught error would hold this object for long.
        self.__dict__.pop("client", None)
        if "_other_client" in self.__dict__:
            self.__dict__.pop("_other_client").close()

    def live_brokers(self, timeout_s: float | None = None) -> dict[int, str]:
        """The brokers in the metadata: id and address. The cheapest question there is."""
        metadata = self._metadata(timeout_s=timeout_s)
        return {broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}

    def _metadata(self, topic: str | None = None, timeout_s: float | None = None) -> ClusterMetadata:
        from confluent_kafka import KafkaException

        try:
            return self.client.list_topics(topic, timeout=timeout_s or self.timeout_s)
        except KafkaException as error:
            raise unreachable(self.connection.bootstrap, error.args[0].str()) from None

    def _configs(self, resource: ConfigResource, called: str) -> dict[str, ConfigValue]:
        [found] = self._described([resource], called).values()
        return found

    def _described(
        self,
        resources: Sequence[ConfigResource],
        called: str = "topics",
        accept: Callable[[ConfigResource, KafkaError], bool] = lambda *_: False,
    ) -> dict[ConfigResource, dict[str, ConfigValue]]:
        """The settings by resource; one whose refusal is accepted is missing."""
        futures = self.client.describe_configs(list(resources), request_timeout=self.timeout_s) if resources else {}
        answers = self.settle(futures, f"describe the settings of {called}", accept=accept)
        return {
            resource: {name: _config(name, entry) for name, entry in sorted(entries.items())}
            for resource, entries in answers.items()
        }

    def ask_other(self, question: Callable[[Any], T]) -> T:
        """The answer of the kafka-python client, for the modules of this room."""
        try:
            return question(self._other_client)
        except kafka_python().errors.KafkaError as error:
            raise unreachable(self.connection.bootstrap, str(error) or type(error).__name__) from None

    def ask_each(self, brokers: Iterable[int], question: Callable[[Any, int], T]) -> dict[int, T]:
        """The answers of the kafka-python client by broker, asked side by side; silent brokers are missing."""
        live = self.live_brokers()
        asked = [broker for broker in brokers if broker in live]
        answers: SimpleQueue[tuple[int, T] | None] = SimpleQueue()
        # Made here, not by each of the threads: one that comes late must not open another after `close`.
        client = self._other_client if asked else None

        def ask(broker: int) -> None:
            try:
                answers.put((broker, question(client, broker)))
            except (HeadraceError, kafka_python().errors.KafkaError):
                answers.put(None)

        for broker in asked:
            # Not an executor: it would wait for a silent broker's thread when Python ends.
            threading.Thread(target=ask, args=(broker,), daemon=True).start()
        found: dict[int, T] = {}
        for _ in asked:
            try:
                answer = answers.get(timeout=BROKER_TIMEOUT_S)
            except Empty:
                break
            if answer:
                found[answer[0]] = answer[1]
        return found

    def settle(
        self,
        futures: Mapping[K, Future[T]],
        doing: str,
        explain: Callable[[K, KafkaError], HeadraceError | None] = lambda *_: None,
        accept: Callable[[K, KafkaError], bool] = lambda *_: False,
    ) -> dict[K, T]:
        """All results; the first refusal is raised after every one has been waited for, unless it is accepted."""
        from confluent_kafka import KafkaException

        results: dict[K, T] = {}
        refused: HeadraceError | None = None
        for name, future in futures.items():
            try:
                results[name] = future.result(timeout=self.timeout_s + 5)
            except KafkaException as error:
                reason = error.args[0]
                if accept(name, reason):
                    continue
                refused = refused or explain(name, reason)
                refused = refused or refusal(reason, doing.format(name=name), self.connection.bootstrap)
            except TimeoutError:
                refused = refused or unreachable(self.connection.bootstrap, "no answer in time")
        if refused:
            raise refused
        return results


@cache
def kafka_python() -> Any:
    """The package `kafka`, imported where it is first needed, without its words and its warnings."""
    with warnings.catch_warnings():
        # It reads its protocol files in a deprecated way; that is not the caller's to mend.
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
        import kafka.errors
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    return kafka


def kafka_python_client(connection: Connection, servers: Sequence[str], **settings: object) -> Any:
    """A KafkaAdminClient with the connection's security; what fails is raised as its own errors."""
    given = connection.properties
    known = {theirs: given[ours] for ours, theirs in _FOR_KAFKA_PYTHON.items() if ours in given}
    if "security_protocol" in known:
        known["security_protocol"] = known["security_protocol"].upper()
    client = kafka_python().KafkaAdminClient
    return client(bootstrap_servers=list(servers), client_id="headrace", **known, **settings)


def _config(name: str, entry: Any) -> ConfigValue:
    source, sensitive, read_only = _SOURCES.get(entry.source, "unknown"), entry.is_sensitive, entry.is_read_only
    return ConfigValue(name, entry.value, source, _default(entry), bool(sensitive), bool(read_only))


def _default(entry: Any) -> str | None:
    """Kafka's default: the last of the setting's synonyms, if that one comes from nowhere else."""
    value = entry.value if entry.is_default else _DEFAULTS_IN_HOURS.get(entry.name)
    for synonym in entry.synonyms.values():
        if _SOURCES.get(synonym.source) == "default":
            value = synonym.value
    return None if value is None else str(value)


def refusal(error: KafkaError, doing: str, bootstrap: str) -> HeadraceError:
    """A Kafka error as ours: not reached, or reached and refused."""
    from confluent_kafka import KafkaError

    if error.code() in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}:
        return unreachable(bootstrap, error.str())
    return Failed(f"Kafka refused to {doing}", why=f"{error.str()} ({error.name()})")
