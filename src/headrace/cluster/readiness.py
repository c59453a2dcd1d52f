"""When is a cluster ready: every broker is registered, and each of them has led a write that all replicas took.

An open port or a line in a log proves little; a record that came back acknowledged by `acks=all` from a partition led
by each broker proves what people need.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.cluster.broker import Broker
from headrace.cluster.ports import holder, is_free
from headrace.cluster.spec import ClusterSpec
from headrace.errors import HeadraceError, Unreachable
from headrace.progress import Progress
from headrace.transport.admin import PROBE_TOPIC, Admin, NewTopic
from headrace.transport.probe import load_client, write_to_all

_LOOK_EVERY_S = 0.2


def wait_until_ready(spec: ClusterSpec, brokers: Sequence[Broker], *, within_s: float, progress: Progress) -> None:
    """The cluster takes acks=all writes on every broker."""
    deadline = time.monotonic() + within_s
    admin = Admin(spec, timeout_s=2)
    try:
        _wait_registered(spec, brokers, admin, deadline, within_s)
        progress.say("every broker has registered; writing to each")
        _prove_writes(spec, brokers, admin, deadline, within_s)
    finally:
        admin.close()


def _wait_registered(
    spec: ClusterSpec, brokers: Sequence[Broker], admin: Admin, deadline: float, within_s: float
) -> None:
    wanted = {node.node_id for node in spec.brokers}
    load_client()  # now, while there is nothing to do but wait
    looked = 0.0
    while True:
        # Rarely: what we take of the two cores, the brokers lack.
        if time.monotonic() - looked > _LOOK_EVERY_S:
            require_alive(brokers)
            looked = time.monotonic()
        # Asking a client before anything listens would start its reconnect back-off.
        if not any(is_free(node.port) for node in spec.brokers):
            try:
                if wanted <= set(admin.live_brokers(timeout_s=1)):
                    return
            except Unreachable:
                pass
        if time.monotonic() > deadline:
            raise _late(brokers, admin, within_s)
        time.sleep(0.02)


def _prove_writes(spec: ClusterSpec, brokers: Sequence[Broker], admin: Admin, deadline: float, within_s: float) -> None:
    ids = [node.node_id for node in spec.brokers]
    while True:
        require_alive(brokers)
        try:
            if PROBE_TOPIC not in {topic.name for topic in admin.topics(internal=True)}:
                admin.create_topics([_probe_topic(ids)], wait=False)
            write_to_all(spec.bootstrap, PROBE_TOPIC, len(ids), within_s=max(1.0, deadline - time.monotonic()))
        except HeadraceError as error:
            # A controller that was elected a moment ago may refuse; it is asked again until the time is up.
            if time.monotonic() > deadline:
                raise brokers[0].failure(
                    f"the cluster did not take a write within {within_s:g} s", hint=_SLOW
                ) from error
            time.sleep(0.1)
        else:
            return


def _probe_topic(ids: Sequence[int]) -> NewTopic:
    """A partition for each broker to lead, so that each one proves itself."""
    ring = [*ids, *ids]
    replicas = min(3, len(ids))
    configs = {"retention.ms": "3600000", "segment.ms": "600000", "segment.bytes": "1048576"}
    return NewTopic(PROBE_TOPIC, assignment=[ring[at : at + replicas] for at in range(len(ids))], configs=configs)


_SLOW = "a slow machine may need HEADRACE_READY_TIMEOUT_S=300; headrace doctor checks the machine"


def require_alive(brokers: Sequence[Broker]) -> None:
    """No process has died; else the error says which one, and why as far as its log tells."""
    for broker in brokers:
        if broker.process.state == "dead":
            raise broker.failure(f"{broker.node.name} died while it was starting", hint=_hint_for(broker))


def _hint_for(broker: Broker) -> str:
    text = "\n".join(broker.tail(400))
    if "ConfigException" in text:
        return "correct the property (headrace up --set name=value; an empty value takes it back)"
    if "Address already in use" in text or "BindException" in text:
        return "headrace up --base-port P with free ports"
    if "No space left" in text:
        return "make room on the disk, then repeat: headrace up"
    return f"headrace logs {broker.node.name} -n 100"


def _late(brokers: Sequence[Broker], admin: Admin, within_s: float) -> HeadraceError:
    try:
        there = set(admin.live_brokers(timeout_s=1))
    except Unreachable:
        there = set()
    late = next((b for b in brokers if b.node.broker and b.node.node_id not in there), brokers[0])
    error = late.failure(f"{late.node.name} did not become ready within {within_s:g} s", hint=_SLOW)
    if not error.why and not is_free(late.node.port) and late.process.find() is None:
        error.why = f"port {late.node.port} is held by {holder(late.node.port)}"
    return error
