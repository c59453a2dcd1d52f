"""Look at and change a Kafka: brokers, quorum, topics, settings.

Two clients stand behind it. confluent-kafka does what it can, because it is fast to import and to connect;
kafka-python does the requests that librdkafka does not speak: metadata quorum, log directories, eligible leaders.
Answers are frozen dataclasses; what a broker refuses is raised as a headrace error with the broker's own words.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from headrace.errors import Failed, HeadraceError, Unreachable, UsageError
from headrace.transport.client import Connection, HasBootstrap, connect, make, unreachable

T = TypeVar("T")

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


@dataclass(frozen=True)
class BrokerView:
    """A broker as the cluster sees it."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool = False


@dataclass(frozen=True)
class Voter:
    """A replica of the metadata log: how far it has got, and how far behind the leader that is."""

    node_id: int
    log_end_offset: int
    lag: int
    voter: bool


@dataclass(frozen=True)
class Quorum:
    """The controllers: who leads, in which epoch, and who follows how closely."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[Voter, ...]


@dataclass(frozen=True)
class Partition:
    """A partition as of now. `leader` is -1 while it has none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True)
class Topic:
    """A topic and its partitions."""

    name: str
    partitions: tuple[Partition, ...]

    @property
    def internal(self) -> bool:
        return self.name.startswith("__")

    @property
    def replication(self) -> int:
        return max((len(p.replicas) for p in self.partitions), default=0)


@dataclass(frozen=True)
class ConfigValue:
    """A setting of a broker or topic: what holds, where it comes from, what it would be otherwise."""

    name: str
    value: str | None
    source: str
    default: str | None
    sensitive: bool
    read_only: bool


@dataclass(frozen=True)
class NewTopic:
    """A topic to be. `assignment` names the replicas of each partition, the preferred leader first."""

    name: str
    partitions: int | None = None
    replication: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Sequence[Sequence[int]] | None = None


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


