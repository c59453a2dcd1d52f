"""The life of single nodes: how one is found, started, awaited and stopped.

Callers that start or stop a node hold the home's lock. A stop is asked for (SIGTERM) before it is forced.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.cluster import ports, watcher
from headrace.cluster import spec as plans
from headrace.cluster.broker import Broker
from headrace.cluster.launch import Launch
from headrace.cluster.losses import losses
from headrace.cluster.node import NodeProcess
from headrace.cluster.readiness import require_alive
from headrace.cluster.services import KINDS, Service, ServiceStarter, service_of
from headrace.cluster.spec import ClusterSpec
from headrace.errors import NodeFailed, TimedOut, Unreachable, UsageError
from headrace.home import Home, node_folder
from headrace.kafka import Kafka
from headrace.progress import Progress
from headrace.runtime import NotYet, ProcessState, Supervised, end_stray, eventually, strays

# A broker that has a quorum to say goodbye to needs about one second.
_STOP_TIMEOUT_S = 20.0
_RESIGN_S = 3.0
# A busy machine may take its time; a process that waits for a disk acts on no signal before.
_SIGNAL_TIMEOUT_S = 15.0


def brokers_of(home: Home, spec: ClusterSpec) -> tuple[Broker, ...]:
    """All Kafka processes, separate controllers too."""
    return tuple(Broker(home, spec, node) for node in spec.nodes)


def services_of(home: Home, spec: ClusterSpec) -> tuple[Service, ...]:
    return tuple(service_of(home, spec, service) for service in spec.services)


def node_of(home: Home, spec: ClusterSpec, name: str | int) -> Broker | Service:
    """The node meant by `2`, `broker-2` or `registry`."""
    service = spec.service(str(name))
    return service_of(home, spec, service) if service else Broker(home, spec, spec.node(name))


def folders_of(home: Home) -> list[Path]:
    """The folders of the cluster's processes. That of a pipeline's JVM is in the home too, and not among them."""
    return sorted(folder for folder in home.root.glob("*") if folder.is_dir() and _is_of_cluster(folder))


def _is_of_cluster(folder: Path) -> bool:
    others = {"registry-front", "connect-front", "archive", "archive-connect", watcher.FOLDER}
    return folder.name in {*map(node_folder, KINDS), *others} or folder.name.startswith(("broker-", "controller-"))


def end_strays(home: Home) -> None:
    """Processes of this home that no record knows (a command was killed between start and record) are ended."""
    for process, folder in strays():
        if folder.parent == home.root and _is_of_cluster(folder):
            end_stray(process, folder)


# -- start ------------------------------------------------------------------------------------------------------


def start(node: Broker | Service, launch: Launch) -> None:
    """The node runs; if the cluster has a quorum, the node is part of it."""
    if node.process.find():
        raise UsageError(f"{node.name} runs already", hint=f"headrace restart {node.name}")
    if isinstance(node, Broker):
        _start_broker(node, launch)
    else:
        start_service(node, launch)


def start_service(service: Service, launch: Launch) -> None:
    starter = ServiceStarter(launch)
    try:
        starter.spawn([service])
        watcher.start(service.home)
        starter.wait([service])
    except TimedOut:
        raise
    except BaseException:
        starter.end()
        raise


def _start_broker(broker: Broker, launch: Launch) -> None:
    plans.require_version(broker.spec, broker.home)
    broker.check_data()
    ports.require_free(broker.home, launch.cache, broker.node.ports)
    look_for_losses([broker], brokers_of(broker.home, broker.spec), launch.progress)
    broker.write_files(launch.config.cluster.kafka)
    broker.spawn(launch)
    watcher.start(broker.home)
    _wait_joined(broker, launch)


def look_for_losses(starting: Sequence[Broker], brokers: Sequence[Broker], progress: Progress) -> None:
    """Records that were acknowledged and are not in a broker's files any more are named before it starts."""
    folders = {broker.name: broker.data for broker in brokers if broker.node.broker}
    for broker in starting:
        for loss in losses(broker.name, folders) if broker.node.broker else ():
            progress.say(f"warning: {loss}")
            broker.must_check_its_log()


