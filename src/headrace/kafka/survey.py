"""The same questions to every broker of a Kafka, again and again, where no broker may hold up the others.

    with Survey("127.0.0.1:9092") as survey:
        seen = survey.metadata()
        ends = survey.offsets(seen.leaders, Start("end"))

`Kafka` answers once and waits for what it asks; a monitor asks every other second and must not wait for a broker that
is paused, dying or cut off. So every question goes to one broker, a broker that does not answer in time is `quiet` from
then on and is not waited for, and an answer that comes late answers the next question with the same key. A key names
the whole question: the broker, what is asked, and about which topics, unless the answer itself names all it is about.
The requests are the few that can be asked for everything at once: a thousand topics cost some ten milliseconds.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from headrace.kafka.bounds import Isolation, Start
from headrace.kafka.client import AdminClients, HasBootstrap, connect, kafka_python, kafka_python_client, unreachable
from headrace.kafka.groups import STATES, member_of
from headrace.kafka.model import (
    Broker,
    Disk,
    Group,
    Member,
    Offset,
    Partition,
    Quorum,
    Topic,
    TopicPartition,
    quorum_of,
)

# A broker that is only busy answers some time; its connection is given up much later than we stop to wait for it.
_GIVE_UP_MS = 20_000
_BOOTSTRAP_S = 1.5
_QUORUM = "quorum"
# Longer than an election and the loading of a coordinator's groups take.
_DENIED_FOR_S = 3.0
# Kafka's error codes.
_NO_SUCH_GROUP, _NOT_AUTHORIZED = 69, 30

#: What is asked, and of which broker.
Key = tuple[str, int]
# State, assignor and members of a group.
_Described = tuple[str, str, tuple[Member, ...]]


@dataclass(frozen=True)
class Metadata:
    """What one broker says about the whole cluster."""

    cluster_id: str | None
    brokers: tuple[Broker, ...]
    topics: Mapping[str, Topic]

    @property
    def leaders(self) -> dict[int, dict[str, list[int]]]:
        """See `leaders_of`."""
        return leaders_of(self.topics.values())


class Survey:
    """Questions to all brokers at once. Used by one thread at a time."""

    def __init__(self, where: HasBootstrap | str, *, timeout_s: float = 1.0) -> None:
        kafka_python()  # its requests are imported where they are made
        self._connection = connect(where)
        self.timeout_s = timeout_s
        self._client: Any = None
        # A broker answers one connection's questions in their order, and passes this one on to the controller: without
        # a controller it would hold up all that are asked after it.
        self._client_for_quorum: Any = None
        self._open: dict[Key, float] = {}
        #: Answers that were not fetched yet, with the time when they came.
        self._answers: dict[Key, tuple[float, Any]] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._groups: dict[str, Group] = {}
        #: Groups that a coordinator denies, and since when.
        self._denied: dict[str, float] = {}
        self._preferred: int | None = None
        self._asked_for_members: dict[str, Any] = {}
        self._members_of: dict[str, _Described] = {}
        #: How long each broker took to answer the last question that needs nothing but itself.
        self.latency_s: dict[int, float] = {}

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No connection is open; the next question opens new ones."""
        self._admin.close()
        clients = self._client, self._client_for_quorum
        self._client = self._client_for_quorum = None
        for client in clients:
            if client is not None:
                client.close()

    @cached_property
    def _admin(self) -> AdminClients:
        return AdminClients(self._connection)

    # -- who is there -------------------------------------------------------------------------------------------

    def quiet(self, broker: int) -> bool:
        """True while the broker owes an answer for longer than the timeout."""
        now = time.monotonic()
        with self._changed:
            owed = [since for (kind, at), since in self._open.items() if at == broker and kind != _QUORUM]
        return any(now - since > self.timeout_s for since in owed)

    def metadata(self) -> Metadata:
        """Brokers, topics and partitions as the first broker knows them that answers; `Unreachable` if none does."""
        from kafka.protocol.admin import DescribeClusterRequest
        from kafka.protocol.metadata import MetadataRequest

        for broker in self._candidates():
            answers = self.ask(
                {
                    ("metadata", broker): MetadataRequest(topics=None, allow_auto_topic_creation=False),
                    ("cluster", broker): DescribeClusterRequest(include_fenced_brokers=True),
                }
            )
            found, cluster = answers.get(("metadata", broker)), answers.get(("cluster", broker))
            if found is not None:
                self._preferred = broker
                return Metadata(found.cluster_id, _brokers(found, cluster), _topics(found))
        self.close()  # addresses may be others when the cluster is back
        raise unreachable(self._connection.bootstrap, "no broker answers")

    def quorum(self) -> Quorum | None:
        """The controllers, as far as they can be asked: the answer comes from the active one."""
        from kafka.protocol.admin import DescribeQuorumRequest

        # Whoever still waits for a controller that is gone is not asked again; another may know the new one.
        free = [broker for broker in self._candidates() if (_QUORUM, broker) not in self._open]
        if not free:
            return None
        broker = free[0]
        try:
            self._quorum_client()
        except kafka_python().errors.KafkaError:
            return None
        topic = DescribeQuorumRequest.TopicData
        wanted = topic(topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)])
        # Not waited for like the others: without a controller there is no answer, and that is no fault of the broker.
        answers = self.ask({(_QUORUM, broker): DescribeQuorumRequest(topics=[wanted])}, within_s=0.3)
        return _quorum(answers.get((_QUORUM, broker)))

    # -- what they hold -----------------------------------------------------------------------------------------

    def offsets(
        self, leaders: Mapping[int, Mapping[str, Iterable[int]]], at: Start, isolation: Isolation = "uncommitted"
    ) -> dict[TopicPartition, int]:
        """The offsets of the partitions by leader, topic and number; those of quiet leaders are missing.

        With isolation "committed" the end is the last stable offset, else the high watermark.
        """
        from kafka.protocol.consumer import ListOffsetsRequest

        topic = ListOffsetsRequest.ListOffsetsTopic
        timestamp = at.timestamp
        asked = {leader: {name: tuple(numbers) for name, numbers in of.items()} for leader, of in leaders.items()}
        questions = {
            (f"offsets {timestamp} {isolation} {by_topic}", leader): ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(isolation == "committed"),
                topics=[
                    topic(
                        name=name,
                        partitions=[
                            topic.ListOffsetsPartition(partition_index=p, timestamp=timestamp, current_leader_epoch=-1)
                            for p in partitions
                        ],
                    )
                    for name, partitions in by_topic.items()
                ],
            )
            for leader, by_topic in asked.items()
        }
        return {
            (topic.name, p.partition_index): p.offset
            for answer in self.ask(questions).values()
            for topic in answer.topics
            for p in topic.partitions
            if p.error_code == 0 and p.offset >= 0
        }

    def disks(self, brokers: Iterable[int]) -> dict[int, Disk]:
        """What lies in the log directories of each broker that answered."""
        from kafka.protocol.admin import DescribeLogDirsRequest

        answers = self.ask({("disks", broker): DescribeLogDirsRequest(topics=None) for broker in brokers})
        return {broker: _disk(answer) for (_, broker), answer in answers.items()}

    def groups(self, brokers: Iterable[int]) -> tuple[Group, ...]:
        """The groups of all types; those whose coordinator does not answer as they were when it was last heard of."""
        from kafka.protocol.admin import ListGroupsRequest

        known = list(brokers)
        listed = self.ask({("groups", broker): ListGroupsRequest() for broker in known})
        found = {
            broker: tuple(
                Group(
                    g.group_id,
                    (g.group_type or "classic").lower(),
                    g.group_state or "-",
                    g.protocol_type or "-",
                    broker,
                )
                for g in answer.groups
            )
            for (_, broker), answer in listed.items()
        }
        members, committed, before = self._members(found), self._committed(found), self._groups
        self._groups = {
            g.group: _completed(g, members.get(g.group), committed.get(g.group), before.get(g.group))
            for of_broker in found.values()
            for g in of_broker
        }
        for name in self._not_denied(before.keys() - self._groups.keys(), known):
            self._groups[name] = replace(before[name], stale=True)
        return tuple(self._groups[name] for name in sorted(self._groups))

    def _not_denied(self, missing: set[str], brokers: Iterable[int]) -> set[str]:
        """Those of the groups that are not listed any more which may exist all the same.

        While a coordinator is away, or its successor still loads what it has to know, no broker lists its groups. Only
        a coordinator denies a group. It must do so for a while: after a kill, a successor was seen to deny groups twice
        in a row that it listed a moment later.
        """
        from kafka.protocol.admin import DescribeGroupsRequest

        questions = {("denied", broker): DescribeGroupsRequest(groups=sorted(missing)) for broker in brokers}
        answers = self.ask(questions) if missing else {}
        denied = {g.group_id for answer in answers.values() for g in answer.groups if _is_denial(g)} & missing
        now = time.monotonic()
        self._denied = {group: self._denied.get(group, now) for group in denied}
        return {group for group in missing if now - self._denied.get(group, now) < _DENIED_FOR_S}

    # -- how it is asked ----------------------------------------------------------------------------------------

    def ask(self, questions: Mapping[Key, Any], *, within_s: float | None = None) -> dict[Key, Any]:
        """The answers that came in time, each under the key of its question.

        A question that a broker still owes an answer to is not sent again.
        """
        self._connect()
        began = time.monotonic()
        quiet = {broker for _, broker in questions if self.quiet(broker)}
        new = {key: request for key, request in questions.items() if key not in self._open}
        with self._changed:
            self._open.update(dict.fromkeys(new, began))
            self._answers = {k: kept for k, kept in self._answers.items() if began - kept[0] < _GIVE_UP_MS / 1000}
        for key, request in new.items():
            client = self._quorum_client() if key[0] == _QUORUM else self._client
            client._net.call_soon_threadsafe(self._sending(client._manager, key, request))
        awaited = {key for key in questions if key[1] not in quiet}
        with self._changed:
            self._changed.wait_for(
                lambda: not awaited & self._open.keys(), self.timeout_s if within_s is None else within_s
            )
            answers = {key: self._answers.pop(key)[1] for key in questions if key in self._answers}
        return {key: answer for key, answer in answers.items() if answer is not None}

    def ask_once(self, broker: int, request: Any) -> Any:
        """The answer to a question of which only the answer in time counts; None without one.

        A broker that is quiet is not asked: when it answers again, it would answer to all that was asked meanwhile.
        """
        if self.quiet(broker):
            return None
        key = (f"once {next(self._numbers)}", broker)
        return self.ask({key: request}).get(key)

    def _sending(self, manager: Any, key: Key, request: Any) -> Callable[[], None]:
        # The client takes functions only, nothing else that can be called.
        return lambda: self._send(manager, key, request)

    def _send(self, manager: Any, key: Key, request: Any) -> None:
        """On the client's own thread."""
        _, broker = key
        try:
            future = manager.send(request, node_id=broker, request_timeout_ms=_GIVE_UP_MS)
        except Exception as error:  # what it raises depends on the state of the connection
            if type(error).__name__ == "UnknownBrokerIdError":
                manager.cluster.request_update()
            self._settle(key, None)
            return
        future.add_callback(lambda answer: self._settle(key, answer))
        future.add_errback(lambda _: self._settle(key, None))

    def _settle(self, key: Key, answer: Any) -> None:
        kind, broker = key
        with self._changed:
            since = self._open.pop(key, None)
            self._answers[key] = (time.monotonic(), answer)
            if answer is None:
                self.latency_s.pop(broker, None)
            elif since is not None and kind in {"groups", "metadata"}:
                self.latency_s[broker] = time.monotonic() - since
            self._changed.notify_all()

    def _candidates(self) -> list[int]:
        """Whom to ask for metadata: who answered last, then who is not quiet, each until the timeout."""
        self._connect()
        known = sorted(broker.node_id for broker in self._client._manager.cluster.brokers())
        return sorted(known, key=lambda broker: (self.quiet(broker), broker != self._preferred))

    def _connect(self) -> None:
        if self._client is not None:
            return
        with self._changed:
            self._open.clear()
            self._answers.clear()
        for address in self._connection.bootstrap.split(","):
            # One by one: the client would take one of them at random and wait for that one alone.
            with suppress(kafka_python().errors.KafkaError):
                self._client = self._new_client(address)
                return
        raise unreachable(self._connection.bootstrap, "no broker answers")

    def _quorum_client(self) -> Any:
        if self._client_for_quorum is None:
            known = self._client._manager.cluster.broker_metadata(self._preferred)
            self._client_for_quorum = self._new_client(f"{known.host}:{known.port}")
        return self._client_for_quorum

    def _new_client(self, address: str) -> Any:
        return kafka_python_client(
            self._connection,
            [address],
            bootstrap_timeout_ms=int(_BOOTSTRAP_S * 1000),
            request_timeout_ms=_GIVE_UP_MS,
            reconnect_backoff_max_ms=1000,
            max_in_flight_requests_per_connection=100,
        )

    def _members(self, found: Mapping[int, tuple[Group, ...]]) -> dict[str, _Described]:
        """State, assignor and members by group."""
        from kafka.protocol.admin import DescribeGroupsRequest

        questions = {
            ("members", broker): DescribeGroupsRequest(groups=[g.group for g in groups if g.type == "classic"])
            for broker, groups in found.items()
            if any(g.type == "classic" for g in groups)
        }
        described = {
            g.group_id: (g.group_state, g.protocol_data, tuple(sorted(map(_member, g.members), key=_by_name)))
            for answer in (self.ask(questions) if questions else {}).values()
            for g in answer.groups
            if g.error_code == 0
        }
        new_protocol = [g.group for groups in found.values() for g in groups if g.type == "consumer"]
        return described | self._members_of_consumer_groups(new_protocol)

    def _members_of_consumer_groups(self, names: list[str]) -> dict[str, _Described]:
        """Of groups of the new protocol (KIP-848): only librdkafka speaks that request."""
        asked = self._asked_for_members
        new = [name for name in names if name not in asked]
        if new:
            asked.update(self._admin.client.describe_consumer_groups(new, request_timeout=_GIVE_UP_MS / 1000))
        done, _ = concurrent.futures.wait(asked.values(), timeout=self.timeout_s / 2)
        for name in [name for name, future in asked.items() if future in done]:
            future = asked.pop(name)
            if future.exception() is None:
                group = future.result()
                members = tuple(sorted(map(member_of, group.members), key=_by_name))
                self._members_of[name] = (STATES.get(group.state.name, ""), group.partition_assignor, members)
        self._members_of = {name: known for name, known in self._members_of.items() if name in names}
        return self._members_of

    def _committed(self, found: Mapping[int, tuple[Group, ...]]) -> dict[str, tuple[Offset, ...]]:
        from kafka.protocol.consumer import OffsetFetchRequest

        group = OffsetFetchRequest.OffsetFetchRequestGroup
        questions = {
            ("committed", broker): OffsetFetchRequest(
                groups=[group(group_id=g.group, topics=None) for g in groups if g.type in {"classic", "consumer"}],
                require_stable=False,
                min_version=8,
                max_version=9,  # later ones name topics by their ids
            )
            for broker, groups in found.items()
            if any(g.type in {"classic", "consumer"} for g in groups)
        }
        return {
            of_group.group_id: tuple(
                Offset(topic.name, p.partition_index, p.committed_offset)
                for topic in of_group.topics
                for p in topic.partitions
                if p.error_code == 0 and p.committed_offset >= 0
            )
            for answer in (self.ask(questions) if questions else {}).values()
            for of_group in answer.groups
            if of_group.error_code == 0
        }


