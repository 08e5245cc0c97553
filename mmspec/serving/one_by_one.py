"""Decodes requests one after the other, for models and requests that cannot join a running batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.adapter import PreparedText
from mmspec.batching.request import RowPrompt
from mmspec.decoding.stats import RowStats
from mmspec.decoding.step import Step
from mmspec.recipes import parse
from mmspec.serving.generation import CallOutput, DecodingRequest, QueueFullError


class _Cancelled(Exception):
    """Ends the decoding of a request whose client has left."""


class OneByOneEngine:
    """Runs a pipeline's own call in a thread, for one request at a time; see `mmspec.serving.generation.Engine`.

    Args:
        pipe: A speech pipeline.
        max_waiting: Requests that may wait.
    """

    def __init__(self, pipe: Any, max_waiting: int = 1024) -> None:
        self._pipe, self._max_waiting = pipe, max_waiting
        self._turn = asyncio.Lock()
        self._waiting = self._running = 0
        self._closed = threading.Event()

    async def generate(
        self, prompt: str | PreparedText, request: DecodingRequest, pipe: Any = None
    ) -> AsyncGenerator[CallOutput, None]:
        """As of an engine.

        Args:
            prompt: The prepared text.
            request: Its settings.
            pipe: Another pipeline of the same model, such as one that follows reference audio.
        """
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
                _speak(pipe or self._pipe, prompt, request, send)
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


def _speak(pipe: Any, text: str | PreparedText, request: DecodingRequest, send: Callable[[CallOutput], None]) -> None:
    """Generates the tokens of one text, part by part."""
    recipe = parse(request.recipe)
    options = {"seed": request.seed, **request.settings, "output_type": "latent"}
    made, rows = list[Tensor](), list[RowStats]()
    with torch.inference_mode():
        prepared, calls = pipe.read_request(text, options, recipe), 0
        source: tuple[RowPrompt, Tensor] | None = None  # what later parts continue
        for part, row in enumerate(prepared.rows):
            if source is not None and prepared.continued is not None:
                row = prepared.continued(row, *source)
            sent = before = 0

            def observe(step: Step, part: int = part) -> None:
                nonlocal calls, sent, before
                calls += step.nfe - before if step.nfe > before else step.nfe  # stages of a model count anew
                tokens, before = step.tokens[0], step.nfe
                send(CallOutput(tokens[sent:].cpu(), calls, part))
                sent = len(tokens)

            found = pipe.decode_part(row, recipe, observe)
            tokens = found.tokens[0]
            made.append(tokens)
            rows += found.stats.rows
            if source is None or prepared.chained:
                source = row, tokens
            if not sent:  # the last stage of the model made them all at once
                send(CallOutput(tokens.cpu(), calls, part))
        notes = prepared.finish(made, replace(found.stats, rows=rows)).notes
        send(CallOutput(tokens[:0].cpu(), calls, part, notes))
