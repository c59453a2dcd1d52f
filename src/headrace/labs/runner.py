"""Runs labs: in which order, on which cluster, side by side where they only wait, and keeps what came out.

    1  labs on a shared cluster, one after another; those that mostly wait run beside them
    2  labs that kill nodes, alone
    3  labs on another topology, alone

Whatever a lab does wrong ends that lab and makes it red; the others go on.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace import Cluster, HeadraceError, Home, NodeFailed, NotYet, TimedOut, Unreachable
from headrace.labs.clusters import Clusters
from headrace.labs.consoles import SharedConsoles
from headrace.labs.lab import Lab, Profile, require_valid
from headrace.labs.load import Load
from headrace.labs.processes import LabRuns
from headrace.labs.report import write_reports
from headrace.labs.result import Entry, LabResult, Trouble, kept_results, now, result_folder, save
from headrace.labs.sessions import SharedSession
from headrace.labs.workbench import Stopped, TooBusy, Workbench
from headrace.progress import SILENT, Progress

# More than these side by side would no longer mostly wait.
_MOST_WAITING = 4
_LOG_BYTES = 200_000
# What a busy machine alone can cause: a condition, an answer or a node did not come within its timeout.
_LATE = (NotYet, Unreachable, TimedOut, NodeFailed, TimeoutError, subprocess.TimeoutExpired)
# How long an interrupted run waits for labs beside it: each stops at its next step, and a step may read for a while.
_STOP_WITHIN_S = 20.0


class Listener(Protocol):
    """Receives what happens while labs run. Called from several threads; returns at once."""

    def began(self, lab: Lab) -> None: ...

    def entry(self, lab: Lab, entry: Entry) -> None: ...

    def ended(self, lab: Lab, result: LabResult) -> None: ...


@dataclass(frozen=True)
class RunOptions:
    """How labs are run."""

    profile: Profile = "full"
    seed: int = 7
    given: dict[str, str] = field(default_factory=dict)
    keep: bool = False
    fresh: bool = False
    progress: Progress = SILENT
    #: A session of the caller's; without one, labs that need Spark start one for all of them.
    spark: object = None


def run_labs(home: Home, labs: Sequence[Lab], options: RunOptions, listener: Listener) -> list[LabResult]:
    """Every lab was run; the results in the order of `labs`, kept under the home with their reports.

    An interrupt ends the lab at work, which says so; what has ended before keeps its result and its report.
    """
    require_valid(labs, options.given, options.profile)
    home.create()
    folder = Home(home.labs)
    folder.create()
    with folder.lock(f"lab run {' '.join(lab.name for lab in labs)}"):
        clusters = Clusters(home, fresh=options.fresh, keep=options.keep, progress=options.progress)
        run = _Run(home, clusters, options, listener)
        try:
            run.all(labs)
        finally:
            run.end()
            results = [run.results[lab.name] for lab in labs if lab.name in run.results]
            write_reports(home, results)
    return results


def ordered(labs: Sequence[Lab]) -> tuple[list[Lab], list[Lab], list[Lab]]:
    """Waiting ones, then the others on the shared topology by what they need, then those that run alone."""
    alone = [lab for lab in labs if lab.alone or lab.needs.faults or lab.needs.brokers != 3 or lab.needs.racks]
    alone.sort(key=lambda lab: (lab.needs.brokers, lab.needs.racks))
    shared = [lab for lab in labs if lab not in alone]
    waiting = [lab for lab in shared if lab.waits and len(shared) > 1]
    # Services are started when the first lab wants them, so those come last.
    front = sorted((lab for lab in shared if lab not in waiting), key=lambda lab: len(lab.needs.services))
    return waiting, front, alone


class _Run:
    def __init__(self, home: Home, clusters: Clusters, options: RunOptions, listener: Listener) -> None:
        self.home = home
        self.clusters = clusters
        self.options = options
        self.listener = listener
        self.results: dict[str, LabResult] = {}
        self._begun: list[LabResult] = []
        self.stopping = threading.Event()
        self._background: list[Future[None]] = []
        self.session = SharedSession(home, options.spark, options.progress)
        self.consoles = SharedConsoles(home.labs / "console")

    def all(self, labs: Sequence[Lab]) -> None:
        waiting, front, alone = ordered(labs)
        for at in range(min(_MOST_WAITING, len(waiting))):
            self._background.append(self._beside(waiting[at::_MOST_WAITING]))
        for lab in front:
            self._one(lab)
        for future in self._background:
            future.result()
        self.session.stop()  # its memory is wanted by the larger clusters
        self.consoles.close()
        for lab in alone:
            self.clusters.release_others(lab.needs)
            self._one(lab)

    def end(self) -> None:
        """No lab runs any more, and nothing that was started for labs is left."""
        self.stopping.set()
        wait(self._background, _STOP_WITHIN_S)
        for result in [one for one in self._begun if one.name not in self.results]:
            # It would not stop in time, and ends with this process.
            result.trouble = Trouble("it was interrupted")
            self._keep(result)
        self.session.stop()
        self.consoles.close()
        self.clusters.close()
        with suppress(HeadraceError):  # one that is still at work there holds its lock: the next run removes it
            LabRuns(self.home).remove_left()

    def _keep(self, result: LabResult) -> None:
        save(self.home, result)
        self.results[result.name] = result

    def _beside(self, labs: Sequence[Lab]) -> Future[None]:
        """The labs run one after another beside what the caller does."""
        prepared = [(lab, self._cluster(lab)) for lab in labs]
        done: Future[None] = Future()

        def work() -> None:
            try:
                for lab, cluster in prepared:
                    if not self.stopping.is_set():
                        self._run(lab, cluster)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        # A daemon: an interrupted run waits for it only so long.
        threading.Thread(target=work, name=f"labs {labs[0].name}…", daemon=True).start()
        return done

    def _one(self, lab: Lab) -> None:
        self._run(lab, self._cluster(lab))
        if self.stopping.is_set():
            raise KeyboardInterrupt

    def _cluster(self, lab: Lab) -> Cluster | HeadraceError:
        load = Load()
        earlier = [topic for one in kept_results(self.home, (lab.name,)) for topic in one.kept_topics]
        try:
            return self.clusters.cluster_for(lab.needs, earlier)
        except HeadraceError as error:
            # Whether a cluster is up in time is no matter of the lab's.
            late = isinstance(error, _LATE) and load.excuse
            return TooBusy(error.problem, why=load.excuse) if late else error

    def _run(self, lab: Lab, cluster: Cluster | HeadraceError) -> None:
        result = self._blank(lab)
        self._begun.append(result)
        self.listener.began(lab)
        began = time.monotonic()
        if isinstance(cluster, HeadraceError):
            result.trouble = _trouble(cluster)
        else:
            result.cluster = _facts(cluster, own=self.clusters.is_own(cluster))
            self._experiment(lab, cluster, result)
        result.seconds = time.monotonic() - began
        self._keep(result)
        self.listener.ended(lab, result)

    def _blank(self, lab: Lab) -> LabResult:
        folder = result_folder(self.home, lab.name)
        earlier = list(kept_results(self.home, (lab.name,)))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        values = vars(lab.values(self.options.profile, self.options.given))
        result = LabResult(
            lab.name, lab.title, lab.about, lab.document, lab.rows, self.options.profile, self.options.seed, values
        )
        result.began = now()
        result.kept_topics = [topic for one in earlier for topic in one.kept_topics]
        return result

    def _experiment(self, lab: Lab, cluster: Cluster, result: LabResult) -> None:
        own = self.clusters.is_own(cluster)
        earlier = set(result.kept_topics)
        bench = Workbench(
            lab.name,
            cluster,
            lab.values(self.options.profile, self.options.given),
            result_folder(self.home, lab.name),
            seed=self.options.seed,
            # On a cluster of ours every topic is ours; on another one those that an earlier run has kept.
            may_replace=lambda topic: own or topic in earlier,
            listen=lambda entry: self.listener.entry(lab, entry),
            stopping=self.stopping,
            spark=self.session.get,
            consoles=self.consoles.get,
        )
        sizes = cluster.log_sizes()
        try:
            lab.run(bench)
        except _LATE as error:
            result.trouble = _late(error, bench.excuse)
        except HeadraceError as error:
            result.trouble = _trouble(error)
        except (Stopped, KeyboardInterrupt):
            self.stopping.set()
            result.trouble = Trouble("it was interrupted")
        except Exception as error:
            result.trouble = Trouble(
                f"{type(error).__name__}: {error}",
                why="the lab itself went wrong",
                trace=traceback.format_exc(limit=-6),
            )
        result.entries = bench.entries
        if result.verdict != "green":
            logs = cluster.logged_since(sizes, _LOG_BYTES)
            result.logs = _keep_logs(logs, result_folder(self.home, lab.name) / "logs")
        result.kept_topics = bench.topics if self.options.keep else []
        self._tidy(bench, lab, cluster, result)

    def _tidy(self, bench: Workbench, lab: Lab, cluster: Cluster, result: LabResult) -> None:
        try:
            if lab.needs.faults and not self.stopping.is_set():
                cluster.up()  # whatever was killed runs again
            bench.tidy(keep=self.options.keep)
        except _LATE as error:
            result.trouble = result.trouble or _late(error, bench.excuse)
        except Exception as error:
            result.trouble = result.trouble or Trouble(
                f"it could not tidy up: {type(error).__name__}: {error}", trace=traceback.format_exc(limit=-6)
            )


def _late(error: Exception, excuse: str) -> Trouble:
    """Something took too long: on a busy machine that says nothing."""
    if not excuse and isinstance(error, HeadraceError):
        return _trouble(error)
    problem = str(error).partition("\n")[0] or type(error).__name__
    return Trouble(problem, excuse or None, busy=bool(excuse))


def _trouble(error: HeadraceError) -> Trouble:
    log = str(error.log) if error.log else None
    return Trouble(error.problem, error.why, error.hint, log, busy=isinstance(error, TooBusy))


def _facts(cluster: Cluster, *, own: bool) -> dict[str, object]:
    spec = cluster.spec
    return {
        "bootstrap": spec.bootstrap,
        "brokers": len(spec.brokers),
        "kafka_version": spec.kafka_version,
        "services": [service.name for service in spec.services],
        "own": own,
    }


def _keep_logs(logs: Mapping[str, bytes], folder: Path) -> dict[str, str]:
    """What every node has logged is in the folder; the names of the files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for node, text in logs.items():
        (folder / f"{node}.log").write_bytes(text)
    return {node: f"logs/{node}.log" for node in logs}
