"""`mmspec report --serve`: the page of one evaluation at a local address, following it while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qs, quote, urlsplit

from mmspec.errors import ArgumentError, MMSpecError
from mmspec.metrics.report.live import Progress, progress
from mmspec.metrics.report.markup import Children, Element, document
from mmspec.metrics.report.page import page
from mmspec.metrics.report.runs import ReportRun
from mmspec.metrics.report.style import STYLE

HOST = "127.0.0.1"
log = logging.getLogger(__name__)
SECONDS = 10  # between two reloads of the page of a running evaluation


class ReportServer(ThreadingHTTPServer):
    """Serves the page of one results folder, to this machine only; writes nothing.

    Args:
        port: 0 takes a free one.

    Raises:
        ArgumentError: If the folder holds no evaluation, or the port is taken.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        progress(folder)
        self.folder = folder
        self._lock = Lock()
        self._made: tuple[object, bool, str, bool] | None = None
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ArgumentError(f"--port {port} cannot be used: {error.strerror or error}; name another") from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def content(self, refreshing: bool) -> tuple[str, bool]:
        """The page, built anew when a file of the folder has changed, and whether the evaluation has ended.

        Args:
            refreshing: Whether the page reloads itself, which it then says.
        """
        with self._lock:
            stamp = _stamp(self.folder)
            if self._made is None or self._made[:2] != (stamp, refreshing):
                found = progress(self.folder)
                self._made = stamp, refreshing, _page(found, self.folder, refreshing), found.finished
            return self._made[2], self._made[3]


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "mmspec"
    sys_version = ""

    def do_GET(self) -> None:
        # A page elsewhere whose name points to this machine must not read results.
        if self.headers.get("Host", "") not in (f"{name}:{self.server.server_port}" for name in (HOST, "localhost")):
            return self._answer(HTTPStatus.FORBIDDEN, "this address is not served\n", "text/plain")
        parts = urlsplit(self.path)
        if parts.path != "/":
            return self._answer(HTTPStatus.NOT_FOUND, "there is one page, at /\n", "text/plain")
        refreshing = parse_qs(parts.query).get("refresh") != ["off"]
        try:
            text, finished = self.server.content(refreshing)
        except MMSpecError as error:
            return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n", "text/plain")
        self._answer(HTTPStatus.OK, text, "text/html", SECONDS if refreshing and not finished else None)

    def _answer(self, status: HTTPStatus, text: str, kind: str, refresh: int | None = None) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        if refresh is not None:
            self.send_header("Refresh", str(refresh))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        log.info("%s %s", self.client_address[0], quote(format % arguments, safe=' "/?=&'))


def serve_report(folder: Path, port: int, announce: Callable[[str], None]) -> None:
    """Serves until interrupted.

    Args:
        port: 0 takes a free one.
        announce: Called with the address once it answers.

    Raises:
        ArgumentError: As `ReportServer`.
    """
    with ReportServer(folder, port) as server:
        announce(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _stamp(folder: Path) -> object:
    """Changes when results or journals do."""
    files = [folder / "results.json", folder / "config.yaml", *sorted(folder.glob("samples-*.jsonl"))]
    return [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file()]


def _page(found: Progress, folder: Path, refreshing: bool) -> str:
    notice = None if found.finished else _notice(found, refreshing)
    if found.record is None:
        return document(
            "mmspec eval", STYLE, [Element("header", Element("h1", "An evaluation that has just begun"), notice)]
        )
    return page([ReportRun("", found.record, folder)], notice)


def _notice(found: Progress, refreshing: bool) -> Children:
    """How far the evaluation is, and how to stop the reloading."""
    total = found.total * len(found.done)
    share = sum(found.done.values()) / max(total, 1)
    counts = ", ".join(f"{recipe} {count:,}" for recipe, count in found.done.items())
    switch = (
        Element("a", "Stop reloading", href="?refresh=off")
        if refreshing
        else Element("a", f"Reload every {SECONDS} s", href="?refresh=on")
    )
    return Element(
        "p",
        f"Running: {sum(found.done.values()):,} of {total:,} samples, {100 * share:.0f} % ({counts} of "
        f"{found.total:,} each). "
        "Preliminary: metrics of files and the check of exactness come at the end. ",
        switch,
        class_="notice",
        role="status",
    )
