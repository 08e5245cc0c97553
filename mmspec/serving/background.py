"""A server in a thread of this process, on the loopback interface."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mmspec.serving.app import Application
from mmspec.serving.server import DrainingServer, address_of, bind

STOP_SECONDS = 30.0


@contextmanager
def in_background(application: Application) -> Iterator[tuple[str, DrainingServer]]:
    """Runs a server inside the context, as `mmspec serve` does but for signals.

    Yields:
        Its URL, and the server.

    Raises:
        RuntimeError: If the server does not stop.
        BaseException: The error that ended it.
    """
    listener = bind("127.0.0.1", 0)
    server = DrainingServer(application)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(server.serve([listener]))
        except BaseException as error:  # raised in the thread of the caller
            failures.append(error)
        finally:
            listener.close()  # so that no client waits for a server that has ended

    thread = threading.Thread(target=run, name="mmspec-server", daemon=True)
    thread.start()
    try:
        yield address_of(listener), server
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS)
        if failures:
            raise failures[0]
    if thread.is_alive():
        raise RuntimeError("the server does not stop")
