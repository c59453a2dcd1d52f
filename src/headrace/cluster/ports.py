"""Ports: chosen free, remembered, and never taken from another cluster that only sleeps.

A free port is one that can be bound now. That is not enough when two clusters are planned at once, or when one is
down: so every home's ports are also written into a reservation file in the user's cache, under a lock. Nor does it
stay free while a broker restarts, if it is one of those that the system lends to outgoing connections: among them are
those of the broker's own clients, which try to reach it. So such ports come last.
"""

from __future__ import annotations

import fcntl
import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from headrace.errors import SetupError, UsageError
from headrace.home import Home, open_private, write_private

# Kafka's own port first: `localhost:9092` stands in everybody's notes.
_FIRST_CHOICES = (9092, 19092, 29092)
_BASES = range(10_000, 60_000, 100)
# What most systems lend from, for where /proc does not tell.
_LENT = (32_768, 65_535)


def choose(home: Home, cache: Path, count: int, base: int | None, kept: tuple[int, ...] = ()) -> tuple[int, ...]:
    """`count` ports in a row, free now and reserved for `home`: from `base`, or wherever there is room.

    Of what was reserved for `home` before, only `kept` stays.
    """
    with _reservations(cache) as reserved:
        others = {port for port, owner in reserved.items() if owner != str(home.root)}
        ports = _named(base, count, reserved, others) if base is not None else _anywhere(count, others)
        for port in [port for port, owner in reserved.items() if owner == str(home.root) and port not in kept]:
            del reserved[port]
        reserved.update({port: str(home.root) for port in ports})
        return ports


def choose_for_service(home: Home, cache: Path, first_choice: int, count: int) -> tuple[int, ...]:
    """Ports for a service of `home`: the one in everybody's notes if it is nobody's, and others wherever there is room.

    What is reserved for the brokers of `home` stays so.
    """
    with _reservations(cache) as reserved:
        taken = set(reserved)
        first = _beside_kafka(first_choice, taken)
        rest = _anywhere(count - 1, {*taken, first}, _BASES) if count > 1 else ()
        reserved.update({port: str(home.root) for port in (first, *rest)})
        return (first, *rest)


def free_port(cache: Path, first_choice: int) -> int:
    """A port that is free now and nobody's, for a process that remembers nothing."""
    with _reservations(cache) as reserved:
        return _beside_kafka(first_choice, set(reserved))


def release(home: Home, cache: Path) -> None:
    """No port is reserved for `home` any more."""
    with _reservations(cache) as reserved:
        for port in [port for port, owner in reserved.items() if owner == str(home.root)]:
            del reserved[port]


def require_free(home: Home, cache: Path, ports: tuple[int, ...]) -> None:
    """Nobody listens on any of the ports; the error names who does, and ports that are nobody's."""
    with _reservations(cache) as reserved:
        _require_free(ports, {port for port, owner in reserved.items() if owner != str(home.root)})


def _named(base: int, count: int, reserved: dict[int, str], others: set[int]) -> tuple[int, ...]:
    ports = tuple(range(base, base + count))
    if base < 1024 or ports[-1] > 65_535:
        raise UsageError(
            f"ports {base} to {ports[-1]} cannot be used",
            why="ports from 1024 to 65535 are possible",
            hint="headrace up --base-port 19092",
        )
    for port in ports:
        if port in others:
            raise SetupError(
                f"port {port} belongs to the cluster in {reserved[port]}",
                hint=f"headrace up --base-port {_anywhere(count, others)[0]}",
            )
    _require_free(ports, others)
    return ports


def _beside_kafka(first_choice: int, taken: set[int]) -> int:
    """A port for another service: those that are everybody's first choice for Kafka are left to Kafka."""
    return first_choice if first_choice not in taken and is_free(first_choice) else _anywhere(1, taken, _BASES)[0]


def _anywhere(count: int, others: set[int], bases: Iterable[int] = (*_FIRST_CHOICES, *_BASES)) -> tuple[int, ...]:
    first, last = _lent()
    for base in sorted(bases, key=lambda base: first - _BASES.step < base <= last):
        ports = tuple(range(base, base + count))
        if not others.intersection(ports) and all(is_free(port) for port in ports):
            return ports
    raise SetupError(f"no {count} free ports in a row were found", hint="headrace up --base-port P")


def _lent() -> tuple[int, int]:
    """The first and the last port that the system gives to connections which do not ask for one."""
    with suppress(OSError, ValueError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        return int(first), int(last)
    return _LENT


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Java's server sockets do: connections of a stopped broker in TIME_WAIT hold nothing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _require_free(ports: tuple[int, ...], others: set[int]) -> None:
    for port in ports:
        if not is_free(port):
            raise SetupError(
                f"port {port} is taken",
                why=f"it is held by {holder(port)}, which headrace did not start",
                hint=f"headrace up --base-port {_anywhere(len(ports), {*ports, *others})[0]}",
            )


def holder(port: int) -> str:
    """`pid 4711 (java)`, as far as the system tells: who listens there, else whose connection goes out from there."""
    with suppress(psutil.Error):
        here = [each for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == port]
        for connection in sorted(here, key=lambda each: each.status != psutil.CONN_LISTEN):
            if connection.pid is not None:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "a process of another user"


@contextmanager
def _reservations(cache: Path) -> Iterator[dict[int, str]]:
    """The reservations, to be changed in place; those of homes that are gone are dropped."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = cache / "ports.json"
    with open_private(cache / "ports.lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        found: dict[str, str] = {}
        with suppress(OSError, ValueError):
            found = json.loads(file.read_text(encoding="utf-8"))
        reserved = {int(port): owner for port, owner in found.items() if Path(owner).is_dir()}
        yield reserved
        text = json.dumps({str(port): owner for port, owner in sorted(reserved.items())}, indent=1)
        write_private(file, text, durable=False)