class Admin:
    """Questions to a Kafka, and changes of it."""

    def __init__(self, where: HasBootstrap | str, *, timeout_s: float = 10.0) -> None:
        self.connection: Connection = connect(where)
        self.timeout_s = timeout_s

    @cached_property
    def _client(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return make(AdminClient, self.connection.settings())

    @cached_property
    def _other_client(self) -> Any:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its words would land between ours
        given = self.connection.properties
        known = {theirs: given[ours] for ours, theirs in _FOR_KAFKA_PYTHON.items() if ours in given}
        if "security_protocol" in known:
            known["security_protocol"] = known["security_protocol"].upper()
        try:
            return KafkaAdminClient(
                bootstrap_servers=self.connection.bootstrap.split(","),
                request_timeout_ms=int(self.timeout_s * 1000),
                client_id="headrace",
                **known,
            )
        except KafkaError as error:
            raise unreachable(self.connection.bootstrap, str(error)) from None

    def close(self) -> None:
        if "_other_client" in self.__dict__:
            self._other_client.close()

    # -- brokers ------------------------------------------------------------------------------------------------

    def brokers(self) -> tuple[BrokerView, ...]:
        """The brokers that the cluster knows, fenced ones too."""
        answer = self._ask_other(lambda client: client.describe_cluster())
        return tuple(
            sorted(
                (
                    BrokerView(b["broker_id"], b["host"], b["port"], b["rack"], bool(b.get("is_fenced")))
                    for b in answer["brokers"]
                ),
                key=lambda broker: broker.broker_id,
            )
        )

    def live_brokers(self, timeout_s: float | None = None) -> dict[int, str]:
        """The brokers in the metadata: id and address. The cheapest question there is."""
        metadata = self._metadata(timeout_s=timeout_s)
        return {broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}

    def quorum(self) -> Quorum:
        """The state of the metadata quorum."""
        answer = self._ask_other(lambda client: client.describe_metadata_quorum())
        state = answer["topics"][0]["partitions"][0]
        ends = {v["replica_id"]: v["log_end_offset"] for v in state["current_voters"]}
        end = max(ends.values(), default=0)
        followers = [(v, True) for v in state["current_voters"]] + [(o, False) for o in state["observers"]]
        return Quorum(
            state["leader_id"],
            state["leader_epoch"],
            state["high_watermark"],
            tuple(
                Voter(v["replica_id"], v["log_end_offset"], max(0, end - v["log_end_offset"]), voter)
                for v, voter in followers
            ),
        )

    def broker_configs(self, broker_id: int) -> dict[str, ConfigValue]:
        """What holds on that broker, read from the broker itself."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        return self._configs(ConfigResource(ResourceType.BROKER, str(broker_id)))

    # -- topics -------------------------------------------------------------------------------------------------

    def topics(self, *, internal: bool = False) -> tuple[Topic, ...]:
        """All topics by name, Kafka's own only if asked for."""
        metadata = self._metadata()
        found = (self._topic(topic) for topic in metadata.topics.values())
        return tuple(sorted((t for t in found if internal or not t.internal), key=lambda topic: topic.name))

    def topic(self, name: str) -> Topic:
        """The topic; one that does not exist is an error with the nearest name."""
        found = self._metadata(name).topics.get(name)
        if found is None or found.error is not None:
            raise self.no_such_topic(name)
        return self._topic(found)

    def no_such_topic(self, name: str) -> UsageError:
        names = [topic.name for topic in self.topics(internal=True)]
        near = difflib.get_close_matches(name, names, n=1)
        return UsageError(
            f"there is no topic {name!r}",
            why=f"the nearest name is {near[0]!r}" if near else f"the cluster has {len(names)} topics",
            hint=f"headrace topic create {name}",
        )

    def create_topics(self, topics: Iterable[NewTopic]) -> None:
        """The topics exist. Those that were already there are an error; the others were created all the same."""
        from confluent_kafka.admin import NewTopic as Wanted

        wanted = [
            Wanted(t.name, num_partitions=len(t.assignment), replica_assignment=[list(r) for r in t.assignment],
                   config=dict(t.configs))
            if t.assignment else
            Wanted(t.name, num_partitions=t.partitions or -1, replication_factor=t.replication or -1,
                   config=dict(t.configs))
            for t in topics
        ]  # fmt: skip
        try:
            futures = self._client.create_topics(wanted, operation_timeout=self.timeout_s)
        except (TypeError, ValueError) as error:
            raise UsageError("the topic cannot be created", why=str(error)) from None
        self._settle(futures, "create topic {name}")

    def delete_topics(self, names: Sequence[str]) -> None:
        """The topics and their records are gone."""
        futures = self._client.delete_topics(list(names), operation_timeout=self.timeout_s)
        self._settle(futures, "delete topic {name}")

    # -- how it is asked ----------------------------------------------------------------------------------------

    def _topic(self, topic: Any) -> Topic:
        return Topic(
            topic.topic,
            tuple(
                Partition(p.id, p.leader, tuple(p.replicas), tuple(p.isrs))
                for p in sorted(topic.partitions.values(), key=lambda p: p.id)
            ),
        )

    def _metadata(self, topic: str | None = None, timeout_s: float | None = None) -> Any:
        from confluent_kafka import KafkaException

        try:
            return self._client.list_topics(topic, timeout=timeout_s or self.timeout_s)
        except KafkaException as error:
            raise unreachable(self.connection.bootstrap, error.args[0].str()) from None

    def _configs(self, resource: Any) -> dict[str, ConfigValue]:
        answer = self._settle(
            self._client.describe_configs([resource], request_timeout=self.timeout_s), "describe {name}"
        )
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

    def _ask_other(self, question: Callable[[Any], T]) -> T:
        from kafka.errors import KafkaError

        try:
            return question(self._other_client)
        except KafkaError as error:
            raise unreachable(self.connection.bootstrap, str(error) or type(error).__name__) from None

    def _settle(self, futures: Mapping[Any, Any], doing: str) -> dict[Any, Any]:
        """All results; the first refusal is raised after every one has been waited for."""
        from confluent_kafka import KafkaException

        results: dict[Any, Any] = {}
        refused: HeadraceError | None = None
        for name, future in futures.items():
            try:
                results[name] = future.result(timeout=self.timeout_s + 5)
            except KafkaException as error:
                refused = refused or refusal(error.args[0], doing.format(name=name), self.connection.bootstrap)
            except TimeoutError:
                refused = refused or unreachable(self.connection.bootstrap, "no answer in time")
        if refused:
            raise refused
        return results


def _default(entry: Any) -> str | None:
    """What the setting would be without the nearest source: the last of its synonyms is Kafka's default."""
    synonyms = list(entry.synonyms.values())
    if synonyms:
        return str(synonyms[-1].value) if synonyms[-1].value is not None else None
    return str(entry.value) if entry.is_default and entry.value is not None else None


def refusal(error: Any, doing: str, bootstrap: str) -> HeadraceError:
    """A Kafka error as ours: not reached, or reached and refused."""
    from confluent_kafka import KafkaError

    if error.code() in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}:
        return unreachable(bootstrap, error.str())
    return Failed(f"Kafka refused to {doing}", why=f"{error.str()} ({error.name()})")


__all__ = [
    "PROBE_TOPIC", "Admin", "BrokerView", "ConfigValue", "NewTopic", "Partition", "Quorum", "Topic", "Unreachable",
    "Voter",
]  # fmt: skip
