"""A short address for the schema registry: `http://127.0.0.1:8081` instead of a path that people must know.

Confluent's clients expect the registry's API at the root of an address; Apicurio serves it below `/apis/ccompat/v7`.
This little server takes a request at the root and passes it on below that path, headers and body as they are. It runs
as a process of its own beside the registry, so that it can say what is the matter while the registry is down.

    python -m headrace.cluster.front PORT TARGET_PORT PREFIX MARKER
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Between one hop and the next only: each side has its own.
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization"}
_ANSWER_WITHIN_S = 60
_LARGEST_BODY = 32 << 20


class Front(ThreadingHTTPServer):
    """Listens on loopback; one thread and one connection to the registry for each client connection."""

    daemon_threads = True
    # Fifty clients at once are a normal test; five, Python's default, would make the others wait for seconds.
    request_queue_size = 128

    def __init__(self, port: int, target_port: int, prefix: str) -> None:
        super().__init__(("127.0.0.1", port), _Passing)
        self.target_port = target_port
        self.prefix = prefix


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front
    _upstream: http.client.HTTPConnection | None = None

    def _pass_on(self) -> None:
        body = self._body()
        if body is None:
            return
        try:
            status, headers, answer = self._ask(body)
        except (OSError, http.client.HTTPException):
            self._answer(503, {"error_code": 50301, "message": "the registry is down: headrace start registry"})
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

    def _body(self) -> bytes | None:
        """The request's body; None if it was refused."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in {"127.0.0.1", "localhost", "[::1]"}:
            # A page in a browser could otherwise reach us under a name of its own (DNS rebinding).
            self._answer(421, {"error_code": 42101, "message": "this server answers for 127.0.0.1 only"})
            return None
        length = int(self.headers.get("Content-Length") or 0)
        if length > _LARGEST_BODY or "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            self._answer(413, {"error_code": 41301, "message": "the body is too large or of unknown length"})
            self.close_connection = True
            return None
        return self.rfile.read(length)

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """The registry's answer. A kept connection may have died meanwhile: then a new one is tried, once."""
        path = self.path if self.path.startswith("/apis/") else self.server.prefix + self.path
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        kept = self._upstream is not None
        upstream = self._upstream or http.client.HTTPConnection(
            "127.0.0.1", self.server.target_port, timeout=_ANSWER_WITHIN_S
        )
        try:
            upstream.request(self.command, path, body or None, headers)
            response = upstream.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            upstream.close()
            self._upstream = None
            if kept:
                return self._ask(body)
            raise
        self._upstream = upstream
        return response.status, response.getheaders(), answer

    def _answer(self, status: int, document: dict[str, object]) -> None:
        text = json.dumps(document).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def finish(self) -> None:
        if self._upstream:
            self._upstream.close()
        super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """The registry logs its requests itself."""


def main() -> None:
    port, target_port, prefix, _marker = sys.argv[1:]
    threading.current_thread().name = "front"
    Front(int(port), int(target_port), prefix).serve_forever()


if __name__ == "__main__":
    main()
