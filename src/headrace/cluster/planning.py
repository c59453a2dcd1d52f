"""From settings to the plan of a cluster in its home: ports, services, formatted data folders.

A plan is saved as soon as it holds something that the next command must know.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from headrace.cluster import ports
from headrace.cluster import spec as plans
from headrace.cluster.broker import initial_metadata
from headrace.cluster.launch import Launch
from headrace.cluster.nodes import brokers_of
from headrace.cluster.services import FIRST_CHOICES, Connect, meant
from headrace.cluster.spec import ClusterSpec, ServiceSpec
from headrace.config import Config
from headrace.errors import ConfigError, SetupError, UsageError
from headrace.home import Home
from headrace.text import size


def prepare(home: Home, existing: ClusterSpec | None, launch: Launch) -> ClusterSpec:
    """The plan with ports; a new cluster's data folders are formatted."""
    if existing:
        spec = with_services(home, _moved(home, existing, launch), launch)
        for broker in brokers_of(home, spec):
            broker.check_data()
        return spec
    _require_empty(home)
    config = launch.config.cluster
    spec = plans.plan(config)
    count = len(spec.brokers) + len(spec.voters)
    spec = spec.with_ports(ports.choose(home, launch.cache, count, config.base_port))
    checkpoint = initial_metadata(spec, launch)
    for broker in brokers_of(home, spec):
        broker.write_files(config.kafka)
        broker.format(checkpoint)
    # From here on the folders count as formatted: one that is not is damaged.
    plans.save(home, spec)
    return with_services(home, spec, launch)


def with_services(home: Home, spec: ClusterSpec, launch: Launch) -> ClusterSpec:
    """The plan with the services that it had and those that are asked for now, each with ports of its own."""
    config = launch.config.cluster
    services = {service.name: service for service in spec.services}
    for name in meant(config.services):
        if name not in services:
            first_choice, count = FIRST_CHOICES[name]
            port, inner, *_ = *ports.choose_for_service(home, launch.cache, first_choice, count), 0, 0
            services[name] = ServiceSpec(name, port, inner)
    if "registry" in services:
        services["registry"] = replace(services["registry"], storage=config.registry_storage)
    if "connect" in services:
        services["connect"] = _planned_connect(home, services["connect"], launch)
        # Before the plan names it: from then on clients ask for its token, also while it has never run.
        Connect(home, spec, services["connect"]).make_token()
    if "console" in services:
        services["console"] = replace(services["console"], host=config.console_host)
    planned = replace(spec, services=tuple(services.values()))
    if planned != spec:
        plans.save(home, planned)
    return planned


def _planned_connect(home: Home, connect: ServiceSpec, launch: Launch) -> ServiceSpec:
    """With its settings of today; one that was made before it stood behind a proxy gets a second port."""
    config = launch.config.cluster
    for folder in config.connect_files:
        if not folder.is_dir():
            raise ConfigError(
                f"the folder {folder} does not exist", why="connect_files names it", hint=f"mkdir -p {folder}"
            )
    inner = connect.inner_port or ports.choose_for_service(home, launch.cache, 18083, 1)[0]
    plugins = str(config.plugins) if config.plugins else connect.plugins
    return replace(connect, inner_port=inner, plugins=plugins, files=tuple(map(str, config.connect_files)))


def _moved(home: Home, spec: ClusterSpec, launch: Launch) -> ClusterSpec:
    """The plan on the ports it is asked to have: its own, unless a base port names others."""
    base = launch.config.cluster.base_port
    runs = any(broker.process.find() for broker in brokers_of(home, spec))
    if base is None or base == spec.brokers[0].port:
        if not runs:
            ports.require_free(home, launch.cache, spec.ports)
        return spec
    if runs:
        raise UsageError(
            "the ports of a running cluster cannot be changed",
            hint=f"headrace down, then headrace up --base-port {base}",
        )
    kept = tuple(port for service in spec.services for port in service.ports)
    moved = spec.with_ports(ports.choose(home, launch.cache, len(spec.ports), base, kept))
    plans.save(home, moved)
    return moved


def require_disk(root: Path, config: Config) -> None:
    free = shutil.disk_usage(root).free
    if free < config.runtime.min_free_disk:
        raise SetupError(
            f"not enough disk for a cluster in {root}",
            why=f"{size(free)} are free, {size(config.runtime.min_free_disk)} are required",
            hint="make room, name another --home, or lower runtime.min_free_disk (HEADRACE_MIN_FREE_DISK=200MB)",
        )


def _require_empty(home: Home) -> None:
    """A home without cluster.json holds no records either: they would be orphaned by a new cluster id."""
    for segment in home.root.glob("*/data/*/*.log"):
        raise SetupError(
            f"the home {home.root} is damaged",
            why=f"cluster.json is gone, but {segment.parent.parent} still holds records",
            hint="restore cluster.json, or remove the data: headrace down --wipe",
        )
