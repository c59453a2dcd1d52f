from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cluster import ports
from headrace.errors import SetupError, UsageError
from headrace.home import Home

LENT = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this very process listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def a_home(folder: Path) -> Home:
    home = Home(folder)
    home.create()
    return home


def test_ports_are_free_and_in_a_row(tmp_path: Path, cache: Path) -> None:
    chosen = ports.choose(a_home(tmp_path / "a"), cache, 6, None)
    assert chosen == tuple(range(chosen[0], chosen[0] + 6))
    assert all(ports.is_free(port) for port in chosen)


def test_two_homes_never_get_the_same_port(tmp_path: Path, cache: Path) -> None:
    homes = [a_home(tmp_path / str(number)) for number in range(8)]
    chosen = [ports.choose(home, cache, 6, None) for home in homes]
    assert len({port for each in chosen for port in each}) == 8 * 6


def test_ports_lent_to_outgoing_connections_come_last(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is down for a moment would find its port taken by whoever tries to reach it."""
    first, last = (int(port) for port in LENT.read_text(encoding="ascii").split())
    chosen = [ports.choose(a_home(tmp_path / str(number)), cache, 6, None) for number in range(20)]
    assert not [port for each in chosen for port in each if first <= port <= last]
    monkeypatch.setattr(ports, "is_free", lambda port: port >= first)  # nothing else is left
    assert ports.choose(a_home(tmp_path / "late"), cache, 6, None)[0] >= first


def test_a_console_takes_no_port_of_a_cluster_that_sleeps(tmp_path: Path, cache: Path) -> None:
    reserved = ports.choose(a_home(tmp_path / "asleep"), cache, 3, None)
    assert ports.free_port(cache, reserved[0]) not in {*reserved, 9092, 19092, 29092}
    (port,) = ports.choose_for_service(a_home(tmp_path / "other"), cache, reserved[1], 1)
    assert port not in {*reserved, 9092, 19092, 29092}


def test_whoever_connects_from_a_port_is_named_as_its_holder(taken: int) -> None:
    with socket.create_connection(("127.0.0.1", taken)) as going_out:
        assert ports.holder(going_out.getsockname()[1]).startswith(f"pid {os.getpid()} (")


def test_a_taken_port_is_an_error_that_names_its_holder(tmp_path: Path, cache: Path, taken: int) -> None:
    with pytest.raises(SetupError, match=f"port {taken} is taken") as raised:
        ports.choose(a_home(tmp_path / "a"), cache, 1, taken)
    assert f"pid {os.getpid()} (" in str(raised.value.why)
    assert str(raised.value.hint).startswith("headrace up --base-port ")


def test_a_port_reserved_by_another_home_is_an_error_that_names_it(tmp_path: Path, cache: Path) -> None:
    first = a_home(tmp_path / "first")
    reserved = ports.choose(first, cache, 3, None)
    with pytest.raises(SetupError, match=f"port {reserved[1]} belongs to the cluster in {first.root}"):
        ports.choose(a_home(tmp_path / "second"), cache, 2, reserved[1])


def test_the_own_reservation_may_be_asked_for_again(tmp_path: Path, cache: Path) -> None:
    home = a_home(tmp_path / "a")
    chosen = ports.choose(home, cache, 3, None)
    assert ports.choose(home, cache, 3, chosen[0]) == chosen


def test_released_ports_and_those_of_vanished_homes_are_free_again(tmp_path: Path, cache: Path) -> None:
    released, vanished = a_home(tmp_path / "released"), a_home(tmp_path / "vanished")
    first, second = ports.choose(released, cache, 3, None), ports.choose(vanished, cache, 3, None)
    ports.release(released, cache)
    vanished.root.rmdir()
    other = a_home(tmp_path / "other")
    assert ports.choose(other, cache, 3, first[0]) == first
    assert ports.choose(other, cache, 3, second[0]) == second


def test_a_damaged_reservation_file_stops_nobody(tmp_path: Path, cache: Path) -> None:
    cache.mkdir()
    (cache / "ports.json").write_text("{ garbage", encoding="utf-8")
    assert ports.choose(a_home(tmp_path / "a"), cache, 2, None)


@pytest.mark.parametrize("base", [0, -1, 80, 65_535, 70_000])
def test_ports_that_cannot_be_used_are_refused(tmp_path: Path, cache: Path, base: int) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        ports.choose(a_home(tmp_path / "a"), cache, 2, base)
