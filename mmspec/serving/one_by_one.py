"""Decodes requests one after the other, for models and requests that cannot join a running batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

from torch import Tensor

from mmspec.audio.adapter import PreparedText
from mmspec.serving.generation import CallOutput, DecodingRequest, QueueFullError


class _Cancelled(Exception):
    """Ends the decoding of a request whose client has left."""


class OneByOneEngine:
    """Runs a pipeline's own call in a thread, for one request at a time; see `mmspec.serving.generation.Engine`.

    Args:
        pipe: An image pipeline.
        max_waiting: Requests that may wait.
    """

    def __init__(self, pipe: Any, max_waiting: int = 1024) -> None:
        self._pipe, self._max_waiting = pipe, max_waiting
        self._turn = asyncio.Lock()
        self._waiting = self._running = 0
        self._closed = threading.Event()

    async def generate(self, prompt: str | PreparedText, request: DecodingRequest) -> AsyncGenerator[CallOutput, None]:
        """As of an engine."""
        if self._waiting >= self._max_waiting:
            raise QueueFullError(f"{self._waiting} requests wait, as many as allowed; try again later")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        loop, left = asyncio.get_running_loop(), threading.Event()
        arrived: asyncio.Queue[CallOutput | None] = asyncio.Queue()

        def send(output: CallOutput) -> None:
            if left.is_set() or self._closed.is_set():
                raise _Cancelled
            loop.call_soon_threadsafe(arrived.put_nowait, output)

        def work() -> None:
            try:
                _draw(self._pipe, prompt, request, send)
            finally:
                loop.call_soon_threadsafe(arrived.put_nowait, None)

        self._running = 1
        task = asyncio.create_task(asyncio.to_thread(work))
        try:
            while (output := await arrived.get()) is not None:
                yield output
            await task
        finally:
            left.set()
            # The turn ends with the thread, even if this task is cancelled once more.
            task.add_done_callback(self._end_turn)
            await asyncio.wait([task])

    def _end_turn(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # it has been raised, or is of no interest any more
        self._running = 0
        self._turn.release()

    def stats(self) -> dict[str, float]:
        return {"running": self._running, "waiting": self._waiting}

    async def aclose(self) -> None:
        self._closed.set()
        async with self._turn:
            pass


def _draw(pipe: Any, prompt: str | PreparedText, request: DecodingRequest, send: Callable[[CallOutput], None]) -> None:
    """Generates one image."""
    sent = 0

    def observe(_: Any, calls: int, __: int, tensors: dict[str, Tensor]) -> None:
        nonlocal sent
        codes = tensors["tokens"][0]
        known = ~codes.isnan().flatten(1).any(1) if codes.is_floating_point() else codes >= 0
        count = int(known.sum())
        send(CallOutput(codes[sent:count].cpu(), calls))
        sent = count

    options: dict[str, Any] = dict(request.settings)
    if request.negative_prompt is not None:
        options["negative_prompt"] = request.negative_prompt
    if request.size is not None:
        options["height"], options["width"] = request.size
    # Pixels are made elsewhere.
    pipe(
        prompt, recipe=request.recipe, seed=request.seed, output_type="latent", callback_on_step_end=observe, **options
    )  # fmt: skip
