"""Tokens, sessions and the password of the console."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.console.access import Access
from headrace.console.server import Serving, own_folder
from headrace.errors import UsageError
from headrace.kafka.client import Connection


def test_the_token_is_new_at_every_start_and_nobody_elses(tmp_path: Path) -> None:
    first, second = Access(tmp_path, 8080), Access(tmp_path, 8080)
    assert first.token != second.token
    assert (tmp_path / "token").read_text().strip() == second.token
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    assert second.is_token(second.token)
    assert not second.is_token(first.token)
    assert not second.is_token("")


def test_a_session_survives_a_restart_and_no_forgery(tmp_path: Path) -> None:
    session = Access(tmp_path, 8080).new_session()
    again = Access(tmp_path, 8080)
    assert again.is_session(session)
    assert not Access(tmp_path / "..", 8080).is_session(session)
    body, _, signature = session.rpartition(".")
    for forged in ("", ".", session[:-1], f"9{body}.{signature}", f"{body}.", "a.b.c", "٣.x." + signature):
        assert not again.is_session(forged), forged


def test_a_session_is_good_for_its_own_console_alone(tmp_path: Path) -> None:
    """Also in one folder and with one key: a console of another port or another mode takes none of it."""
    limited = Access(tmp_path, 8080, read_only=True)
    session = limited.new_session()
    assert limited.is_session(session)
    for other in (Access(tmp_path, 8080), Access(tmp_path, 8081, read_only=True), Access(tmp_path, 8081)):
        assert not other.is_session(session)
        assert not other.is_csrf(session, limited.csrf(session))


def test_two_consoles_never_share_a_folder(tmp_path: Path) -> None:
    with own_folder(tmp_path / "console", 8080) as first, own_folder(tmp_path / "console", 8081) as second:
        assert first == tmp_path / "console"
        assert second == first / "port-8081"
    with own_folder(tmp_path / "console", 8081) as again:
        assert again == first


def test_a_session_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(tmp_path, 8080)
    session = access.new_session()
    later = time.time() + 31 * 24 * 3600
    monkeypatch.setattr("headrace.console.access.time.time", lambda: later)
    assert not access.is_session(session)


def test_the_csrf_token_belongs_to_the_session(tmp_path: Path) -> None:
    access = Access(tmp_path, 8080)
    one, other = access.new_session(), access.new_session()
    assert access.is_csrf(one, access.csrf(one))
    assert not access.is_csrf(one, access.csrf(other))


def test_after_some_wrong_passwords_nobody_is_listened_to(tmp_path: Path) -> None:
    access = Access(tmp_path, 8080, "correct horse")
    assert access.is_password("correct horse")
    for _ in range(5):
        assert not access.is_password("guess")
    assert access.locked
    assert not access.is_password("correct horse")


def test_without_a_password_none_is_right(tmp_path: Path) -> None:
    assert not Access(tmp_path, 8080).is_password("")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])  # noqa: S104 - that is the point
def test_the_console_listens_elsewhere_only_with_a_password(tmp_path: Path, host: str) -> None:
    connection = Connection("127.0.0.1:1")
    with pytest.raises(UsageError, match="only with a password"):
        Serving(tmp_path, 8080, connection, host=host).check()
    Serving(tmp_path, 8080, connection, host=host, password="x").check()
    Serving(tmp_path, 8080, connection, host="127.0.0.1").check()
