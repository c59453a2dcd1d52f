"""What stands beside the brokers: the registry's subjects, Connect's connectors, the memory of local processes.

They are asked over HTTP and from the operating system, at a slower pace, in a thread of their own: a registry that
hangs holds up nothing but itself. What has been found last is there to be read at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

from headrace.cluster import Cluster
from headrace.connect import Connectors, topics_of, waiting
from headrace.errors import HeadraceError
from headrace.monitor.snapshot import ConnectorView, SubjectView
from headrace.runtime import Periodic, memory_bytes
from headrace.schemas import Registry

T = TypeVar("T")
D = TypeVar("D")

_REST_S = 2.0
_SERVICES_EVERY_S = 4.0
_MEMORY_EVERY_S = 15.0
# A subject costs three requests; new ones first, then one after the other.
_SUBJECTS_AT_ONCE = 10


@dataclass(frozen=True)
class Services:
    """What was found last. None: it does not answer."""

    memory_bytes: Mapping[str, int | None] = field(default_factory=dict)
    subjects: tuple[SubjectView, ...] | None = None
    connectors: tuple[ConnectorView, ...] | None = None


@dataclass
class _Clock:
    """When something was done last."""

    at: dict[str, float] = field(default_factory=dict)

    def due(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now - self.at.get(what, -1e9) < every_s:
            return False
        self.at[what] = now
        return True


class ServicesWatch(Periodic):
    """Looks at what stands beside the brokers."""

    def __init__(
        self,
        cluster: Cluster | None,
        registry: Registry | None,
        connectors: Connectors | None,
        topics: Callable[[], Collection[str]],
    ) -> None:
        super().__init__("services")
        self.topics = topics
        self.cluster = cluster
        self.registry = registry
        self.worker = connectors
        self.latest = Services()
        self._clock = _Clock()
        self._subjects: dict[str, SubjectView] = {}
        self._to_visit: list[str] = []

    def poll_now(self) -> None:
        """Somebody has changed something: look at all of it soon."""
        self._clock.at.clear()
        super().poll_now()

    def poll(self) -> float:
        """One look at everything that is due."""
        now = self.latest
        memory, subjects, connectors = now.memory_bytes, now.subjects, now.connectors
        if self.cluster and self._clock.due("memory", _MEMORY_EVERY_S):
            memory = _tried(self._memory, {})
        if self.registry and self._clock.due("registry", _SERVICES_EVERY_S):
            subjects = _tried(self._look_at_subjects, None)
        if self.worker and self._clock.due("connect", _SERVICES_EVERY_S):
            connectors = _tried(self._look_at_connectors, None)
        self.latest = Services(memory, subjects, connectors)
        return _REST_S

    def _memory(self) -> dict[str, int | None]:
        nodes = self.cluster.node_states() if self.cluster else ()
        return {node.name: _memory_of(node.pid) for node in nodes if node.pid}

    def _look_at_subjects(self) -> tuple[SubjectView, ...]:
        registry = self.registry
        if registry is None:
            return ()
        names = registry.subjects()
        self._subjects = {name: self._subjects.get(name) or SubjectView(subject=name) for name in names}
        new = [name for name, view in self._subjects.items() if view.versions is None]
        self._to_visit = [name for name in self._to_visit if name in self._subjects] or list(names)
        due = (new + self._to_visit)[:_SUBJECTS_AT_ONCE]
        self._to_visit = [name for name in self._to_visit if name not in due]
        for name in due:
            found = _tried(lambda name=name: _subject(registry, name), None)  # type: ignore[misc]
            if found:
                self._subjects[name] = found
        return tuple(self._subjects[name] for name in sorted(self._subjects))

    def _look_at_connectors(self) -> tuple[ConnectorView, ...]:
        if self.worker is None:
            return ()
        topics = self.topics()
        return tuple(
            ConnectorView(
                name=status.name,
                kind=status.kind,
                state=status.state,
                worker=status.worker,
                tasks=status.tasks,
                connector_class=config.get("connector.class"),
                topics=topics_of(config),
                trace=status.trace,
                waiting=waiting(status.kind, config, topics) if topics and status.state == "RUNNING" else None,
            )
            for status, config in self.worker.everything()
        )


def _tried(question: Callable[[], T], otherwise: D) -> T | D:
    try:
        return question()
    except (HeadraceError, OSError):
        return otherwise


def _memory_of(pid: int) -> int | None:
    try:
        return memory_bytes(psutil.Process(pid))
    except psutil.Error:
        return None


def _subject(registry: Registry, name: str) -> SubjectView:
    versions = registry.versions(name)
    latest = registry.version(name)
    return SubjectView(
        subject=name,
        versions=tuple(versions),
        schema_id=latest.id,
        kind=latest.schema.kind,
        level=registry.compatibility(name),
    )
