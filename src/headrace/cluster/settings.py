"""Are the wanted Kafka properties in force? Asked of the running brokers, not of a file.

Kafka only warns in its log about a property it does not know. Here that is an error with the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from headrace.cluster.spec import ClusterSpec
from headrace.errors import ConfigError, TimedOut, Unreachable
from headrace.kafka import ConfigValue, Kafka

# Settings of listeners and plug-ins carry names that only their owner knows.
_OPEN_PREFIXES = (
    "super.users", "allow.everyone.if.no.acl.found",  # the authorizer's own
    "metrics.jmx.",  # the JMX reporter's
    "listener.name.", "sasl.", "ssl.", "config.providers.", "rlmm.config.", "rsm.config.",
)  # fmt: skip


def require_known(spec: ClusterSpec, wanted: Mapping[str, str]) -> None:
    """Every wanted property is one that the running brokers know, whatever its value there."""
    if wanted:
        with Kafka(spec) as admin:
            _require_all_known(wanted, admin.broker_configs(spec.brokers[0].node_id))


def require_in_force(spec: ClusterSpec, wanted: Mapping[str, str]) -> None:
    """Every broker has every wanted property; an unknown or different one is an error."""
    if not wanted:
        return
    try:
        with Kafka(spec) as admin:
            held_by = {node: admin.broker_configs(node.node_id) for node in spec.brokers}
    except Unreachable as error:
        # They took a write a moment ago: slow is not dead.
        raise TimedOut(
            "the brokers have not confirmed the properties yet; they keep running",
            why=error.why or error.problem,
            hint="headrace up asks them again",
        ) from error
    for node, actual in held_by.items():
        _require_all_known(wanted, actual)
        for name, value in wanted.items():
            held = actual[name].value if name in actual else None
            if held is not None and _normal(held) != _normal(value):
                raise ConfigError(
                    f"Kafka did not apply {name}={value}",
                    why=f"{node.name} has {name}={held}",
                    hint="a dynamic setting of the broker may override it; or its value is out of range",
                )


def _require_all_known(wanted: Mapping[str, str], actual: Mapping[str, ConfigValue]) -> None:
    # A broker lists what it does not know too: as a sensitive setting without default, because it cannot tell.
    known = [name for name, entry in actual.items() if not (entry.sensitive and entry.source != "default")]
    for name in wanted:
        if name in known or name.startswith(_OPEN_PREFIXES):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(
            f"Kafka does not know the property {name}",
            why="a broker would only have warned about it in its log, and ignored it",
            hint=f"did you mean {near[0]}?" if near else "the names are those of Kafka's broker configurations",
        )


def _normal(value: str) -> str:
    """Values as Kafka compares them: lists without blanks, numbers and booleans without dress."""
    text = ",".join(part.strip() for part in value.split(","))
    try:
        return repr(float(text))
    except ValueError:
        return text.lower()
