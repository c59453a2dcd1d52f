"""The address of the schema registry and of Connect: a reverse proxy that checks a request before it passes it on.

The two Java processes listen on ports of their own and answer only to a secret that this process knows. Here a request
must name 127.0.0.1 as its host and come from no foreign web page (DNS rebinding, cross-site requests); for Connect it
must carry the token of the home, and the `file` of a connector must lie below the folders that the user has named.
Confluent's clients expect the registry at the root of its address, Apicurio serves it below a path: that is bridged
here too. It is a process of its own, so that it can say what is wrong while the service behind it is down.

    python -m headrace.cluster.proxy '{"name": "registry", "port": 8081, …}' MARKER
"""

from __future__ import annotations

import base64
import binascii
import hmac
import http.client
import json
import os
import string
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

from headrace.home import remove_for_good

# Between one hop and the next only: each side has its own.
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization"}
_ANSWER_WITHIN_S = 60
_LARGEST_BODY = 32 << 20
_OUR_NAMES = {"127.0.0.1", "localhost", "[::1]"}
# What Java's String.trim() takes off: Connect may trim a setting that was checked untrimmed.
_BLANKS = "".join(map(chr, range(33)))


@dataclass(frozen=True)
class Route:
    """Where the proxy listens, which service it asks and what it demands. Secrets are named by their files."""

    name: str
    port: int
    target_port: int
    credentials: str
    prefix: str = ""
    token: str | None = None
    folders: tuple[str, ...] = ()
    home: str = ""
    #: A file that is removed as soon as the service has answered a request well.
    unfinished: str = ""


