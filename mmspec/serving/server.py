"""Runs the application with uvicorn until a signal, after which running requests finish."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import uvicorn

from mmspec.errors import ArgumentError
from mmspec.serving.app import Application
from mmspec.serving.connections import BoundedConnection


class DrainingServer(uvicorn.Server):
    """A server that drains: after SIGTERM or SIGINT it refuses new requests with status 503 and stops when the
    running ones have finished, or at the end of `ServerSettings.drain_seconds`. A second signal stops it at once.

    Args:
        end: Called at a second signal.
    """

    def __init__(self, application: Application, end: Callable[[], None] = lambda: None) -> None:
        self._application = application
        self._end = end
        self._stop_at: float | None = None
        super().__init__(
            uvicorn.Config(
                application.asgi, http=BoundedConnection, ws="none", loop="asyncio", log_config=None,
                log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2, lifespan="on",
            )
        )  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stop_at is not None:
            self.should_exit = self.force_exit = True
            self._end()
            return
        self._application.drain()
        self._stop_at = time.monotonic() + self._application.settings.drain_seconds

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being read or worked on, or a response has not been sent to its end."""
        return bool(self._application.busy) or any(
            connection.is_busy
            for connection in self.server_state.connections
            if isinstance(connection, BoundedConnection)
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.cut_off()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if self._stop_at is not None and (not self._is_busy or time.monotonic() > self._stop_at):
            return True
        return await super().on_tick(counter)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ArgumentError: If the address is not one of this machine, or is in use.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ArgumentError(f"--host {host!r} is not an address of this machine: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ArgumentError(f"--host {host!r} --port {port}: {error.strerror}; choose another port") from None
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(application: Application, listener: socket.socket) -> None:
    """Serves until a signal.

    Args:
        listener: The socket.
    """

    async def run() -> None:
        await DrainingServer(application, _end).serve([listener])
        if application.hangs:
            _end()

    asyncio.run(run())
    if application.busy or application.cut:
        print("mmspec: stopped before all requests had finished", file=sys.stderr)


def _end() -> NoReturn:
    """Ends the process without waiting for its threads, which may hang in a call."""
    with suppress(Exception):  # stderr may be closed
        print("mmspec: stopped at once", file=sys.stderr, flush=True)
    os._exit(1)
