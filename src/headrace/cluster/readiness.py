"""When is a cluster ready: every broker is registered, and each of them has led a write that all replicas took.

An open port or a line in a log proves little; a record that came back acknowledged by `acks=all` from a partition led
by each broker proves what people need.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.cluster.broker import Broker
from headrace.cluster.ports import is_free
from headrace.cluster.spec import ClusterSpec
from headrace.errors import HeadraceError, TimedOut, Unreachable
from headrace.kafka import PROBE_TOPIC, Kafka, NewTopic
from headrace.kafka.write import load_client, write_to_all
from headrace.progress import Progress

_LOOK_EVERY_S = 0.2
_SAY_EVERY_S = 15.0


class _Late(Exception):
    """The time is up; the text says what was still awaited."""


def wait_until_ready(spec: ClusterSpec, brokers: Sequence[Broker], *, within_s: float, progress: Progress) -> None:
    """The cluster takes acks=all writes on every broker."""
    began = time.monotonic()
    deadline = began + within_s
    admin = Kafka(spec, timeout_s=2)
    try:
        _wait_registered(spec, brokers, admin, deadline, progress)
        progress.say("every broker has registered; writing to each")
        _prove_writes(spec, brokers, admin, deadline)
    except _Late as late:
        raise TimedOut(
            f"the cluster is not ready after {time.monotonic() - began:.0f} s; its nodes are still starting",
            why=f"waiting for: {late}",
            hint="headrace up continues to wait; a slow machine may need HEADRACE_READY_TIMEOUT_S=300",
        ) from late
    finally:
        admin.close()


def _wait_registered(
    spec: ClusterSpec, brokers: Sequence[Broker], admin: Kafka, deadline: float, progress: Progress
) -> None:
    wanted = {node.node_id for node in spec.brokers}
    load_client()  # now, while there is nothing to do but wait
    looked = 0.0
    said = time.monotonic()
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
        now = time.monotonic()
        if now > deadline:
            raise _Late(f"{_unregistered(spec, admin)} to register with the controllers")
        if now - said > _SAY_EVERY_S:
            said = now
            progress.say(f"waiting for {_unregistered(spec, admin)} to register with the controllers")
        time.sleep(0.02)


def _prove_writes(spec: ClusterSpec, brokers: Sequence[Broker], admin: Kafka, deadline: float) -> None:
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
                raise _Late(f"a write on every broker; the last try: {error.why or error.problem}") from error
            time.sleep(0.1)
        else:
            return


def _probe_topic(ids: Sequence[int]) -> NewTopic:
    """A partition for each broker to lead, so that each one proves itself."""
    ring = [*ids, *ids]
    replicas = min(3, len(ids))
    configs = {"retention.ms": "3600000", "segment.ms": "600000", "segment.bytes": "1048576"}
    return NewTopic(PROBE_TOPIC, assignment=[ring[at : at + replicas] for at in range(len(ids))], configs=configs)


def require_alive(brokers: Sequence[Broker]) -> None:
    """No process has died; else the error says which one, and why as far as its log tells."""
    for broker in brokers:
        if broker.process.state == "dead":
            raise broker.failure(f"{broker.node.name} died while it was starting", hint=_hint_for(broker))


def _hint_for(broker: Broker) -> str:
    text = "\n".join(broker.tail(400))
    if "ConfigException" in text:
        return "correct the property (headrace up --set name=value; an empty value removes it)"
    if "Address already in use" in text or "BindException" in text:
        return "headrace up --base-port P with free ports"
    if "No space left" in text:
        return "make room on the disk, then repeat: headrace up"
    return f"headrace logs {broker.node.name} -n 100"


def _unregistered(spec: ClusterSpec, admin: Kafka) -> str:
    silent = [node.name for node in spec.brokers if is_free(node.port)]
    if silent:
        return ", ".join(silent)
    try:
        there = set(admin.live_brokers(timeout_s=1))
    except Unreachable:
        there = set()
    return ", ".join(node.name for node in spec.brokers if node.node_id not in there) or "the last broker"
