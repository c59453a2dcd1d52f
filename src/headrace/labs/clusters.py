"""The clusters that labs run on: the running one of the home if it fits, else clusters of the labs' own.

Own clusters live in `labs/cluster-…` under the home, one per topology, and are shared by all labs of a run; at its end
they are taken down with their data, unless they shall be kept. Those of a run that was killed are gone before the next
one begins. A lab that kills nodes never gets a cluster that a person has started, nor does one that needs the name of a
topic which that person has.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from headrace import Cluster, HeadraceError, Home, Kafka, Registry
from headrace.labs.lab import Needs
from headrace.labs.processes import LabRuns
from headrace.progress import SILENT, Progress

# Kafka looks for expired segments every five minutes and for something to compact every 15 seconds; a lab that shows
# either would only wait.
OWN_SETTINGS = {
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
}


class Clusters:
    """Where labs run. Used by one thread."""

    def __init__(self, home: Home, *, fresh: bool = False, keep: bool = False, progress: Progress = SILENT) -> None:
        self.home = home
        self.keep = keep
        self._fresh = fresh
        self._progress = progress
        self._started: dict[Path, Cluster] = {}
        LabRuns(home).remove_left()

    def cluster_for(self, needs: Needs, kept: Collection[str] = ()) -> Cluster:
        """A running cluster that has what the lab needs. `kept` are topics that an earlier run of it has left."""
        users = None if self._fresh else self._users(needs, kept)
        return users or self._own(needs)

    def is_own(self, cluster: Cluster) -> bool:
        """True if the cluster was made for labs."""
        return cluster.home.root.parent == self.home.labs

    def close(self) -> None:
        """Every cluster that was started here is gone, unless it shall stay."""
        for folder in list(self._started):
            if self.keep:
                LabRuns(self.home).keep(folder)
            else:
                self._remove(folder)

    def release_others(self, needs: Needs) -> None:
        """Own clusters of another topology are gone: two of them at once would not fit every machine."""
        for folder in [folder for folder in self._started if folder != self._folder(needs)]:
            if not self.keep:
                self._remove(folder)

    def _remove(self, folder: Path) -> None:
        self._started.pop(folder).down(wipe=True)
        shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, needs: Needs) -> Path:
        racks = f"-{len(set(needs.racks))}-racks" if needs.racks else ""
        return self.home.labs / f"cluster-{needs.brokers}{racks}"

    def _own(self, needs: Needs) -> Cluster:
        folder = self._folder(needs)
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        started = self._started.get(folder)
        had = set(started.nodes) if started else set()
        if started and had >= set(needs.services) and all(n.state == "running" for n in started.status().nodes):
            return started
        cluster = Cluster(
            folder,
            brokers=needs.brokers,
            racks=needs.racks or None,
            kafka=OWN_SETTINGS,
            services=needs.services or None,
            progress=self._progress,
        )
        self._started[folder] = cluster
        cluster.up()
        return cluster

    def _users(self, needs: Needs, kept: Collection[str]) -> Cluster | None:
        """The home's own cluster, if it runs, has all that is needed, and the user has none of the lab's topics."""
        if needs.faults:
            return None
        cluster = Cluster(self.home.root)
        try:
            status = cluster.status()
            if status.state != "up":
                return None
            spec = cluster.spec
            racks = tuple(node.rack for node in spec.brokers)
            fits = (
                len(spec.brokers) == needs.brokers
                and (not needs.racks or racks == needs.racks)
                and {service.name for service in spec.services} >= set(needs.services)
                and all(cluster.config.cluster.kafka.get(name) == value for name, value in needs.kafka.items())
                and not _taken(cluster, needs).intersection(needs.topics).difference(kept)
            )
        except HeadraceError:
            return None
        return cluster if fits else None


def _taken(cluster: Cluster, needs: Needs) -> set[str]:
    """Names that topics have, or subjects of the registry are made of."""
    if not needs.topics:
        return set()
    with Kafka(cluster) as kafka:
        taken = {topic.name for topic in kafka.topics()}
    if "registry" in needs.services:
        with Registry(cluster.registry) as registry:
            # Also softly deleted ones: they could still be brought back.
            taken |= {subject.rpartition("-")[0] for subject in registry.subjects(deleted=True)}
    return taken
