"""`Kafka`: everything that can be asked of a Kafka and changed in it.

A change is done when every live broker knows of it, so that the next question does not meet one that has not heard of
it yet.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal

from headrace.errors import AlreadyExists, Failed, HeadraceError, Unreachable, UsageError
from headrace.kafka.asking import Questions, wanted_topic
from headrace.kafka.bounds import Start, ask_offsets, known_offsets
from headrace.kafka.client import BROKER_TIMEOUT_S, AdminClients, Connection
from headrace.kafka.groups import Groups
from headrace.kafka.model import (
    Cleaned,
    Elected,
    NewTopic,
    Topic,
    is_topic_name,
)
from headrace.kafka.ranges import records_between
from headrace.runtime import NotYet, eventually
from headrace.text import short

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import TopicMetadata

_LOOK_AGAIN_S = 0.02


class Kafka(Questions):
    """Questions to a Kafka, and changes of it.

    As a context manager it closes its connections at the end:

        with Kafka("127.0.0.1:9092") as kafka:
            print([topic.name for topic in kafka.topics()])
            print({group.group: kafka.groups.describe(group.group).lag for group in kafka.groups.list()})
    """

    @property
    def groups(self) -> Groups:
        """Consumer groups: `list`, `describe`, `plan_reset`, `reset` and `delete`."""
        return Groups(self)

    # -- changes of topics --------------------------------------------------------------------------------------

    def create_topics(self, topics: Iterable[NewTopic], *, wait: bool = True) -> None:
        """The topics exist. Those that were already there are an error; the others were created all the same.

        Every live broker knows them then; without `wait` the controller does, and the others soon.

        kafka.create_topics([NewTopic("breadcrumbs", partitions=6, replication=3)])
        """
        wanted = {topic.name: topic for topic in topics}
        before = self._metadata().topics
        doubtful: list[NewTopic] = []

        def by_a_retry(name: str, error: KafkaError) -> bool:
            """A client or broker that got no answer asks again, and the answer is that the topic exists."""
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

        kafka.alter_topic("breadcrumbs", partitions=12, configs={"retention.ms": "3600000", "segment.ms": None})
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

        def unknown(name: str, error: KafkaError) -> HeadraceError | None:
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

        kafka.elect_preferred().moved
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
        preferred = {(t.name, p.partition): p.replicas[0] for t in topics for p in t.partitions}

        def led(found: Mapping[str, TopicMetadata]) -> bool:
            known = [place for place in moved if place[0] in found]
            return all(found[topic].partitions[number].leader == preferred[topic, number] for topic, number in known)

        self._everywhere(led)
        return Elected(tuple(sorted(moved)), dict(sorted(refused.items())))

    def clean_topic(self, name: str, *, how: Literal["truncate", "read"] = "truncate") -> Cleaned:
        """Everything that the topic held has been deleted (truncate), or read once and thrown away (read).

        kafka.clean_topic("breadcrumbs").offsets
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

    # -- how it is changed --------------------------------------------------------------------------------------

    def _wait_for_leaders(self, topics: Mapping[str, NewTopic]) -> None:
        """Every live broker knows the topics, and the leaders answer. A topic without leaders exists as well."""

        def known(found: Mapping[str, TopicMetadata]) -> bool:
            return all(
                name in found and found[name].error is None and len(found[name].partitions) >= (topic.partitions or 1)
                for name, topic in topics.items()
            )

        self._everywhere(known)
        # A broker is named as the leader a moment before it has made the log; until then it denies to be one.
        with suppress(NotYet, Unreachable):
            eventually(partial(self._leaders_answer, tuple(topics)), BROKER_TIMEOUT_S, every_s=0.02)

    def _leaders_answer(self, names: Sequence[str]) -> bool:
        found = self._metadata().topics
        places = [(name, number) for name in names if name in found for number in found[name].partitions]
        answers = ask_offsets(self, places, Start("end"), within_s=BROKER_TIMEOUT_S)()
        return None not in known_offsets(answers).values()

    def _everywhere(self, seen: Callable[[Mapping[str, TopicMetadata]], bool]) -> bool:
        """Waits until each live broker sees the topics so. A change is known to the controller first, to others later:
        without this, the next question may go to a broker that has not heard of it."""
        ones = [Connection(address, self.connection.properties) for address in self.live_brokers().values()]
        with ThreadPoolExecutor(len(ones) or 1) as pool:
            return all([*pool.map(partial(_comes_to_see, seen, self.timeout_s), ones)])

    def _why_not_created(self, topic: NewTopic, error: KafkaError) -> HeadraceError | None:
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

        def refused(_: object, error: KafkaError) -> HeadraceError | None:
            return self._bad_config(name, configs, error.str()) if error.name() == "INVALID_CONFIG" else None

        self.settle(futures, f"alter topic {name}", refused)

    def _grow(self, name: str, partitions: int, only_try: bool) -> None:
        from confluent_kafka.admin import NewPartitions

        futures = self.client.create_partitions([NewPartitions(name, partitions)], validate_only=only_try)
        self.settle(futures, f"add partitions to {name}")

    def _truncate(self, found: Topic) -> None:
        from confluent_kafka import TopicPartition as Until

        until = [Until(found.name, p.partition, p.end) for p in found.partitions if p.end and p.offsets]
        if until:
            self.settle(self.client.delete_records(until, request_timeout=self.timeout_s), f"truncate {found.name}")

    def _read_through(self, found: Topic) -> int:
        """How many records lie between the begins and the ends of a moment ago. Commits nothing."""
        partitions = [p for p in found.partitions if p.end and p.offsets]
        begins = {(found.name, p.partition): p.begin or 0 for p in partitions}
        ends = {(found.name, p.partition): p.end or 0 for p in partitions}
        return sum(1 for _ in records_between(self.connection, begins, ends, "uncommitted", self.timeout_s))


def _comes_to_see(seen: Callable[[Mapping[str, TopicMetadata]], bool], within_s: float, one: Connection) -> bool:
    """True once the broker sees the topics so. One that answers is waited for, one that is silent only for a while."""
    answered_at = began = time.monotonic()
    while True:
        try:
            # With a client of its own each time: only its first answer is surely that broker's, later ones anybody's.
            with AdminClients(one, timeout_s=1) as clients:
                if seen(clients._metadata().topics):
                    return True
            answered_at = time.monotonic()
        except Unreachable:
            if time.monotonic() - answered_at > BROKER_TIMEOUT_S:
                return False
        if time.monotonic() - began > within_s:
            return False
        time.sleep(_LOOK_AGAIN_S)


def _already_exists(name: str) -> AlreadyExists:
    return AlreadyExists(f"the topic {name!r} exists already", hint=f"headrace topic describe {name}")
