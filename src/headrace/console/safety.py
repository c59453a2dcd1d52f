"""The gate in front of everything the console serves: who asks, from where, by which name, and what may come back.

    Host      must be a name of this console: a page elsewhere could reach us under a name of its own (DNS rebinding)
    Origin    of a websocket and of every change must be ours
    session   cookie or token; without one there is a page that says how to get in, and nothing else
    CSRF      a change that a browser's session asks for must bring its token along; a script's token is proof enough
    answers   carry a Content-Security-Policy without any foreign origin; scripts in pages need the nonce of the answer

Vue compiles templates in the browser and NiceGUI evaluates what the server sends, so 'unsafe-eval' must be allowed; no
script that did not come from here can run all the same.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from html import escape
from http.cookies import CookieError, SimpleCookie
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from headrace.console.access import Access

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LARGEST_BODY = 16_000_000
_SAFE = {"GET", "HEAD", "OPTIONS"}
# What is the same for everybody and tells nothing: the framework's files, our style sheet, and that we live.
_FRAMEWORK = re.escape(version("nicegui"))
_PUBLIC = re.compile(
    rf"/_nicegui/{_FRAMEWORK}/(static|libraries|components|esm|resources)/|/static/|/favicon\.ico$|/api/health$"
)
_SOCKET = "/_nicegui_ws/"
_SCRIPT_TAGS = re.compile(rb'<script(?= type="(?:importmap|module)">| defer src="/_nicegui/|>\s*addStyle = )')


@dataclass(frozen=True)
class Asked:
    """A request, as far as the gate looks at it."""

    kind: str
    method: str
    path: str
    query: str
    headers: dict[str, str]

    @classmethod
    def of(cls, scope: Scope) -> Asked:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        return cls(
            scope["type"], scope.get("method", "GET"), scope["path"], scope["query_string"].decode("latin-1"), headers
        )

    @property
    def changes(self) -> bool:
        return self.kind == "websocket" or self.method not in _SAFE

    def cookie(self, name: str) -> str | None:
        try:
            found = SimpleCookie(self.headers.get("cookie", "")).get(name)
        except CookieError:
            return None
        return found.value if found else None

    @property
    def bearer(self) -> str | None:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None


class Gate:
    """An ASGI application around another one."""

    def __init__(self, app: App, access: Access, *, names: frozenset[str] = frozenset()) -> None:
        self.app = app
        self.access = access
        self._names = {"localhost", *names}
        if access.has_password:
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        asked = Asked.of(scope)
        refusal = self._refusal(asked)
        if refusal is not None:
            await _answer(scope, receive, send, *refusal)
        elif asked.path == "/login" and asked.kind == "http":
            await self._login(asked, scope, receive, send)
        elif asked.kind == "websocket":
            await self.app(scope, receive, send)
        else:
            scope["headrace.session"] = asked.cookie(self.access.cookie)
            # Pages look at this once more: what is open to everybody is never one of them.
            scope["headrace.let_in"] = not _PUBLIC.match(asked.path)
            await self.app(scope, _bounded(receive), _Dressed(send, asked.headers.get("host", "")))

    # -- who may pass -------------------------------------------------------------------------------------------

    def _refusal(self, asked: Asked) -> tuple[int, Any] | None:
        """Why the request does not pass: a status, and words or a page."""
        if not self._is_our_name(asked.headers.get("host", "")):
            return 421, _words("this console does not answer to that name", "open it as 127.0.0.1 or localhost")
        length = asked.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _LARGEST_BODY:
            return 413, _words(f"the request is larger than {_LARGEST_BODY // 1_000_000} MB")
        if asked.changes and not self._is_our_origin(asked):
            return 403, _words("the request comes from another site", "changes are taken from the console's own pages")
        if _PUBLIC.match(asked.path) or asked.path == "/login":
            return None
        if asked.path.startswith(_SOCKET) and asked.kind != "websocket":
            return 403, _words("only websockets are accepted here")
        return self._not_let_in(asked)

    def _not_let_in(self, asked: Asked) -> tuple[int, object] | None:
        if asked.bearer is not None:
            if self.access.is_token(asked.bearer):
                return None
            return 401, _words("the token is wrong", f"it is new at every start: {self.access.token_file}")
        session = asked.cookie(self.access.cookie)
        if session is None or not self.access.is_session(session):
            wants_page = asked.method == "GET" and "text/html" in asked.headers.get("accept", "")
            if wants_page and not asked.path.startswith("/api"):
                return 401, self._way_in()
            return 401, _words("a token is required", "headrace console opens the console with one")
        wants_csrf = asked.kind == "http" and asked.changes
        if wants_csrf and not self.access.is_csrf(session, asked.headers.get("x-csrf-token", "")):
            return 403, _words("the X-CSRF-Token is missing or wrong", "GET /api/session returns it")
        return None

    def _is_our_name(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        # An address cannot be made to point elsewhere; but without a password only loopback is meant.
        return address.is_loopback or self.access.has_password

    def _is_our_origin(self, asked: Asked) -> bool:
        origin = asked.headers.get("origin")
        if origin is None:
            # Browsers always name it; a script has none, and must show the token instead.
            return asked.bearer is not None
        try:
            return urlsplit(origin).netloc.lower() == asked.headers.get("host", "").lower()
        except ValueError:
            return False

    # -- the way in ---------------------------------------------------------------------------------------------

    async def _login(self, asked: Asked, scope: Scope, receive: Receive, send: Send) -> None:
        given = parse_qs(asked.query)
        if asked.method == "POST":
            body = await _body(_bounded(receive))
            passed = self.access.is_password(parse_qs(body.decode("utf-8", "replace")).get("password", [""])[0])
        else:
            passed = self.access.is_token(given.get("token", [""])[0])
        if not passed:
            await _answer(scope, receive, send, 401, self._way_in(failed=asked.method == "POST" or "token" in given))
            return
        cookie = f"{self.access.cookie}={self.access.new_session()}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), *_standing_headers("", "")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _way_in(self, *, failed: bool = False) -> bytes:
        wrong = "Wrong password. " if failed else ""
        if self.access.locked:
            wrong = "Too many wrong passwords: wait half a minute. "
        form = (
            '<form method="post" action="/login"><label for="p">Password</label>'
            '<input id="p" name="password" type="password" autofocus autocomplete="current-password">'
            "<button>Enter</button></form>"
            if self.access.has_password
            else ""
        )
        return _PAGE.replace("{words}", escape(wrong)).replace("{form}", form).encode()


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>headrace console</title>
<style>:root{color-scheme:light dark;background:light-dark(#fff,#121212);color:light-dark(#1a1a1a,#eee)}
body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:26rem;padding:0 1.25rem}
code{font-size:1.05em}input,button{font:inherit;padding:.45rem .7rem;margin:.3rem .4rem .3rem 0}label{display:block}
p.wrong{color:light-dark(#b3261e,#ff8a80)}</style>
<main><h1>headrace console</h1><p class="wrong">{words}</p>
<p>This console opens with an access token, which is new at each start. In a terminal, in the folder of the cluster:</p>
<p><code>headrace console</code></p>{form}</main></html>"""


