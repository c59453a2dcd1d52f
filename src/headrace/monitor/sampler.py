"""`Sampler`: one thread that polls everything every two seconds and makes a Snapshot of it (`poller`).

Each snapshot goes into the history, and what has changed since the one before becomes events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from msgspec.structs import replace

from headrace.monitor.events import Event, changes, owners
from headrace.monitor.history import History, SeriesKey
from headrace.monitor.pipelines import PipelineWatch
from headrace.monitor.poller import EVERY_S, Poller, Target
from headrace.monitor.services import ServicesWatch
from headrace.monitor.snapshot import Snapshot
from headrace.runtime import Periodic

_MIN_REST_S = 0.2
_STOP_S = 10.0


class Sampler(Periodic):
    """Makes snapshots until it is stopped. Any thread may read `latest` and wait for the next one."""

    def __init__(self, target: Target, history: History) -> None:
        super().__init__("sampler")
        self.target = target
        self.history = history
        self.pipelines = PipelineWatch(target.cluster.home, target.connection) if target.cluster else None
        self.services = ServicesWatch(target.cluster, target.registry, target.connectors, lambda: self.latest.topics)
        self._poller = Poller(target, self.services)
        self._changed = threading.Condition()
        self._latest = Snapshot(
            at=time.time(), took_s=0, every_s=EVERY_S, reachable=False, bootstrap=target.connection.bootstrap,
            problem="no sample was taken yet",
        )  # fmt: skip

    @property
    def latest(self) -> Snapshot:
        return self._latest

    def start(self) -> None:
        self.history.add_events([Event(at=time.time(), kind="console", level="info", text="the console was started")])
        self.services.start()
        if self.pipelines:
            self.pipelines.start()
        super().start()

    def stop(self, within_s: float | None = _STOP_S) -> None:
        """Nothing is asked any more, but by a watch of services that still waits for its answer."""
        super().stop(within_s)
        self.services.stop(0)
        if self.pipelines:
            self.pipelines.stop(0)
        self._poller.survey.close()

    def poll_now(self) -> None:
        """Something was changed: the next poll covers everything, and comes soon."""
        self._poller.everything_is_due()
        self.services.poll_now()
        if self.pipelines:
            self.pipelines.poll_now()
        super().poll_now()

    def after(self, at: float, within_s: float) -> Snapshot:
        """The first snapshot that was begun after that time, or the latest after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._latest.at - self._latest.took_s > at, within_s)
            return self._latest

    def poll(self) -> float:
        """One poll of everything; the pace is kept, however long a poll takes."""
        began = time.monotonic()
        try:
            self.sample()
        except Exception as error:  # the watch must go on, whatever one look stumbles over
            self._stumbled(error)
        return max(_MIN_REST_S, self._latest.every_s - (time.monotonic() - began))

    def sample(self) -> Snapshot:
        """A snapshot of everything; what changed since the one before is an event."""
        before = self._latest
        after = self._with_pipelines(self._poller.poll(before))
        if before.brokers or before.reachable:
            self.history.add_events(changes(before, after))
        if after.reachable:
            for name, group in after.groups.items():
                self.history.own(after.at, name, owners(group))
            for name in before.groups.keys() - after.groups.keys():
                self.history.own(after.at, name, {})
            self.history.record(after.at, dict(_numbers(after)))
        with self._changed:
            self._latest = after
            self._changed.notify_all()
        return after

    def _with_pipelines(self, snapshot: Snapshot) -> Snapshot:
        if self.pipelines is None:
            return snapshot
        return replace(snapshot, pipelines=self.pipelines(snapshot, self._poller.age))

    def _stumbled(self, error: Exception) -> None:
        text = f"the console could not sample the cluster: {type(error).__name__}: {error}"
        self.history.add_events([Event(at=time.time(), kind="console", level="error", text=text)])


def _numbers(snapshot: Snapshot) -> Iterable[tuple[SeriesKey, float | None]]:
    """What is kept of a snapshot as numbers over time."""
    totals = snapshot.totals
    yield ("cluster", "", "in"), totals.in_per_s
    yield ("cluster", "", "out"), totals.out_per_s
    yield ("cluster", "", "in_bytes"), totals.in_bytes_per_s
    yield ("cluster", "", "bytes"), totals.stored_bytes
    yield ("cluster", "", "lag"), totals.lag
    yield ("cluster", "", "under_replicated"), totals.under_replicated
    for topic in snapshot.topics.values():
        yield ("topic", topic.name, "in"), topic.in_per_s
        yield ("topic", topic.name, "out"), topic.out_per_s
        yield ("topic", topic.name, "bytes"), topic.size_bytes
        yield ("topic", topic.name, "offsets"), topic.offsets
    for group in snapshot.groups.values():
        yield ("group", group.group, "lag"), group.lag
        yield ("group", group.group, "lag_s"), group.lag_s
        yield ("group", group.group, "read"), group.read_per_s
    for broker in snapshot.brokers:
        yield ("broker", str(broker.broker_id), "bytes"), broker.size_bytes
    for pipeline in snapshot.pipelines:
        yield ("pipeline", pipeline.name, "lag"), pipeline.lag
        yield ("pipeline", pipeline.name, "rate"), pipeline.rate_per_s or 0.0
        yield ("pipeline", pipeline.name, "batch_s"), pipeline.batch_s
