"""The two admin clients, and how they are asked.

confluent-kafka does what it can, because it is fast to import and to connect; kafka-python does the requests that
librdkafka does not speak: metadata quorum, log directories, eligible leaders. What is asked is known by the classes
built on this one. A broker that is down or silent holds up no answer; what one refuses is raised as a headrace error
with the broker's own words.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from headrace.errors import Failed, HeadraceError
from headrace.transport.client import Connection, HasBootstrap, connect, make, unreachable
from headrace.transport.topics import ConfigValue

T = TypeVar("T")

# A live broker answers within milliseconds; one that has not after this long is paused, dying or cut off.
BROKER_PATIENCE_S = 3.0

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
    def client(self) -> Any:
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

    def _metadata(self, topic: str | None = None, timeout_s: float | None = None) -> Any:
        from confluent_kafka import KafkaException

        try:
            return self.client.list_topics(topic, timeout=timeout_s or self.timeout_s)
        except KafkaException as error:
            raise unreachable(self.connection.bootstrap, error.args[0].str()) from None

    def _configs(self, resource: Any, called: str) -> dict[str, ConfigValue]:
        futures = self.client.describe_configs([resource], request_timeout=self.timeout_s)
        answer = self.settle(futures, f"describe the settings of {called}")
        entries = next(iter(answer.values()))
        return {
            name: ConfigValue(
                name,
                entry.value,
                _SOURCES.get(entry.source, "unknown"),
                _default(entry),
                bool(entry.is_sensitive),
                bool(entry.is_read_only),
            )
            for name, entry in sorted(entries.items())
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
                answer = answers.get(timeout=BROKER_PATIENCE_S)
            except Empty:
                break
            if answer:
                found[answer[0]] = answer[1]
        return found

    def settle(
        self,
        futures: Mapping[Any, Any],
        doing: str,
        explain: Callable[[Any, Any], HeadraceError | None] = lambda *_: None,
        accept: Callable[[Any, Any], bool] = lambda *_: False,
    ) -> dict[Any, Any]:
        """All results; the first refusal is raised after every one has been waited for, unless it is accepted."""
        from confluent_kafka import KafkaException

        results: dict[Any, Any] = {}
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


def kafka_python_client(connection: Connection, servers: Sequence[str], **settings: Any) -> Any:
    """A KafkaAdminClient with the connection's security; what fails is raised as its own errors."""
    given = connection.properties
    known = {theirs: given[ours] for ours, theirs in _FOR_KAFKA_PYTHON.items() if ours in given}
    if "security_protocol" in known:
        known["security_protocol"] = known["security_protocol"].upper()
    client = kafka_python().KafkaAdminClient
    return client(bootstrap_servers=list(servers), client_id="headrace", **known, **settings)


def _default(entry: Any) -> str | None:
    """Kafka's default: the last of the setting's synonyms, if that one comes from nowhere else."""
    value = entry.value if entry.is_default else _DEFAULTS_IN_HOURS.get(entry.name)
    for synonym in entry.synonyms.values():
        if _SOURCES.get(synonym.source) == "default":
            value = synonym.value
    return None if value is None else str(value)


def refusal(error: Any, doing: str, bootstrap: str) -> HeadraceError:
    """A Kafka error as ours: not reached, or reached and refused."""
    from confluent_kafka import KafkaError

    if error.code() in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}:
        return unreachable(bootstrap, error.str())
    return Failed(f"Kafka refused to {doing}", why=f"{error.str()} ({error.name()})")