def _words(problem: str, hint: str | None = None) -> dict[str, str]:
    return {"problem": problem, "hint": hint} if hint else {"problem": problem}


async def _answer(scope: Scope, receive: Receive, send: Send, status: int, what: bytes | dict[str, str]) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    page = isinstance(what, bytes)
    body = what if isinstance(what, bytes) else msgspec.json.encode(what)
    kind = b"text/html; charset=utf-8" if page else b"application/json"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *_standing_headers("", "")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _bounded(receive: Receive) -> Receive:
    """The request's body, cut off where it is larger than its length said."""
    seen = 0

    async def receive_bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body") or b"")
        return message if seen <= _LARGEST_BODY else {"type": "http.disconnect"}

    return receive_bounded


async def _body(receive: Receive) -> bytes:
    parts = b""
    while True:
        message = await receive()
        parts += message.get("body") or b""
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return parts


class _Dressed:
    """Sends what the application sends, with our headers; the scripts of a page get the nonce of the answer."""

    def __init__(self, send: Send, host: str) -> None:
        self._send = send
        self._host = host if re.fullmatch(r"[\w.:\[\]-]*", host) else ""
        self._start: Message | None = None
        self._page = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = next((v for n, v in message["headers"] if n.lower() == b"content-type"), b"")
            if kind.startswith(b"text/html"):
                self._start = message
                return
            own = _standing_headers("", self._host)
            await self._send({**message, "headers": [*message["headers"], *own]})
        elif message["type"] == "http.response.body" and self._start is not None:
            self._page += message.get("body") or b""
            if not message.get("more_body"):
                await self._send_page()
        else:
            await self._send(message)

    async def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        page = _SCRIPT_TAGS.sub(b'<script nonce="' + nonce.encode() + b'"', self._page)
        start, self._start = self._start or {}, None
        kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        headers = [*kept, (b"content-length", str(len(page)).encode()), *_standing_headers(nonce, self._host)]
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": page})


def _standing_headers(nonce: str, host: str) -> list[tuple[bytes, bytes]]:
    scripts = f"'self' 'nonce-{nonce}' 'unsafe-eval'" if nonce else "'self'"
    sockets = f" ws://{host} wss://{host}" if host else ""
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        f"font-src 'self'; connect-src 'self'{sockets}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        # Not "no-referrer": with it browsers send "null" as the origin of a form.
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
    ]
