"""`Backend`: what all pages and the API share: the sampler, the history, a browser of records, and every change.

Everything that changes a cluster goes through here, so this is where a read-only console says no. The addresses were
given when the console was started; nothing that a browser sends is ever used as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from headrace.cluster import Cluster
from headrace.connect import Connectors, ConnectorStatus, SettingError, without_secrets
from headrace.console.commands import Commands
from headrace.errors import Failed, NotAllowed, NotFound, UsageError
from headrace.kafka import Cleaned, Elected, Kafka, NewTopic, PlannedOffset, ResetTo, Topic
from headrace.kafka.browse import Browser, Renderer
from headrace.kafka.write import ProduceOptions, Shaping, produce
from headrace.monitor import Event, History, NodeView, Sampler, Snapshot, Target
from headrace.schemas import LEVELS, Level, Registry, Schema, Verdict

T = TypeVar("T")

NODE_VERBS = ("start", "stop", "restart", "kill", "pause", "resume")
CONNECTOR_VERBS = ("pause", "resume", "stop", "restart", "delete")
_DELIVERY_S = 10.0


@dataclass(frozen=True)
class NewRecord:
    """A record to be written. None as a value is a tombstone."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None

    @classmethod
    def of(
        cls, topic: str, value: str | None, key: str | None, headers: Mapping[str, str], partition: int | None
    ) -> NewRecord:
        """The record of these texts, as UTF-8."""
        try:
            value_bytes, key_bytes = (None if text is None else text.encode() for text in (value, key))
            named = {name.encode().decode(): text.encode() for name, text in headers.items()}
        except UnicodeEncodeError as error:
            raise UsageError(
                "the record is not text", why=f"UTF-8 cannot encode {error.object[error.start]!r}"
            ) from None
        return cls(topic, value_bytes, key_bytes, tuple(named.items()), partition)