def _wait_joined(broker: Broker, launch: Launch) -> None:
    """The node answers as a member; without a quorum it cannot, and then it is enough that it lives."""
    voters = [Supervised(broker.home.node(node.name)) for node in broker.spec.voters]
    has_quorum = 2 * sum(v.state == "running" for v in voters) > len(voters)
    if not has_quorum or not broker.node.broker:
        _wait_listening(broker, launch)
        return

    def joined() -> bool:
        require_alive([broker])
        try:
            return not ports.is_free(broker.node.port) and broker.node.node_id in admin.live_brokers(1)
        except Unreachable:
            return False

    with Kafka(f"127.0.0.1:{broker.node.port}", timeout_s=2) as admin:
        _wait(joined, broker, launch.timeout_s)


def _wait_listening(broker: Broker, launch: Launch) -> None:
    def listening() -> bool:
        require_alive([broker])
        return not ports.is_free(broker.node.controller_port or broker.node.port)

    if broker.node.controller:
        _wait(listening, broker, launch.timeout_s)
    launch.progress.say(f"{broker.node.name} runs; it joins when a majority of the controllers runs")


def _wait(condition: Callable[[], bool], broker: Broker, timeout_s: float) -> None:
    try:
        eventually(condition, timeout_s)
    except NotYet:
        raise broker.late(timeout_s, "it has not joined the cluster yet") from None


# -- signals and stop -------------------------------------------------------------------------------------------


def pause(node: NodeProcess) -> None:
    if not node.process.signal(signal.SIGSTOP):
        raise not_running(node, "paused")
    _wait_state(node, "paused", signal.SIGSTOP)


def resume(node: NodeProcess) -> None:
    if node.process.state != "paused" or not node.process.signal(signal.SIGCONT):
        raise UsageError(f"{node.name} is not paused: it is {node.process.state}")
    _wait_state(node, "running", signal.SIGCONT)


def not_running(node: NodeProcess, verb: str) -> UsageError:
    return UsageError(f"{node.name} cannot be {verb}: it is {node.process.state}", hint=f"headrace start {node.name}")


def _wait_state(node: NodeProcess, wanted: ProcessState, sent: signal.Signals) -> None:
    """The signal has had its effect."""
    try:
        state = eventually(lambda: node.process.state in {wanted, "dead"} and node.process.state, _SIGNAL_TIMEOUT_S)
    except NotYet:
        raise TimedOut(
            f"{node.name} is not {wanted} yet, {_SIGNAL_TIMEOUT_S:g} s after {sent.name}",
            why="the process waits in a system call, and the signal takes effect when that call returns",
            hint=f"headrace status shows when it is {wanted}; headrace kill {node.name} ends it",
        ) from None
    if state == "dead":
        raise NodeFailed(f"{node.name} died meanwhile", hint="headrace status names the reason")


def stop(node: NodeProcess, ended_by: str | None = None) -> None:
    """The node has ended; `ended_by` names the command in its record."""
    if ended_by:
        node.process.note_end(ended_by)
    # With time to hand over: a controller that resigns is replaced at once, one that vanishes is missed first.
    stop_all([node], timeout_s=_STOP_TIMEOUT_S, linger_s=_RESIGN_S)


def stop_all(nodes: Sequence[NodeProcess], *, timeout_s: float, linger_s: float = 0.0) -> None:
    """All of them ended: by themselves, or by SIGKILL once all is in order (and they linger) or time is up."""
    left = [node for node in nodes if node.process.find()]
    for node in left:
        node.process.signal(signal.SIGTERM)
        node.process.signal(signal.SIGCONT)  # a paused process cannot act on anything else
    deadline = time.monotonic() + timeout_s
    in_order: dict[str, float] = {}
    while left:
        time.sleep(0.05)
        now = time.monotonic()
        for node in list(left):
            if node.may_be_killed:
                in_order.setdefault(node.name, now)
            if now > deadline or now - in_order.get(node.name, now + 1) >= linger_s:
                node.process.kill()
            if not node.process.find():
                left.remove(node)
    for node in nodes:
        node.has_ended()


def discard(node: NodeProcess, ended_by: str) -> None:
    """A node that was just started is gone again, at once."""
    node.process.note_end(ended_by)
    node.process.kill()
    node.process.forget()