def leaders_of(topics: Iterable[Topic], wanted: Container[int] | None = None) -> dict[int, dict[str, list[int]]]:
    """The partitions by leader and topic, all or those with wanted numbers; those without a leader are missing."""
    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for p in topic.partitions:
            if p.leader >= 0 and (wanted is None or p.partition in wanted):
                by_leader.setdefault(p.leader, {}).setdefault(topic.name, []).append(p.partition)
    return by_leader


def _brokers(found: Any, cluster: Any) -> tuple[Broker, ...]:
    """The registered brokers; where Kafka is too old to tell the fenced ones, the live ones."""
    if cluster is not None and cluster.error_code == 0:
        listed = [
            Broker(b.broker_id, b.host, b.port, b.rack, bool(getattr(b, "is_fenced", False))) for b in cluster.brokers
        ]
    else:
        listed = [Broker(b.node_id, b.host, b.port, b.rack) for b in found.brokers]
    return tuple(sorted(listed, key=lambda broker: broker.broker_id))


def _topics(found: Any) -> dict[str, Topic]:
    return {
        topic.name: Topic(topic.name, tuple(map(_partition, sorted(topic.partitions, key=_number))))
        for topic in sorted(found.topics, key=lambda topic: topic.name)
        if topic.error_code == 0
    }


