"""A server on the loopback interface, in a thread of the test."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from mmspec.audio.adapter import PreparedText
from mmspec.serving.app import Application
from mmspec.serving.generation import CallOutput, DecodingRequest, QueueFullError
from mmspec.serving.models import ServedModel
from mmspec.serving.server import DrainingServer, address_of, bind
from mmspec.serving.settings import ServerSettings


@dataclass
class Served:
    """A running server.

    Attributes:
        application: The application.
        address: Its URL.
        server: The server; None for one in another process.
    """

    application: Application
    address: str
    server: DrainingServer | None = None

    def request(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a response.

        Args:
            path: The path.
            body: Bytes as they are, or a value for JSON; None sends none.
            headers: Besides Content-Type.
            method: The default is POST with a body and GET without.
        """
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if data is not None else {}
        request = urllib.request.Request(self.address + path, data, kind | (headers or {}), method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, dict(response.headers), response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def json(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """The JSON value of a response."""
        return json.loads(self.request(path, body, headers)[2])

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric; 0 if it has not been counted yet."""
        value = self.application.metrics.registry.get_sample_value(name, labels)
        return 0.0 if value is None else value

    def wait_idle(self) -> None:
        """Waits until no request is being worked on."""
        deadline = time.monotonic() + 20
        while self.application.busy:
            assert time.monotonic() < deadline, "a request does not end"
            time.sleep(0.01)


@contextmanager
def served(models: Sequence[ServedModel], settings: ServerSettings | None = None) -> Iterator[Served]:
    """Runs a server as `mmspec serve` does, but for signals."""
    application = Application(list(models), settings)
    listener = bind("127.0.0.1", 0)
    server = DrainingServer(application)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(server.serve([listener]))
        except BaseException as error:  # raised in the test
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Served(application, address_of(listener), server)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
    assert not failures and not thread.is_alive(), failures


class HeldEngine:
    """Gives the first of an image's codes at once, and the others when the test lets it.

    Args:
        max_waiting: Requests that may be held.
    """

    def __init__(self, max_waiting: int = 64) -> None:
        self.release = threading.Event()
        self.held = 0
        self._max_waiting = max_waiting

    async def generate(self, prompt: str | PreparedText, request: DecodingRequest) -> AsyncGenerator[CallOutput, None]:
        if self.held >= self._max_waiting:
            raise QueueFullError("the queue is full")
        self.held += 1
        try:
            yield CallOutput(torch.zeros(1, dtype=torch.int64), 1)
            while not self.release.is_set():
                await asyncio.sleep(0.005)
            yield CallOutput(torch.zeros(255, dtype=torch.int64), 2)
        finally:
            self.held -= 1

    def stats(self) -> dict[str, float]:
        return {"running": self.held}

    async def aclose(self) -> None:
        self.release.set()


def held_model(max_waiting: int = 64) -> tuple[ServedModel, HeldEngine]:
    """The model `shapes` with an engine that the test lets go on."""
    engine, (shapes, _) = HeldEngine(max_waiting), new_models()
    shapes.engine = engine
    return shapes, engine


def new_models(max_rows: int = 16, max_waiting: int = 64) -> list[ServedModel]:
    """The models of the package."""
    from mmspec.audio.spoken.model import load as load_spoken
    from mmspec.serving.engines import new_engine
    from mmspec.vision.shapes.model import load as load_shapes

    shapes, spoken = load_shapes(), load_spoken()
    shapes.set_progress_bar_config(disable=True)
    return [
        ServedModel(name, pipe, recipe, new_engine(pipe, recipe, max_rows, max_waiting))
        for name, pipe, recipe in (("shapes", shapes, "scd"), ("spoken", spoken, "table:window=8"))
    ]
