"""Serves the page of a run live to a browser, read-only and only on the loopback interface.

The address contains a token. Requests without it, or with another host name (a DNS rebinding attack), are refused. No path of a
request is opened, and nothing can be written: there are three resources, all for GET.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from ..errors import UsageError
from .foreign import KeyMap
from .html import Live, render_html
from .journal import journal_name
from .journal_read import JournalData
from .model import RunView, load_run
from .reading import MAX_SECONDS

__all__ = ["LiveServer"]

LOOPBACK = "127.0.0.1"
_HOSTS = {"127.0.0.1", "localhost", "[::1]"}
_SHARE = 10
"""The page is rendered again only after this multiple of its last rendering time."""
_TIMEOUT_S = 10
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LiveServer:
    """Serves one run until it is closed; `address` includes the token."""

    def __init__(
        self,
        run: Path,
        *,
        port: int = 0,
        interval: float = 1.0,
        keys: KeyMap | None = None,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self.token = secrets.token_urlsafe(16)
        self._pages = _Pages(run, interval, keys, max_seconds)
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), self._handler())
        except OSError as e:
            raise UsageError(f"port {port} cannot be had: {e.strerror}\ntry: --port 0") from e
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_address[1]}/?token={self.token}"

    def serve(self) -> None:
        """Serve until `close` is called in another thread, or Ctrl-C."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop serving and release the port."""
        self._server.shutdown()
        self._server.server_close()

    def release(self) -> None:
        """Release the port of a server that has stopped."""
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        token, pages = self.token, self._pages

        class Handler(_Handler):
            answers = {  # noqa: RUF012 - read only, made for this one server
                "/": (pages.page, "text/html; charset=utf-8"),
                "/page": (pages.page, "text/html; charset=utf-8"),
                "/version": (pages.version, "text/plain; charset=utf-8"),
            }
            secret = token

        return Handler


class _Pages:
    """The current page, rendered again only if the run has written something."""

    def __init__(self, run: Path, interval: float, keys: KeyMap | None, max_seconds: float) -> None:
        self._run, self._keys, self._max_seconds = run, keys, max_seconds
        self._interval_ms = max(100, int(interval * 1000))
        self._lock = threading.Lock()
        self._made, self._version, self._rest_until = "", "", 0.0

    def version(self) -> str:
        """A short text that changes when there is something new."""
        with self._lock:
            return self._version if time.monotonic() < self._rest_until else self._written()

    def page(self) -> str:
        with self._lock:
            version = self._written()
            if version != self._version and time.monotonic() >= self._rest_until:
                start = time.monotonic()
                live = Live(self._interval_ms, version)
                self._made, self._version = render_html(self._view(), live), version
                now = time.monotonic()
                self._rest_until = now + _SHARE * (now - start)
            return self._made

    def _view(self) -> RunView:
        try:
            return load_run(self._run, keys=self._keys, max_seconds=self._max_seconds)
        except UsageError as e:  # nothing to read yet, or nothing readable
            path = str(self._run)
            name = self._run.absolute().name
            return RunView(name=name, path=path, data=JournalData(), problems=[str(e)])

    def _written(self) -> str:
        """Sizes and times of the run's files."""
        watched = [self._run] if self._run.is_file() else [self._run / journal_name(0)]
        watched += [self._run / "incidents"]
        found = []
        for path in watched:
            try:
                stat = path.stat()
            except OSError:
                continue
            found.append(f"{stat.st_size:x}-{stat.st_mtime_ns:x}")
        return ".".join(found) or "nothing"


class _Handler(BaseHTTPRequestHandler):
    answers: dict[str, tuple[Callable[[], str], str]]
    secret: str
    timeout = _TIMEOUT_S
    server_version, sys_version = "stayfinite", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        asked = urlsplit(self.path)
        given = parse_qs(asked.query).get("token", [""])[0]
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HOSTS or not hmac.compare_digest(given.encode(), self.secret.encode()):
            return self.send_error(HTTPStatus.FORBIDDEN, "the address with its token is needed")
        if asked.path not in self.answers:
            return self.send_error(HTTPStatus.NOT_FOUND)
        make, kind = self.answers[asked.path]
        body = make().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""
