"""Look at and change topics.

Every question is answered from what the brokers say at that moment: nothing is kept. A change is done when every live
broker knows of it, so that the next question does not meet one that has not heard of it yet. What only a silent broker
knows is None, and `silent_brokers` names it.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from headrace.errors import AlreadyExists, Failed, HeadraceError, NotFound, Unreachable, UsageError
from headrace.runtime import NotYet, eventually
from headrace.transport.admin_clients import BROKER_PATIENCE_S, AdminClients
from headrace.transport.client import Connection
from headrace.transport.topics import (
    Cleaned,
    ConfigValue,
    Elected,
    NewTopic,
    Partition,
    PartitionDescription,
    PartitionSize,
    Topic,
    TopicDescription,
    TopicPartition,
    TopicSize,
    count_until,
    is_topic_name,
    partition_bytes,
    short,
    wanted_topic,
)  # fmt: skip

_LOOK_AGAIN_S = 0.02


class TopicAdmin(AdminClients):
    """Questions about topics, and changes of them."""

    # -- what there is ------------------------------------------------------------------------------------------

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

    def _found(self, name: str) -> Any:
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
            [future] = self.client.create_topics(wanted, validate_only=True, request_timeout=BROKER_PATIENCE_S).values()
            future.result(timeout=BROKER_PATIENCE_S + 2)
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
        names = [topic.name for topic in self.topics(internal=True)]
        near = difflib.get_close_matches(name, names, n=1)
        if near:
            why, hint = f"the nearest name is {near[0]!r}", f"did you mean {near[0]}?"
        else:
            why = f"none of the cluster's {len(names)} has a similar name"
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

    def topic_offsets(self, topics: Iterable[Topic]) -> dict[str, int | None]:
        """The offsets in use of each topic, see `PartitionDescription.offsets`; None if a leader is missing."""
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
        begins, ends = (self._ask_offsets(wanted, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return begins(), ends()

    def offsets_at(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int | None]:
        """The first offset with that timestamp or a later one; None if there is no such record."""
        from confluent_kafka.admin import OffsetSpec

        return self._ask_offsets(list(partitions), OffsetSpec.for_timestamp(timestamp_ms))()

    # -- changes ------------------------------------------------------------------------------------------------

    def create_topics(self, topics: Iterable[NewTopic], *, wait: bool = True) -> None:
        """The topics exist. Those that were already there are an error; the others were created all the same.

        Every live broker knows them then; without `wait` the controller does, and the others soon.

        admin.create_topics([NewTopic("breadcrumbs", partitions=6, replication=3)])
        """
        wanted = {topic.name: topic for topic in topics}
        before = self._metadata().topics
        doubtful: list[NewTopic] = []

        def by_a_retry(name: str, error: Any) -> bool:
            """A client or broker that got no answer asks again, and is then told that the topic exists."""
            if error.name() != "TOPIC_ALREADY_EXISTS" or name in before:
                return False
            doubtful.append(wanted[name])
            return True

        try:
            futures = self.client.create_topics(
                [wanted_topic(topic) for topic in wanted.values()], operation_timeout=self.timeout_s
            )
        except (TypeError, ValueError) as error:
            raise UsageError("the topic cannot be created", why=str(error)) from None
        self.settle(
            futures, "create topic {name}", lambda name, error: self._why_not_created(wanted[name], error), by_a_retry
        )
        if wait or doubtful:
            self._wait_for_leaders(wanted)
        for topic in doubtful:
            if not self._is_like(topic):
                raise _already_exists(topic.name)

    def ensure_topic(self, topic: NewTopic) -> bool:
        """The topic exists; True if it was created just now, here or by another who wants it as well."""
        if topic.name in {found.name for found in self.topics(internal=True)}:
            return False
        try:
            self.create_topics([topic])
        except AlreadyExists:
            self._wait_for_leaders({topic.name: NewTopic(topic.name)})
            return False
        return True

    def _is_like(self, wanted: NewTopic) -> bool:
        found = self.topic(wanted.name)
        configs = self.topic_configs(wanted.name) if wanted.configs else {}
        return (
            wanted.partitions in (None, len(found.partitions))
            and wanted.replication in (None, found.replication)
            and all(name in configs and configs[name].value == value for name, value in wanted.configs.items())
        )

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
        for name in names:
            if not is_topic_name(name):
                raise self.no_such_topic(name)
        futures = self.client.delete_topics(list(names), operation_timeout=self.timeout_s)

        def unknown(name: str, error: Any) -> HeadraceError | None:
            return self.no_such_topic(name, wanted=False) if error.name() == "UNKNOWN_TOPIC_OR_PART" else None

        self.settle(futures, "delete topic {name}", unknown)
        if not self._everywhere(lambda found: not set(names) & set(found)) and (
            set(names) & set(self._metadata().topics)
        ):
            raise Failed(
                "Kafka has accepted the deletion, but still lists the topic",
                why=f"it was still there after {self.timeout_s:g} s",
                hint="a client may be creating it again: auto.create.topics.enable of the brokers",
            )

    def elect_preferred(self, names: Sequence[str] = ()) -> Elected:
        """Every partition of these topics, or of all, is led by the first of its replicas, where that one is in sync.

        admin.elect_preferred().moved
        """
        from confluent_kafka import ElectionType, KafkaError
        from confluent_kafka import TopicPartition as Of

        topics = self.require_topics(names) if names else self.topics(internal=True)
        wanted = [Of(t.name, p.partition) for t in topics for p in t.partitions if p.leader != p.replicas[0]]
        if not wanted:
            return Elected((), {})
        # Without its timeouts: confluent-kafka 2.16 fails at either of them.
        asked = self.client.elect_leaders(ElectionType.PREFERRED, wanted)
        answers = self.settle({"": asked}, "elect the preferred leaders")[""]
        moved, refused = [], {}
        for place, error in answers.items():
            if error is None:
                moved.append((place.topic, place.partition))
            elif error.code() != KafkaError.ELECTION_NOT_NEEDED:
                refused[place.topic, place.partition] = error.str()
        return Elected(tuple(sorted(moved)), dict(sorted(refused.items())))

    def clean_topic(self, name: str, *, how: Literal["truncate", "read"] = "truncate") -> Cleaned:
        """Everything that the topic held has been deleted (truncate), or read once and thrown away (read).

        admin.clean_topic("breadcrumbs").offsets
        """
        found = self.describe(name)
        unknown = [p.partition for p in found.partitions if p.end is None]
        if unknown:
            raise Failed(
                f"partition {unknown[0]} of {name} has no leader that answers, so nothing was cleaned",
                hint=f"headrace topic describe {name}",
            )
        if how == "read":
            return Cleaned(name, how, found.offsets or 0, found.size_bytes, self._read_through(found))
        self.require_truncatable(name)
        self._truncate(found)
        return Cleaned(name, how, found.offsets or 0, found.size_bytes)

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
        futures = self.client.list_offsets(wanted, request_timeout=BROKER_PATIENCE_S) if wanted else {}

        def answers() -> dict[TopicPartition, Any]:
            found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
            for asked, future in futures.items():
                try:
                    offset = future.result(timeout=BROKER_PATIENCE_S + 2).offset
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

    # -- how it is changed --------------------------------------------------------------------------------------

    def _wait_for_leaders(self, topics: Mapping[str, NewTopic]) -> None:
        """Every live broker knows the topics, and the leaders answer. A topic without leaders exists as well."""

        def known(found: Mapping[str, Any]) -> bool:
            return all(
                name in found and found[name].error is None and len(found[name].partitions) >= (topic.partitions or 1)
                for name, topic in topics.items()
            )

        self._everywhere(known)
        # A broker is named as the leader a moment before it has made the log; until then it denies to be one.
        with suppress(NotYet, Unreachable):
            eventually(partial(self._leaders_answer, tuple(topics)), BROKER_PATIENCE_S, every_s=0.02)

    def _leaders_answer(self, names: Sequence[str]) -> bool:
        from confluent_kafka.admin import OffsetSpec

        found = self._metadata().topics
        places = [(name, number) for name in names if name in found for number in found[name].partitions]
        return None not in self._ask_offsets(places, OffsetSpec.latest())().values()

    def _everywhere(self, seen: Callable[[Mapping[str, Any]], bool]) -> bool:
        """Waits until each live broker sees the topics so. A change is known to the controller first, to others later:
        without this, the next question may go to a broker that has not heard of it."""
        ones = [Connection(address, self.connection.properties) for address in self.live_brokers().values()]
        with ThreadPoolExecutor(len(ones) or 1) as pool:
            return all([*pool.map(partial(_comes_to_see, seen, self.timeout_s), ones)])

    def _why_not_created(self, topic: NewTopic, error: Any) -> HeadraceError | None:
        words = error.str()
        match error.name():
            case "TOPIC_ALREADY_EXISTS":
                return _already_exists(topic.name)
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

        until = [Until(found.topic, p.partition, p.end) for p in found.partitions if p.end and p.offsets]
        if until:
            self.settle(self.client.delete_records(until, request_timeout=self.timeout_s), f"truncate {found.topic}")

    def _read_through(self, found: TopicDescription) -> int:
        """How many records lie between the begins and the ends of a moment ago. Commits nothing."""
        from confluent_kafka import TopicPartition as From

        ends = {p.partition: p.end for p in found.partitions if p.end and p.offsets}
        consumer = self.connection.consumer(
            {
                "group.id": "headrace-clean",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            consumer.assign(
                [From(found.topic, p.partition, p.begin or 0) for p in found.partitions if p.partition in ends]
            )
            return count_until(consumer, ends, self.timeout_s)
        finally:
            consumer.close()


def _topic(topic: Any) -> Topic:
    """A topic of confluent-kafka's metadata."""
    return Topic(
        topic.topic,
        tuple(
            Partition(p.id, p.leader, tuple(p.replicas), tuple(p.isrs))
            for p in sorted(topic.partitions.values(), key=lambda p: p.id)
        ),
    )


def _comes_to_see(seen: Callable[[Mapping[str, Any]], bool], within_s: float, one: Connection) -> bool:
    """True once the broker sees the topics so. One that answers is waited for, one that is silent only for a while."""
    answered_at = began = time.monotonic()
    while True:
        try:
            # With a client of its own each time: only its first answer is surely that broker's, later ones anybody's.
            if seen(AdminClients(one, timeout_s=1)._metadata().topics):
                return True
            answered_at = time.monotonic()
        except Unreachable:
            if time.monotonic() - answered_at > BROKER_PATIENCE_S:
                return False
        if time.monotonic() - began > within_s:
            return False
        time.sleep(_LOOK_AGAIN_S)


def _already_exists(name: str) -> AlreadyExists:
    return AlreadyExists(f"the topic {name!r} exists already", hint=f"headrace topic describe {name}")


def _is_forbidden(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)