class Backend:
    """One console's view of one Kafka."""

    def __init__(self, target: Target, sampler: Sampler, history: History, *, read_only: bool = False) -> None:
        self.target = target
        self.sampler = sampler
        self.history = history
        self.read_only = read_only
        self.look = Renderer(target.registry)
        self.commands = Commands(
            target.connection.bootstrap,
            foreign=target.cluster is None,
            registry=target.registry.url if target.registry else None,
            connect=target.connectors.url if target.connectors else None,
            connect_token=self._connect_token(),
        )

    def _connect_token(self) -> Path | None:
        """Where the token for the cluster's own worker stands; another worker has none of ours."""
        cluster, worker = self.target.cluster, self.target.connectors
        own = cluster and worker and worker.url == cluster.spec.url("connect")
        return cluster.home.node("connect") / "token" if own and cluster else None

    @property
    def now(self) -> Snapshot:
        return self.sampler.latest

    @property
    def title(self) -> str:
        """How this cluster is called: by its folder, or by its address."""
        cluster = self.target.cluster
        if cluster is None:
            return self.target.connection.bootstrap.split(",")[0]
        root = cluster.home.root
        return root.parent.name if root.name == ".headrace" else root.name

    @cached_property
    def admin(self) -> Kafka:
        return Kafka(self.target.connection)

    @cached_property
    def browser(self) -> Browser:
        return Browser(self.target.connection, self.look)

    def close(self) -> None:
        for name in ("browser", "admin"):
            if name in self.__dict__:
                self.__dict__[name].close()

    # -- topics -------------------------------------------------------------------------------------------------

    def describe_topic(self, name: str) -> Topic:
        return self.admin.describe(name)

    def count_records(self, name: str) -> tuple[int, int | None]:
        """The offsets in use, and how many records they stand for; None if the topic is too large to be counted."""
        found = self.describe_topic(name)
        return found.offsets or 0, self.browser.count(found)

    def create_topic(self, topic: NewTopic) -> None:
        self.change(lambda: self.admin.create_topics([topic]))

    def alter_topic(self, name: str, partitions: int | None, configs: Mapping[str, str | None]) -> None:
        self.change(lambda: self.admin.alter_topic(name, partitions=partitions, configs=configs))

    def clean_topic(self, name: str) -> Cleaned:
        return self.change(
            lambda: self.admin.clean_topic(name), event_text=f"{name} was emptied from the console", topic=name
        )

    def delete_topic(self, name: str) -> None:
        if name.startswith("__"):
            raise NotAllowed(f"{name} is one of Kafka's own topics", why="groups or transactions would be lost with it")
        self.change(lambda: self.admin.delete_topics([name]))

    def elect_preferred(self) -> Elected:
        return self.change(self.admin.elect_preferred)

    # -- records ------------------------------------------------------------------------------------------------

    def produce(self, record: NewRecord) -> tuple[int, int]:
        """Partition and offset of the record that was written."""
        return self.change(lambda: self._deliver(record))

    def _deliver(self, record: NewRecord) -> tuple[int, int]:
        topic = self.admin.topic(record.topic)
        if record.partition is not None and record.partition >= len(topic.partitions):
            raise NotFound(f"{record.topic} has no partition {record.partition}", why=f"it has {len(topic.partitions)}")
        shaping = Shaping(key=record.key, headers=record.headers, partition=record.partition)
        # A partitioner that is named decides: `produce` alone deals records without a key out, from partition 0 on.
        settings = {"message.timeout.ms": int(_DELIVERY_S * 1000), "partitioner": "murmur2_random"}
        options = ProduceOptions(shaping=shaping, settings=settings)
        report = produce(self.target.connection, record.topic, [record.value], options=options)
        if not report.acknowledged:
            why = next(iter(report.reasons), None) or str(report.error)
            raise Failed(f"{record.topic} did not accept the record", why=why)
        ((partition, span),) = report.partitions[record.topic].items()
        return partition, span.first_offset

    # -- groups -------------------------------------------------------------------------------------------------

    def plan_reset(self, group: str, to: str, topics: Sequence[str]) -> tuple[PlannedOffset, ...]:
        with Kafka(self.target.connection) as kafka:
            return kafka.groups.plan_reset(group, ResetTo.parse(to), [(topic, None) for topic in topics])

    def reset_group(self, group: str, to: str, topics: Sequence[str]) -> tuple[PlannedOffset, ...]:
        def reset() -> tuple[PlannedOffset, ...]:
            with Kafka(self.target.connection) as kafka:
                plan = kafka.groups.plan_reset(group, ResetTo.parse(to), [(topic, None) for topic in topics])
                kafka.groups.reset(group, plan)
                return plan

        return self.change(reset, event_text=f"the offsets of group {group} were reset from the console", group=group)

    def delete_group(self, group: str) -> None:
        def delete() -> None:
            with Kafka(self.target.connection) as kafka:
                kafka.groups.delete([group])

        self.change(delete)

    # -- nodes --------------------------------------------------------------------------------------------------

    def node(self, name: str) -> NodeView:
        """The node of that name, if there are nodes here."""
        found = next((node for node in self.now.nodes if node.name == name), None)
        if found is None:
            raise NotFound(
                f"there is no node {name!r} here", why="the console knows nodes only of a cluster on this machine"
            )
        return found

    def node_action(self, verb: str, name: str) -> None:
        """The node was started, stopped, killed, paused or resumed."""
        self._require_writable()
        cluster = self._cluster()
        if verb not in NODE_VERBS:
            raise UsageError(f"invalid action for a node: {verb!r}", why=f"possible are {', '.join(NODE_VERBS)}")
        if self.node(name).name == "console":
            raise NotAllowed("the console does not stop itself", hint=f"headrace {verb} console")
        words = {"start": "started", "stop": "stopped", "restart": "restarted", "kill": "killed", "pause": "paused",
                 "resume": "resumed"}  # fmt: skip
        event = Event(at=time.time(), kind="node", level="info", text=f"{name} is to be {words[verb]} from the console")
        method: Callable[[str], None] = getattr(cluster, verb)
        self.history.add_events([event])
        self.change(lambda: method(name))

    def _cluster(self) -> Cluster:
        if self.target.cluster is None:
            raise UsageError("this cluster runs elsewhere", why="only nodes on this machine can be started and stopped")
        return self.target.cluster

    # -- schemas ------------------------------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        if self.target.registry is None:
            raise NotFound("there is no schema registry here", hint="headrace up --with registry")
        return self.target.registry

    def check_schema(self, subject: str, schema: Schema) -> Verdict:
        if subject not in self.registry.subjects():
            return Verdict(True, self.registry.compatibility(), ())
        return self.registry.check(subject, schema)

    def register_schema(self, subject: str, schema: Schema) -> int:
        return self.change(lambda: self.registry.register(subject, schema))

    def set_compatibility(self, subject: str, level: str) -> None:
        if level not in LEVELS:
            raise UsageError(f"invalid compatibility level: {level!r}", why=f"possible are {', '.join(LEVELS)}")
        chosen: Level = level
        self.change(lambda: self.registry.set_compatibility(chosen, subject))

    def delete_subject(self, subject: str) -> list[int]:
        return self.change(lambda: self.registry.delete(subject))

    # -- connectors ---------------------------------------------------------------------------------------------

    @property
    def connectors(self) -> Connectors:
        if self.target.connectors is None:
            raise NotFound("there is no Connect worker here", hint="headrace up --with connect")
        return self.target.connectors

    def validate_connector(self, config: Mapping[str, str]) -> tuple[SettingError, ...]:
        return self.connectors.validate(config)

    def create_connector(self, name: str, config: Mapping[str, str]) -> ConnectorStatus:
        return self.change(lambda: self.connectors.create(name, config))

    def connector_config(self, name: str) -> dict[str, str]:
        """The settings of a connector, without its secrets."""
        return without_secrets(self.connectors.config(name))

    def alter_connector(self, name: str, changes: Mapping[str, str | None]) -> ConnectorStatus:
        return self.change(lambda: self.connectors.alter(name, changes))

    def connector_action(self, verb: str, name: str) -> ConnectorStatus | None:
        if verb not in CONNECTOR_VERBS:
            raise UsageError(
                f"invalid action for a connector: {verb!r}", why=f"possible are {', '.join(CONNECTOR_VERBS)}"
            )
        method: Callable[[str], ConnectorStatus | None] = getattr(self.connectors, verb)
        return self.change(lambda: method(name))

    # -- how things change --------------------------------------------------------------------------------------

    def _require_writable(self) -> None:
        if self.read_only:
            raise NotAllowed("this console is read-only", hint="start it without --read-only to change things here")

    def change(
        self,
        change: Callable[[], T],
        *,
        event_text: str | None = None,
        topic: str | None = None,
        group: str | None = None,
    ) -> T:
        """Does it, if it may be done, and lets the watch look at once."""
        self._require_writable()
        result = change()
        if event_text:
            kind: Literal["topic", "group"] = "topic" if topic else "group"
            event = Event(at=time.time(), kind=kind, level="info", text=event_text, topic=topic, group=group)
            self.history.add_events([event])
        self.sampler.poll_now()
        return result