def _number(partition: Any) -> int:
    return int(partition.partition_index)


def _partition(p: Any) -> Partition:
    return Partition(p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(sorted(p.isr_nodes)))


def _quorum(answer: Any) -> Quorum | None:
    if answer is None or answer.error_code or not answer.topics or answer.topics[0].partitions[0].error_code:
        return None
    state = answer.topics[0].partitions[0]
    replicas = [(r.replica_id, r.log_end_offset, True) for r in state.current_voters]
    replicas += [(r.replica_id, r.log_end_offset, False) for r in state.observers]
    return quorum_of(state.leader_id, state.leader_epoch, state.high_watermark, sorted(replicas))


def _disk(answer: Any) -> Disk:
    partitions: dict[TopicPartition, int] = {}
    for log_dir in answer.results:
        for topic in log_dir.topics:
            for p in topic.partitions:
                if not p.is_future_key:
                    partitions[topic.name, p.partition_index] = p.partition_size
    totals = [getattr(log_dir, "total_bytes", -1) for log_dir in answer.results]
    usables = [getattr(log_dir, "usable_bytes", -1) for log_dir in answer.results]
    known = bool(totals) and min(totals) >= 0
    return Disk(partitions, max(totals) if known else None, min(usables) if known else None)


def _member(member: Any) -> Member:
    return Member(
        member.member_id,
        member.client_id,
        member.client_host.removeprefix("/"),
        member.group_instance_id or None,
        _assignment(member.member_assignment),
    )


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a classic member's assignment; none if another protocol than the consumers' wrote it."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    try:
        found = ConsumerProtocolAssignment.decode(data) if data else None
    except Exception:  # anybody may write anything there
        return ()
    if found is None:
        return ()
    return tuple(sorted((t.topic, p) for t in found.assigned_partitions for p in t.partitions))


def _by_name(member: Member) -> tuple[str, str]:
    return member.client_id, member.member_id


def _is_denial(group: Any) -> bool:
    """True if a coordinator has said that there is no such group, or none that we may see; older ones call it dead."""
    return group.error_code in {_NO_SUCH_GROUP, _NOT_AUTHORIZED} or (
        not group.error_code and group.group_state == "Dead"
    )


def _completed(
    group: Group, described: _Described | None, offsets: tuple[Offset, ...] | None, before: Group | None
) -> Group:
    """The group with what it was described as; what nobody said this time is what was known before."""
    state, assignor, members = described or ("", None, None)
    stale = False
    if before is not None and offsets is None:
        offsets, stale = before.offsets, before.offsets is not None
    if before is not None and members is None:
        assignor, members = before.assignor, before.members
    return replace(
        group, state=state or group.state, assignor=assignor or None, members=members, offsets=offsets, stale=stale
    )
