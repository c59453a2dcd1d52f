"""Every question to a Kafka: brokers, quorum, settings, topics, offsets, sizes.

Answers are frozen and come from what the brokers say at that moment: nothing is cached. What only a silent broker knows
is None. What a broker refuses is raised as a headrace error with the broker's own words.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headrace.errors import Failed, HeadraceError, NotFound, Unreachable, UsageError
from headrace.kafka.bounds import Isolation, Start, ask_offsets, known_offsets, look_up
from headrace.kafka.client import BROKER_TIMEOUT_S, AdminClients
from headrace.kafka.model import (
    Broker,
    ConfigValue,
    NewTopic,
    Partition,
    Quorum,
    Topic,
    TopicPartition,
    is_topic_name,
    quorum_of,
)
from headrace.kafka.ranges import next_records
from headrace.runtime import NotYet, eventually
from headrace.text import plural, short

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic as Wanted
    from confluent_kafka.admin import TopicDescription, TopicMetadata

# A pipeline that starts, and whoever looks at its status, wait for a leader this long.
_EXTENT_TIMEOUT_S = 5.0


class Questions(AdminClients):
    """What can be asked of a Kafka."""

    # -- brokers ------------------------------------------------------------------------------------------------

    def brokers(self) -> tuple[Broker, ...]:
        """The brokers that the cluster knows, fenced ones too."""
        answer = self.ask_other(lambda client: client.describe_cluster())
        found = (
            Broker(b["broker_id"], b["host"], b["port"], b["rack"], bool(b.get("is_fenced"))) for b in answer["brokers"]
        )
        return tuple(sorted(found, key=lambda broker: broker.broker_id))

    def cluster_id(self) -> str | None:
        """The id that the cluster was formatted with."""
        found: str | None = self._metadata().cluster_id
        return found

    def quorum(self) -> Quorum:
        """The state of the metadata quorum."""
        answer = self.ask_other(lambda client: client.describe_metadata_quorum())
        state = answer["topics"][0]["partitions"][0]
        if state["error"]:  # during an election it names no leader, but a number nevertheless
            raise Unreachable("the controllers have no leader at the moment", why=state["error"], hint="try again")
        replicas = [(v["replica_id"], v["log_end_offset"], True) for v in state["current_voters"]]
        replicas += [(o["replica_id"], o["log_end_offset"], False) for o in state["observers"]]
        return quorum_of(state["leader_id"], state["leader_epoch"], state["high_watermark"], replicas)

    def broker_configs(self, broker_id: int) -> dict[str, ConfigValue]:
        """What holds on that broker, read from the broker itself."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        return self._configs(ConfigResource(ResourceType.BROKER, str(broker_id)), f"broker {broker_id}")

    # -- topics -------------------------------------------------------------------------------------------------

    def topics(self, *, internal: bool = False) -> tuple[Topic, ...]:
        """All topics by name, Kafka's own only if asked for."""
        metadata = self._metadata()
        found = (_topic(topic) for topic in metadata.topics.values())
        return tuple(sorted((t for t in found if internal or not t.internal), key=lambda topic: topic.name))

    def topic(self, name: str, *, wanted: bool = True) -> Topic:
        """The topic; one that does not exist is an error with the nearest name (see `no_such_topic`)."""
        # Not every text can be asked for: librdkafka takes no null character.
        askable = is_topic_name(name)
        found = self._found(name) if askable else None
        if found is None and askable and self._controller_knows(name):
            # It was created a moment ago, and the broker that answered has not heard of it yet.
            with suppress(NotYet):
                found = eventually(lambda: self._found(name), self.timeout_s)
        if found is None:
            raise self.no_such_topic(name, wanted=wanted)
        return _topic(found)

    def _found(self, name: str) -> TopicMetadata | None:
        """The topic as a broker knows it, or None."""
        found = self._metadata(name).topics.get(name)
        if found is not None and found.error is not None:
            if _is_forbidden(found.error):
                raise self._hidden(name)
            return None
        return found

    def _controller_knows(self, name: str) -> bool:
        """Brokers learn of a new topic one after the other; whether it may be created only the controller decides."""
        from confluent_kafka import KafkaException

        wanted = [wanted_topic(NewTopic(name, 1, 1))]
        try:
            [future] = self.client.create_topics(wanted, validate_only=True, request_timeout=BROKER_TIMEOUT_S).values()
            future.result(timeout=BROKER_TIMEOUT_S + 2)
        except KafkaException as error:
            return bool(error.args[0].name() == "TOPIC_ALREADY_EXISTS")
        except (TimeoutError, TypeError, ValueError):
            return False
        return False

    def _hidden(self, name: str) -> Failed:
        return Failed(
            f"Kafka does not let you see the topic {name!r}",
            why="the topic may exist, but you may not describe it (TOPIC_AUTHORIZATION_FAILED)",
            hint="-F names a file with your credentials; or ask for the right to describe, read or write it",
        )

    def no_such_topic(self, name: str, *, wanted: bool = True) -> NotFound:
        """The error for a topic that does not exist. One that is `wanted` can be created; a typo is not."""
        names = [topic.name for topic in self.topics()]
        near = difflib.get_close_matches(name, names, n=1)
        if near:
            why, hint = f"the nearest name is {near[0]!r}", f"did you mean {near[0]}?"
        else:
            why = (
                f"none of the cluster's {plural(len(names), 'topic')} has a similar name"
                if names
                else "there is none yet"
            )
            creatable = wanted and is_topic_name(name)
            hint = f"headrace topic create {name}" if creatable else "headrace topic list shows those that exist"
        return NotFound(f"there is no topic {name!r}", why=why, hint=hint)

    def require_topics(self, names: Iterable[str], *, wanted: bool = True) -> tuple[Topic, ...]:
        """The topics of those names; the first that does not exist is an error (see `no_such_topic`)."""
        known = {topic.name: topic for topic in self.topics(internal=True)}
        return tuple(known.get(name) or self.topic(name, wanted=wanted) for name in names)

    def topic_configs(self, name: str) -> dict[str, ConfigValue]:
        """The settings of a topic that exists, by name."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource, called = ConfigResource(ResourceType.TOPIC, name), f"topic {name}"

        def is_new(_: object, error: KafkaError) -> bool:
            """As in `topic`: the broker that answered may not have heard of it yet."""
            return error.name() == "UNKNOWN_TOPIC_OR_PART" and self._controller_knows(name)

        with suppress(NotYet):
            return eventually(lambda: self._described([resource], called, is_new), self.timeout_s)[resource]
        return self._configs(resource, called)

    def describe(self, name: str) -> Topic:
        """All that is known of the topic.

        kafka.describe("breadcrumbs").partitions[0].isr
        """
        topic = self.with_offsets([self.topic(name)])[0]
        identified = self._identified([name]).get(name)
        return replace(
            self._with_sizes([topic])[0],
            topic_id=identified.topic_id if identified else None,
            configs=self.topic_configs(name),
            eligible_leaders=self._eligible_leaders(name),
        )

    def topic_sizes(self, names: Sequence[str] = ()) -> tuple[Topic, ...]:
        """These topics, or all but Kafka's own, with their bytes."""
        return self._with_sizes(self.require_topics(names) if names else self.topics())

    def with_offsets(
        self, topics: Iterable[Topic], isolation: Isolation = "uncommitted", within_s: float = BROKER_TIMEOUT_S
    ) -> tuple[Topic, ...]:
        """The topics with the first offset of each partition and the one after its last; None if its leader is silent.

        With isolation "committed" they end where a read_committed consumer gets to.
        """
        found = list(topics)
        places = [(topic.name, p.partition) for topic in found for p in topic.partitions]
        begins, ends = self.begins_and_ends(places, isolation, within_s)

        def with_offsets(topic: Topic) -> Topic:
            return replace(
                topic,
                partitions=tuple(
                    replace(p, begin=begins[topic.name, p.partition], end=ends[topic.name, p.partition])
                    for p in topic.partitions
                ),
            )

        return tuple(map(with_offsets, found))

    def extents(self, topics: Iterable[str], isolation: Isolation = "committed") -> dict[str, Topic | None]:
        """The topics with ids, offsets, settings, and bytes where these are limited; None for one that does not exist.

        One question for the topics, one for each end of all partitions, one for the settings, one for the sizes;
        nothing is asked partition by partition.
        """
        wanted = list(dict.fromkeys(topics))
        known = self._identified(wanted) if wanted else {}
        configs = self._visible_configs(known)
        bounded = self.with_offsets(known.values(), isolation, _EXTENT_TIMEOUT_S)
        found = {topic.name: replace(topic, configs=configs.get(topic.name, {})) for topic in bounded}
        limited = [topic for topic in found.values() if topic.retention_bytes is not None]
        found.update({topic.name: topic for topic in (self._with_sizes(limited) if limited else ())})
        return {name: found.get(name) for name in wanted}

    # -- offsets ------------------------------------------------------------------------------------------------

    def look_up(
        self, places: Iterable[TopicPartition], at: Start, isolation: Isolation = "uncommitted"
    ) -> dict[TopicPartition, int]:
        """The offset of each partition that `at` means; a partition without an answer is an error."""
        return look_up(self, places, at, isolation)

    def next_records(
        self, positions: Mapping[TopicPartition, int], isolation: Isolation = "committed"
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Offset and timestamp (ms) of the first record at or after each position; those that have none are missing."""
        return next_records(self.connection, positions, isolation)

    def begins_and_ends(
        self,
        partitions: Iterable[TopicPartition],
        isolation: Isolation = "uncommitted",
        within_s: float = BROKER_TIMEOUT_S,
    ) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, int | None]]:
        """The first offset that can be read and the one after the last; None where no leader answers."""
        wanted = list(partitions)
        begins = ask_offsets(self, wanted, Start("beginning"), isolation, within_s)
        ends = ask_offsets(self, wanted, Start("end"), isolation, within_s)
        return known_offsets(begins()), known_offsets(ends())

    def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int | None]:
        """The first offset with that timestamp or a later one; None if there is no such record."""
        return known_offsets(ask_offsets(self, partitions, Start("time", timestamp_ms), within_s=BROKER_TIMEOUT_S)())

    # -- how it is asked ----------------------------------------------------------------------------------------

    def _identified(self, names: Sequence[str]) -> dict[str, Topic]:
        """Those of the topics that exist, with their ids; one that was deleted and created again has another one."""
        from confluent_kafka import KafkaError, TopicCollection

        futures = self.client.describe_topics(TopicCollection(list(names)), request_timeout=self.timeout_s)
        found = self.settle(
            futures, "describe topic {name}", accept=lambda _, error: error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        )
        return {name: _described_topic(topic) for name, topic in found.items()}

    def _visible_configs(self, topics: Iterable[str]) -> dict[str, dict[str, ConfigValue]]:
        """The settings of those topics whose settings may be seen."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        found = self._described([ConfigResource(ResourceType.TOPIC, name) for name in topics], accept=lambda *_: True)
        return {resource.name: configs for resource, configs in found.items()}

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

    def _with_sizes(self, topics: Sequence[Topic]) -> tuple[Topic, ...]:
        sizes = self._log_dirs(
            sorted({broker for t in topics for p in t.partitions for broker in p.replicas}),
            [topic.name for topic in topics],
        )
        now = datetime.now(UTC)

        def with_size(topic: str, p: Partition) -> Partition:
            place = (topic, p.partition)
            return p.measured(p.begin, p.end, {b: sizes[b].get(place, 0) if b in sizes else None for b in p.replicas})

        return tuple(replace(t, partitions=tuple(with_size(t.name, p) for p in t.partitions), at=now) for t in topics)

    def _log_dirs(self, brokers: Iterable[int], topics: Sequence[str]) -> dict[int, dict[TopicPartition, int]]:
        """The bytes of each partition on each broker that answered."""

        def ask(client: Any, broker: int) -> dict[TopicPartition, int]:
            return _partition_bytes(client.describe_log_dirs(list(topics), brokers=[broker])[0]["log_dirs"])

        return self.ask_each(brokers, ask)


def wanted_topic(topic: NewTopic) -> Wanted:
    """The topic in the words of confluent-kafka; numbers that contradict each other are an error."""
    from confluent_kafka.admin import NewTopic as Wanted

    if topic.assignment is None:
        numbers = {"partitions": topic.partitions, "replicas": topic.replication}
        for what, number in numbers.items():
            if number is not None and number < 1:
                raise UsageError(f"the topic {short(topic.name)} cannot have {number} {what}")
        return Wanted(
            topic.name,
            num_partitions=topic.partitions or -1,
            replication_factor=topic.replication or -1,
            config=dict(topic.configs),
        )
    if topic.partitions not in (None, len(topic.assignment)) or topic.replication is not None:
        raise UsageError(
            f"the topic {topic.name} is given both an assignment and other numbers of partitions or replicas",
            hint="the assignment alone says how many there are",
        )
    return Wanted(
        topic.name,
        num_partitions=len(topic.assignment),
        replica_assignment=[list(replicas) for replicas in topic.assignment],
        config=dict(topic.configs),
    )


def _partition_bytes(log_dirs: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """The bytes of each partition in a broker's log directories, moves between directories aside."""
    dirs = list(log_dirs)
    if any(log_dir["error_code"] for log_dir in dirs) or not dirs:
        raise Failed("a broker did not describe its log directories", why="it is not allowed, or a disk has failed")
    return {
        (topic["name"], p["partition_index"]): p["partition_size"]
        for log_dir in dirs
        for topic in log_dir["topics"]
        for p in topic["partitions"]
        if not p["is_future_key"]
    }


def _topic(topic: TopicMetadata) -> Topic:
    """A topic of confluent-kafka's metadata."""
    return Topic(
        topic.topic or "",
        tuple(
            Partition(p.id, p.leader, tuple(p.replicas), tuple(p.isrs))
            for p in sorted(topic.partitions.values(), key=lambda p: p.id)
        ),
    )


def _described_topic(topic: TopicDescription) -> Topic:
    """A topic as confluent-kafka's describe_topics gives it."""
    return Topic(
        topic.name,
        tuple(
            Partition(
                p.id, p.leader.id if p.leader else -1, tuple(r.id for r in p.replicas), tuple(r.id for r in p.isr)
            )
            for p in sorted(topic.partitions, key=lambda p: p.id)
        ),
        # librdkafka writes the id in plain base64, Kafka's own tools in the form that is safe in URLs.
        topic_id=str(topic.topic_id).replace("+", "-").replace("/", "_") or None,
    )


def _is_forbidden(error: KafkaError) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)
