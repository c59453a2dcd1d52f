"""From whatever runs to what is wanted: what `up` does once the plan stands.

A failure that leaves wrong settings behind ends what this call has started, and nothing that ran before.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from headrace.cluster import nodes, settings, watcher
from headrace.cluster.broker import Broker
from headrace.cluster.launch import Launch
from headrace.cluster.nodes import brokers_of, services_of
from headrace.cluster.readiness import wait_until_ready
from headrace.cluster.services import ServiceStarter
from headrace.cluster.spec import ClusterSpec
from headrace.errors import NodeFailed, TimedOut
from headrace.home import Home, write_private

_UP = "headrace up"


def converge(home: Home, spec: ClusterSpec, launch: Launch) -> None:
    """Brokers and services run with the wanted settings and answer."""
    services = services_of(home, spec)
    starter = ServiceStarter(launch)
    try:
        starter.spawn([service for service in services if not service.needs_kafka])
        _converge_brokers(home, spec, launch)
        starter.spawn(services)
        starter.wait(services)
    except (TimedOut, NodeFailed):
        raise  # slow is not dead, and one dead node is not all
    except BaseException:
        starter.end()
        raise


def end_changed_services(home: Home, before: ClusterSpec, after: ClusterSpec, launch: Launch) -> None:
    """What runs with other settings than it is to have has ended; it is started again with the rest."""
    say = launch.progress.say
    for service in services_of(home, after):
        old = before.service(service.name)
        if old in {None, service.service}:
            continue
        if old and old.storage != service.service.storage:
            say(f"the schemas in {old.storage} stay there and are not migrated")
        if service.process.find():
            say(f"restarting {service.name}: its settings have changed")
            nodes.stop(service)


def _converge_brokers(home: Home, spec: ClusterSpec, launch: Launch) -> None:
    """Resume what is paused, restart what is configured otherwise, start the rest."""
    wanted = launch.config.cluster.kafka
    brokers = brokers_of(home, spec)
    for broker in brokers:
        if broker.process.state == "paused":
            launch.progress.say(f"resuming {broker.node.name}")
            broker.process.signal(signal.SIGCONT)
    stale = [b for b in brokers if b.process.find() and b.configured_otherwise(wanted)]
    if stale:
        settings.require_known(spec, wanted)  # before anything that runs is touched
    started: list[Broker] = []
    try:
        _start_missing(brokers, started, launch)
        watcher.start(home)
        _wait_ready(brokers, launch)
        for broker in stale:
            _roll_out(broker, brokers, launch)
        settings.require_in_force(spec, wanted)
    except (TimedOut, NodeFailed):
        raise
    except BaseException:
        # Wrong settings, or Ctrl-C: what this call has started ends with it, what ran before goes on.
        for broker in started:
            nodes.discard(broker, _UP)
        if len(started) == len(brokers):
            watcher.end(home)
        nodes.end_strays(home)  # Ctrl-C may fall between a start and its record
        raise
    launch.kafka.build_in_background(brokers[-1].class_list, home.node("archive"))


def _start_missing(brokers: Sequence[Broker], started: list[Broker], launch: Launch) -> None:
    missing = [broker for broker in brokers if not broker.process.find()]
    if not missing:
        return
    how = "" if launch.kafka.exists else " (the first start with this Java: later ones are faster)"
    launch.progress.say(f"starting {', '.join(b.node.name for b in missing)}{how}")
    nodes.look_for_losses(missing, brokers, launch.progress)
    for broker in missing:
        broker.write_files(launch.config.cluster.kafka)
        started.append(broker)
        broker.spawn(launch)


def _roll_out(broker: Broker, brokers: Sequence[Broker], launch: Launch) -> None:
    """The running broker was restarted with today's settings; if it does not take them, with its old ones."""
    launch.progress.say(f"restarting {broker.node.name}: its settings have changed")
    before = broker.settings_file.read_text(encoding="utf-8")
    nodes.stop(broker, _UP)
    broker.write_files(launch.config.cluster.kafka)
    broker.spawn(launch)
    try:
        _wait_ready(brokers, launch)
    except TimedOut:
        raise
    except BaseException:
        broker.process.note_end(_UP)
        broker.process.kill()
        write_private(broker.settings_file, before)
        broker.spawn(launch)
        _wait_ready(brokers, launch)
        raise


def _wait_ready(brokers: Sequence[Broker], launch: Launch) -> None:
    wait_until_ready(brokers[0].spec, brokers, within_s=launch.timeout_s, progress=launch.progress)
