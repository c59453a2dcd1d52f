"""Who may look: the token of this start, sessions in the browser, and the password where others can reach the console.

    token       new at every start, in a file that only its owner can read: for scripts, and for `headrace console`
    session     a signed cookie, so that an open page survives a restart of the console; good for this console alone
    CSRF        derived from the session; a change by a browser must bring it along
    password    needed as soon as the console listens on anything but loopback

Nothing here knows about HTTP; `safety` asks it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
import time
from pathlib import Path

from headrace.errors import ConfigError
from headrace.home import write_private

_SESSION_S = 30 * 24 * 3600
_FAILURES = 5
_LOCKED_S = 30.0


def read_password(file: Path | None) -> str | None:
    """The password: of the environment, else the first line of the file."""
    given = os.environ.get("HEADRACE_CONSOLE_PASSWORD")
    if given or file is None:
        return given or None
    try:
        return file.read_text(encoding="utf-8").splitlines()[0].strip() or None
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise ConfigError(f"the password file {file} cannot be read", why=str(error)) from None


class Access:
    """The keys of one console.

    What it signs names its audience, the port and whether it is read-only: a session of a read-only console must be
    worthless at one that writes, even if that one is started later, in the same folder and with the same key.
    """

    def __init__(self, folder: Path, port: int, password: str | None = None, *, read_only: bool = False) -> None:
        self.token_file = folder / "token"
        self.token = secrets.token_urlsafe(24)
        write_private(self.token_file, self.token + "\n")
        self._key = self._kept_key(folder / "key")
        self._audience = f"{port}:{'read-only' if read_only else 'read-write'}"
        self._password = password
        # Cookies belong to a host, not to a port: two consoles on one machine must not overwrite each other's.
        self.cookie = f"headrace_{port}"
        self._lock = threading.Lock()
        self._failures: list[float] = []

    @staticmethod
    def _kept_key(file: Path) -> bytes:
        try:
            found = bytes.fromhex(file.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            found = b""
        if len(found) == 32:
            return found
        key = secrets.token_bytes(32)
        write_private(file, key.hex() + "\n")
        return key

    @property
    def has_password(self) -> bool:
        return self._password is not None

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def is_password(self, given: str) -> bool:
        """True if it is. After some wrong ones nobody is listened to for a while."""
        if self._password is None:
            return False
        now = time.monotonic()
        with self._lock:
            self._failures = [at for at in self._failures if now - at < _LOCKED_S]
            if len(self._failures) >= _FAILURES:
                return False
            right = hmac.compare_digest(_digest(given), _digest(self._password))
            if not right:
                self._failures.append(now)
            return right

    @property
    def locked(self) -> bool:
        with self._lock:
            now = time.monotonic()
            return sum(now - at < _LOCKED_S for at in self._failures) >= _FAILURES

    def new_session(self) -> str:
        """A session as it stands in the cookie."""
        body = f"{int(time.time())}.{secrets.token_urlsafe(12)}"
        return f"{body}.{self._sign('session', body)}"

    def is_session(self, cookie: str) -> bool:
        body, _, signature = cookie.rpartition(".")
        issued = body.partition(".")[0]
        if not issued.isascii() or not issued.isdigit() or len(issued) > 12:
            return False
        young = 0 <= time.time() - int(issued) + 60 < _SESSION_S
        return young and hmac.compare_digest(signature.encode(), self._sign("session", body).encode())

    def csrf(self, session: str) -> str:
        """What a change in this session must bring along."""
        return self._sign("csrf", session)

    def is_csrf(self, session: str, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.csrf(session).encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{self._audience}:{text}".encode(), hashlib.sha256).hexdigest()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
