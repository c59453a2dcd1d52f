"""Look at and change a Kafka: brokers, quorum, topics, settings.

Two clients stand behind it. confluent-kafka does what it can, because it is fast to import and to connect;
kafka-python does the requests that librdkafka does not speak: metadata quorum, log directories, eligible leaders.
Answers are frozen dataclasses; what a broker refuses is raised as a headrace error with the broker's own words.
A broker that is down or silent holds up no answer: what only it knows is None, and `silent_brokers` names it.
"""

from __future__ import annotations

import difflib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar

from headrace.errors import Failed, HeadraceError, Unreachable, UsageError
from headrace.runtime.waiting import NotYet, eventually
from headrace.transport.client import Connection, HasBootstrap, connect, make, unreachable
from headrace.transport.topics import (
    Cleaned,
    ConfigValue,
    NewTopic,
    Partition,
    PartitionDescription,
    PartitionSize,
    Topic,
    TopicDescription,
    TopicPartition,
    TopicSize,
    count_until,
    partition_bytes,
    short,
    wanted_topic,
)  # fmt: skip

T = TypeVar("T")

# A live broker answers within milliseconds; one that has not after this long is paused, dying or cut off.
_BROKER_PATIENCE_S = 3.0

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


class Admin:
    """Questions to a Kafka, and changes of it.

    with Admin("127.0.0.1:9092") as admin:
        print([topic.name for topic in admin.topics()])
    """

    def __init__(self, where: HasBootstrap | str, *, timeout_s: float = 10.0) -> None:
        self.connection: Connection = connect(where)
        self.timeout_s = timeout_s

    def __enter__(self) -> Admin:
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
        if "_other_client" in self.__dict__:
            self._other_client.close()

    # -- brokers ------------------------------------------------------------------------------------------------

    def brokers(self) -> tuple[BrokerView, ...]:
        """The brokers that the cluster knows, fenced ones too."""
        answer = self.ask_other(lambda client: client.describe_cluster())
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
        answer = self.ask_other(lambda client: client.describe_metadata_quorum())
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

        return self._configs(ConfigResource(ResourceType.BROKER, str(broker_id)), f"broker {broker_id}")

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
            raise self._hidden(name) if found and _is_forbidden(found.error) else self.no_such_topic(name)
        return self._topic(found)

    def _hidden(self, name: str) -> Failed:
        return Failed(
            f"Kafka does not let you see the topic {name!r}",
            why="the topic may exist, but you may not describe it (TOPIC_AUTHORIZATION_FAILED)",
            hint="-F names a file with your credentials; or ask for the right to describe, read or write it",
        )

    def no_such_topic(self, name: str) -> UsageError:
        names = [topic.name for topic in self.topics(internal=True)]
        near = difflib.get_close_matches(name, names, n=1)
        return UsageError(
            f"there is no topic {name!r}",
            why=f"the nearest name is {near[0]!r}"
            if near
            else f"none of the cluster's {len(names)} has a similar name",
            hint=f"headrace topic create {name}",
        )

    def require_topics(self, names: Iterable[str]) -> tuple[Topic, ...]:
        """The topics of those names; the first that does not exist is an error."""
        known = {topic.name: topic for topic in self.topics(internal=True)}
        for name in names:
            if name not in known:
                raise self.no_such_topic(name)
        return tuple(known[name] for name in names)

    def topic_configs(self, name: str) -> dict[str, ConfigValue]:
        """The settings of a topic that exists, by name."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        return self._configs(ConfigResource(ResourceType.TOPIC, name), f"topic {name}")

    def describe(self, name: str) -> TopicDescription:
        """All that is known of the topic.

        admin.describe("breadcrumbs").partitions[0].isr
        """
        topic = self.topic(name)
        of_topic = [(name, p.partition) for p in topic.partitions]
        begins, ends = self.begins_and_ends(of_topic)
        size = self._sizes((topic,))[0]
        sizes = {p.partition: p for p in size.partitions}
        elrs = self._eligible_leaders(name)
        return TopicDescription(
            name,
            self._topic_id(name),
            tuple(
                PartitionDescription(
                    p.partition, p.leader, p.replicas, p.isr, elrs.get(p.partition),
                    begins[name, p.partition], ends[name, p.partition], sizes[p.partition],
                )
                for p in topic.partitions
            ),
            self.topic_configs(name),
            size.silent_brokers,
        )  # fmt: skip

    def topic_sizes(self, names: Sequence[str] = ()) -> tuple[TopicSize, ...]:
        """The bytes of these topics, or of all but Kafka's own."""
        return self._sizes(self.require_topics(names) if names else self.topics())

    def topic_records(self, topics: Iterable[Topic]) -> dict[str, int | None]:
        """The offsets in use of each topic, see `PartitionDescription.records`; None if a leader is missing."""
        wanted = list(topics)
        places = {topic.name: [(topic.name, p.partition) for p in topic.partitions] for topic in wanted}
        begins, ends = self.begins_and_ends(place for of_topic in places.values() for place in of_topic)
        return {
            name: None
            if any(begins[place] is None or ends[place] is None for place in of_topic)
            else sum((ends[place] or 0) - (begins[place] or 0) for place in of_topic)
            for name, of_topic in places.items()
        }

    def begins_and_ends(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, int | None]]:
        """The first offset that can be read and the one after the last; None where no leader answers."""
        from confluent_kafka.admin import OffsetSpec

        wanted = list(partitions)
        begins, ends = (self._ask_offsets(wanted, spec()) for spec in (OffsetSpec.earliest, OffsetSpec.latest))
        return begins(), ends()

    def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int | None]:
        """The first offset with that timestamp or a later one; None if there is no such record."""
        from confluent_kafka.admin import OffsetSpec

        return self._ask_offsets(list(partitions), OffsetSpec.for_timestamp(timestamp_ms))()

    def create_topics(self, topics: Iterable[NewTopic], *, wait: bool = True) -> None:
        """The topics exist. Those that were already there are an error; the others were created all the same.

        Every live broker knows them then; without `wait` the controller does, and the others soon.

        admin.create_topics([NewTopic("breadcrumbs", partitions=6, replication=3)])
        """
        wanted = {topic.name: topic for topic in topics}
        try:
            futures = self.client.create_topics(
                [wanted_topic(topic) for topic in wanted.values()], operation_timeout=self.timeout_s
            )
        except (TypeError, ValueError) as error:
            raise UsageError("the topic cannot be created", why=str(error)) from None
        self.settle(futures, "create topic {name}", lambda name, error: self._why_not_created(wanted[name], error))
        if wait:
            self._wait_for_leaders(wanted)

    def ensure_topic(self, topic: NewTopic) -> bool:
        """The topic exists; True if it was created just now."""
        if topic.name in {found.name for found in self.topics(internal=True)}:
            return False
        self.create_topics([topic])
        return True

    def alter_topic(
        self, name: str, *, partitions: int | None = None, configs: Mapping[str, str | None] | None = None
    ) -> None:
        """The topic has so many partitions and these settings; a setting that is None is back at its default.

        Nothing is changed unless Kafka accepts all of it.

        admin.alter_topic("breadcrumbs", partitions=12, configs={"retention.ms": "3600000", "segment.ms": None})
        """
        topic = self.topic(name)
        if partitions is not None and partitions < len(topic.partitions):
            raise UsageError(
                f"{name} has {len(topic.partitions)} partitions; they cannot become {partitions}",
                why="Kafka cannot remove partitions: the records in them would have nowhere to go",
                hint=f"create another topic with {partitions} partitions and copy the records into it",
            )
        grows = partitions is not None and partitions > len(topic.partitions)
        for only_try in (True, False):
            if configs:
                self._alter_configs(name, configs, only_try)
            if grows:
                self._grow(name, partitions or 0, only_try)
        if grows:
            self._wait_for_leaders({name: NewTopic(name, partitions)})

    def delete_topics(self, names: Sequence[str]) -> None:
        """The topics and their records are gone, and the cluster's metadata no longer name them."""
        futures = self.client.delete_topics(list(names), operation_timeout=self.timeout_s)

        def unknown(name: str, error: Any) -> HeadraceError | None:
            return self.no_such_topic(name) if error.name() == "UNKNOWN_TOPIC_OR_PART" else None

        self.settle(futures, "delete topic {name}", unknown)
        if not self._everywhere(lambda found: not set(names) & set(found), self.timeout_s) and (
            set(names) & set(self._metadata().topics)
        ):
            raise Failed(
                "Kafka has accepted the deletion, but still lists the topic",
                why=f"it was still there after {self.timeout_s:g} s",
                hint="a client may be creating it again: auto.create.topics.enable of the brokers",
            )

    def clean_topic(self, name: str, *, how: Literal["truncate", "read"] = "truncate") -> Cleaned:
        """Everything that the topic held has been deleted (truncate), or read once and thrown away (read).

        admin.clean_topic("breadcrumbs").records
        """
        found = self.describe(name)
        unknown = [p.partition for p in found.partitions if p.end is None]
        if unknown:
            raise Failed(
                f"partition {unknown[0]} of {name} has no leader that answers, so nothing was cleaned",
                hint=f"headrace topic describe {name}",
            )
        if how == "read":
            return Cleaned(name, how, self._read_through(found), found.size_bytes)
        self.require_truncatable(name)
        self._truncate(found)
        return Cleaned(name, how, found.records or 0, found.size_bytes)

    def require_truncatable(self, name: str) -> None:
        """The topic's records may be deleted up to an offset; a compacted topic's may not."""
        policy = self.topic_configs(self.topic(name).name)["cleanup.policy"].value or ""
        if "delete" not in policy.split(","):
            raise UsageError(
                f"{name} cannot be truncated",
                why=f"its cleanup.policy is {policy}: Kafka deletes records before an offset only under 'delete', "
                "because a compacted topic promises to keep the last value of every key",
                hint=f"headrace topic alter {name} --set cleanup.policy=compact,delete",
            )

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
            return self.client.list_topics(topic, timeout=timeout_s or self.timeout_s)
        except KafkaException as error:
            raise unreachable(self.connection.bootstrap, error.args[0].str()) from None

    def _configs(self, resource: Any, called: str) -> dict[str, ConfigValue]:
        futures = self.client.describe_configs([resource], request_timeout=self.timeout_s)
        answer = self.settle(futures, f"tell the settings of {called}")
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

        def ask(broker: int) -> None:
            try:
                answers.put((broker, self.ask_other(lambda client: question(client, broker))))
            except HeadraceError:
                answers.put(None)

        if asked:
            _ = self._other_client  # made here, not by each of the threads
        for broker in asked:
            # Not an executor: it would wait for a silent broker's thread when Python ends.
            threading.Thread(target=ask, args=(broker,), daemon=True).start()
        found: dict[int, T] = {}
        for _ in asked:
            try:
                answer = answers.get(timeout=_BROKER_PATIENCE_S)
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
    ) -> dict[Any, Any]:
        """All results; the first refusal is raised after every one has been waited for."""
        from confluent_kafka import KafkaException

        results: dict[Any, Any] = {}
        refused: HeadraceError | None = None
        for name, future in futures.items():
            try:
                results[name] = future.result(timeout=self.timeout_s + 5)
            except KafkaException as error:
                reason = error.args[0]
                refused = refused or explain(name, reason)
                refused = refused or refusal(reason, doing.format(name=name), self.connection.bootstrap)
            except TimeoutError:
                refused = refused or unreachable(self.connection.bootstrap, "no answer in time")
        if refused:
            raise refused
        return results

    # -- how topics are asked and changed -----------------------------------------------------------------------

    def _topic_id(self, name: str) -> str | None:
        from confluent_kafka import TopicCollection

        futures = self.client.describe_topics(TopicCollection([name]), request_timeout=self.timeout_s)
        found = str(self.settle(futures, "describe topic {name}")[name].topic_id)
        # librdkafka writes the id in plain base64, Kafka's own tools in the form that is safe in URLs.
        return found.replace("+", "-").replace("/", "_") or None

    def _eligible_leaders(self, name: str) -> dict[int, tuple[int, ...]]:
        """Per partition the replicas outside the ISR that may still lead (KIP-966); empty if Kafka is too old."""
        try:
            answer = self.ask_other(lambda client: client.describe_topic_partitions([name]))
        except HeadraceError:
            return {}
        return {
            p["partition_index"]: tuple(p["eligible_leader_replicas"] or ())
            for topic in answer["topics"]
            for p in topic["partitions"]
        }

    def _ask_offsets(self, partitions: Sequence[TopicPartition], spec: Any) -> Callable[[], dict[TopicPartition, Any]]:
        """Asks at once; what is returned waits for the answers."""
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Wanted

        wanted = {Wanted(name, number): spec for name, number in partitions}
        futures = self.client.list_offsets(wanted, request_timeout=_BROKER_PATIENCE_S) if wanted else {}

        def answers() -> dict[TopicPartition, Any]:
            found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
            for asked, future in futures.items():
                try:
                    offset = future.result(timeout=_BROKER_PATIENCE_S + 2).offset
                except (KafkaException, TimeoutError):
                    continue
                # librdkafka fills in a negative number where the time ran out or no record is that young.
                found[asked.topic, asked.partition] = offset if offset >= 0 else None
            return found

        return answers

    def _sizes(self, topics: Sequence[Topic]) -> tuple[TopicSize, ...]:
        asked = sorted({broker for t in topics for p in t.partitions for broker in p.replicas})
        sizes = self._log_dirs(asked, [topic.name for topic in topics])
        silent = tuple(broker for broker in asked if broker not in sizes)
        now = datetime.now(UTC)

        def on(broker: int, topic: str, partition: int) -> int | None:
            return sizes[broker].get((topic, partition), 0) if broker in sizes else None

        return tuple(
            TopicSize(
                topic.name,
                now,
                tuple(
                    PartitionSize(
                        p.partition, p.leader, {b: on(b, topic.name, p.partition) for b in sorted(p.replicas)}
                    )
                    for p in topic.partitions
                ),
                tuple(b for b in silent if any(b in p.replicas for p in topic.partitions)),
            )
            for topic in topics
        )

    def _log_dirs(self, brokers: Iterable[int], topics: Sequence[str]) -> dict[int, dict[TopicPartition, int]]:
        """The bytes of each partition on each broker that answered."""

        def ask(client: Any, broker: int) -> dict[TopicPartition, int]:
            return partition_bytes(client.describe_log_dirs(list(topics), brokers=[broker])[0]["log_dirs"])

        return self.ask_each(brokers, ask)

    def _wait_for_leaders(self, topics: Mapping[str, NewTopic]) -> None:
        """Every live broker shows every partition with a leader; a topic without one exists all the same."""

        def led(found: Mapping[str, Any]) -> bool:
            return all(
                name in found
                and found[name].error is None
                and len(found[name].partitions) >= (topic.partitions or 1)
                and all(p.leader >= 0 for p in found[name].partitions.values())
                for name, topic in topics.items()
            )

        self._everywhere(led, min(self.timeout_s, _BROKER_PATIENCE_S))

    def _everywhere(self, seen: Callable[[Mapping[str, Any]], bool], within_s: float) -> bool:
        """Waits until each live broker sees the topics so. A change is known to the controller first, to others later:
        without this, the next question may go to a broker that has not heard of it."""
        deadline = time.monotonic() + within_s
        everywhere = True
        for address in self.live_brokers().values():
            one = Admin(Connection(address, self.connection.properties), timeout_s=1)
            try:
                eventually(partial(one._sees, seen), deadline - time.monotonic(), every_s=0.01)
            except (NotYet, Unreachable):
                everywhere = False
        return everywhere

    def _sees(self, seen: Callable[[Mapping[str, Any]], bool]) -> bool:
        return seen(self._metadata().topics)

    def _why_not_created(self, topic: NewTopic, error: Any) -> HeadraceError | None:
        words = error.str()
        match error.name():
            case "TOPIC_ALREADY_EXISTS":
                return UsageError(
                    f"the topic {topic.name!r} is already there", hint=f"headrace topic describe {topic.name}"
                )
            case "INVALID_REPLICATION_FACTOR":
                live = self.live_brokers()
                return UsageError(
                    f"{topic.name}: {topic.replication} replicas need as many brokers, and {len(live)} are alive",
                    why=words,
                    hint=f"--replication {len(live)} at most, or start more brokers",
                )
            case "INVALID_CONFIG":
                return self._bad_config(topic.name, topic.configs, words)
            case "TOPIC_EXCEPTION" | "INVALID_PARTITIONS" | "INVALID_REPLICA_ASSIGNMENT" | "INVALID_REQUEST":
                return UsageError(f"the topic {short(topic.name)!r} cannot be created", why=short(words, 300))
        return None

    def _bad_config(self, topic: str, configs: Iterable[str], words: str) -> UsageError:
        """Kafka's words about a setting, with the nearest name if it is one that no topic has."""
        known = self._topic_config_names()
        unknown = next((name for name in configs if known and name not in known), None)
        if unknown is None:
            return UsageError(f"a setting of topic {topic} was refused", why=words)
        near = difflib.get_close_matches(unknown, known, n=1)
        return UsageError(
            f"a topic has no setting {unknown!r}",
            why=words,
            hint=f"did you mean {near[0]}?" if near else "headrace topic describe TOPIC --all lists the names",
        )

    def _topic_config_names(self) -> list[str]:
        """The names as this Kafka knows them, read from any topic; none if there is no topic."""
        some = next(iter(self.topics(internal=True)), None)
        return list(self.topic_configs(some.name)) if some else []

    def _alter_configs(self, name: str, configs: Mapping[str, str | None], only_try: bool) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        known = self._topic_config_names()
        for config in configs:
            if config not in known:
                raise self._bad_config(name, [config], f"Unknown topic config name: {config}")
        entries = [
            ConfigEntry(
                config,
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for config, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = self.client.incremental_alter_configs(
            [resource], validate_only=only_try, request_timeout=self.timeout_s
        )

        def refused(_: Any, error: Any) -> HeadraceError | None:
            return self._bad_config(name, configs, error.str()) if error.name() == "INVALID_CONFIG" else None

        self.settle(futures, f"alter topic {name}", refused)

    def _grow(self, name: str, partitions: int, only_try: bool) -> None:
        from confluent_kafka.admin import NewPartitions

        futures = self.client.create_partitions([NewPartitions(name, partitions)], validate_only=only_try)
        self.settle(futures, f"add partitions to {name}")

    def _truncate(self, found: TopicDescription) -> None:
        from confluent_kafka import TopicPartition as Until

        until = [Until(found.topic, p.partition, p.end) for p in found.partitions if p.records]
        if until:
            self.settle(self.client.delete_records(until, request_timeout=self.timeout_s), f"truncate {found.topic}")

    def _read_through(self, found: TopicDescription) -> int:
        """How many records lie between the begins and the ends of a moment ago. Commits nothing."""
        from confluent_kafka import TopicPartition as From

        ends = {p.partition: p.end for p in found.partitions if p.end and p.records}
        consumer = self.connection.consumer(
            {
                "group.id": "headrace-clean",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            consumer.assign([From(found.topic, p.partition, p.begin) for p in found.partitions if p.partition in ends])
            return count_until(consumer, ends, self.timeout_s)
        finally:
            consumer.close()


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


def _is_forbidden(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)


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


__all__ = [
    "PROBE_TOPIC", "Admin", "BrokerView", "Cleaned", "ConfigValue", "NewTopic", "Partition", "PartitionDescription",
    "PartitionSize", "Quorum", "Topic", "TopicDescription", "TopicPartition", "TopicSize", "Unreachable", "Voter",
]  # fmt: skip