class _Refused(Exception):
    """The request is answered here, with this status and reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Proxy(ThreadingHTTPServer):
    """Listens on loopback; one thread and one connection to the service for each client connection."""

    daemon_threads = True
    # Fifty clients at once are a normal test; five, Python's default, would make the others wait for seconds.
    request_queue_size = 128

    def __init__(self, route: Route) -> None:
        super().__init__(("127.0.0.1", route.port), _Passing)
        self.route = route


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy
    _upstream: http.client.HTTPConnection | None = None

    def _pass_on(self) -> None:
        try:
            self._check_sender()
            body = self._checked(self._body())
            status, headers, answer = self._ask(body)
            if status < http.client.BAD_REQUEST and self.server.route.unfinished:
                remove_for_good(Path(self.server.route.unfinished))
        except _Refused as refused:
            self._answer(refused)
            return
        except TimeoutError:
            self._answer(_Refused(504, f"{self.server.route.name} has not answered within {_ANSWER_WITHIN_S} s"))
            return
        except (OSError, http.client.HTTPException):
            name = self.server.route.name
            self._answer(_Refused(503, f"{name} is down: headrace start {name}"))
            return
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = _pass_on  # noqa: N815 - http.server's names

    # -- what is demanded of a request --------------------------------------------------------------------------

    def _check_sender(self) -> None:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in _OUR_NAMES or not self.path.startswith("/"):
            # A page in a browser could otherwise reach us under a name of its own (DNS rebinding).
            raise _Refused(421, "this server answers for 127.0.0.1 only")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{name}:{self.server.route.port}" for name in _OUR_NAMES}:
            raise _Refused(403, "requests from other web pages are refused")
        token = self.server.route.token
        if token and not _is_secret(_presented(self.headers.get("Authorization")), _secret(token)):
            raise _Refused(401, f"the token is missing or wrong: send the text of {token} as Authorization: Bearer …")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length") or "0"
        if "Transfer-Encoding" in self.headers or not length.isascii() or not length.isdigit():
            raise _Refused(411, "the length of the body is unknown: Content-Length is required")
        if int(length) > _LARGEST_BODY:
            raise _Refused(413, f"the body has more than {_LARGEST_BODY} bytes")
        return self.rfile.read(int(length))

    def _checked(self, body: bytes) -> bytes:
        """The body to be passed on. One with settings is written again: no other parser may read it differently."""
        if not body or not self.server.route.folders:
            return body
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise _Refused(400, "the body is not valid JSON") from None
        inner = document.get("config") if isinstance(document, dict) else None
        for settings in (document, inner):
            if isinstance(settings, dict) and settings.get("file") is not None:
                settings["file"] = resolved(settings["file"], self.server.route)
        return json.dumps(document).encode()

    # -- how it is passed on ------------------------------------------------------------------------------------

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """The service's answer. A kept connection may have died meanwhile: then a new one is tried, once."""
        route = self.server.route
        # http.server has read the bytes as Latin-1; on their way on they must be ASCII.
        path = quote(self.path, safe=string.punctuation, encoding="latin-1")
        path = path if path.startswith("/apis/") else route.prefix + path
        ours = {"authorization", "content-length"} | ({"content-type"} if route.folders else set())
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP | ours}
        if route.folders and body:
            headers["Content-Type"] = "application/json"  # whatever encoding it came in
        headers["Authorization"] = _secret(route.credentials).decode()
        kept = self._upstream is not None
        upstream = self._upstream or http.client.HTTPConnection(
            "127.0.0.1", route.target_port, timeout=_ANSWER_WITHIN_S
        )
        try:
            upstream.request(self.command, path, body or None, headers)
            response = upstream.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            upstream.close()
            self._upstream = None
            if kept and not isinstance(error, TimeoutError):
                return self._ask(body)
            raise
        self._upstream = upstream
        return response.status, response.getheaders(), answer

    def _answer(self, refused: _Refused) -> None:
        # What was not read of the body would be taken for the next request.
        self.close_connection = True
        text = json.dumps({"error_code": refused.status * 100 + 1, "message": refused.message}).encode()
        self.send_response_only(refused.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        if refused.status == http.client.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def finish(self) -> None:
        if self._upstream:
            self._upstream.close()
        super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """The service logs its requests itself."""


def _secret(file: str) -> bytes:
    """Read anew each time: the service behind gets another secret at each of its starts."""
    return Path(file).read_bytes().strip()


def _is_secret(presented: bytes, secret: bytes) -> bool:
    """True if they are equal. A secret that was lost (an empty file) is nobody's."""
    return bool(secret) and hmac.compare_digest(presented, secret)


def _presented(authorization: str | None) -> bytes:
    """The token in the header: `Bearer TOKEN`, or `Basic …` with the token as password, whoever the user is."""
    scheme, _, text = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return text.strip().encode(errors="replace")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(text, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def resolved(file: object, route: Route) -> str:
    """The file that a connector may use, links and `..` resolved; a relative one is below the first folder.

    The files of the cluster itself (its tokens, Kafka's data) are outside, also where the home is below such a folder.
    """
    text = str(file).strip(_BLANKS)
    try:
        text.encode()
        path = Path(os.path.realpath(Path(route.folders[0]) / text))
    except (OSError, ValueError):
        raise _Refused(400, f"file={text!r} is not the name of a file") from None
    home = Path(route.home).resolve()
    for folder in (Path(name).resolve() for name in route.folders):
        of_cluster = path.is_relative_to(home) and not (folder != home and folder.is_relative_to(home))
        if path.is_relative_to(folder) and not of_cluster:
            return str(path)
    named = ", ".join(folder for folder in route.folders if not Path(folder).is_relative_to(route.home))
    raise _Refused(
        400,
        f"file={text} is not below the folders whose files connectors may use: {named}, except {route.home}; "
        "[cluster] connect_files in headrace.toml names others",
    )


def main() -> None:
    settings, _marker = sys.argv[1:]
    threading.current_thread().name = "proxy"
    given = json.loads(settings)
    Proxy(Route(**{**given, "folders": tuple(given["folders"])})).serve_forever()


if __name__ == "__main__":
    main()
