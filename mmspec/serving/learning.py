"""A drafter that learns from the images that a server generates (Online Speculative Decoding, arXiv 2310.07177).

It learns in pauses: when no request is decoded. No drafter changes under a running batch, and a request that arrives
meanwhile waits for the update, which takes as long as a step of `mmspec train-drafter`. Decoding stays exact, but what
a seed gives depends on the requests before it, so that nothing learns unless `--learn` asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.adapter import PreparedText
from mmspec.errors import ArgumentError
from mmspec.methods.trained import TRAINED
from mmspec.pipeline import makes_audio
from mmspec.recipes import parse
from mmspec.serving.generation import CallOutput, DecodingRequest, Engine
from mmspec.training.online import OnlineDistillation

log = logging.getLogger("mmspec.serving")
LEARNERS = ("eagle", *(name for name, row in TRAINED.items() if row.online))
MOST = 64  # finished images that wait for a pause; of more the latest


def drafter_kind(pipe: Any, recipe: str) -> str:
    """The kind of the drafter that a recipe drafts with, as of `OnlineDistillation`.

    Raises:
        ArgumentError: If there is none that can learn.
    """
    chosen = parse(recipe)
    kind = "small" if chosen.needs_draft_model else str(chosen.knobs.get("start", chosen.info.runner))
    if kind != "small" and kind not in {*LEARNERS} & {*pipe.heads}:
        raise ArgumentError(f"--learn requires a recipe with a drafter that can be trained; {recipe!r} has none here")
    return kind


class LearningEngine:
    """An engine whose drafter learns in pauses; see `mmspec.serving.generation.Engine`.

    Args:
        engine: Decodes the requests.
        online: Trains the drafter of the same pipeline.
    """

    def __init__(self, engine: Engine, online: OnlineDistillation) -> None:
        self._engine, self._online = engine, online
        self._finished: deque[tuple[str, Tensor]] = deque(maxlen=MOST)
        self._running, self._failed = 0, False
        self._learning = asyncio.Lock()  # held while the drafter changes
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def has_failed(self) -> bool:
        """Whether the engine has ended with an error of its own."""
        return bool(getattr(self._engine, "has_failed", False))

    async def generate(self, prompt: str | PreparedText, request: DecodingRequest) -> AsyncGenerator[CallOutput, None]:
        async with self._learning:
            self._running += 1
        codes = []
        try:
            async with aclosing(self._engine.generate(prompt, request)) as outputs:
                async for output in outputs:
                    codes.append(output.tokens)
                    yield output
            # The target distribution that a drafter learns is that of the model's own settings.
            own = not request.settings and request.negative_prompt is None and request.size is None
            if own and isinstance(prompt, str):
                self._finished.append((prompt, torch.cat(codes)))
        finally:
            self._running -= 1
            task = asyncio.create_task(self._learn())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _learn(self) -> None:
        """Learns from finished images while nothing is decoded."""
        while await self._learn_one():
            pass

    async def _learn_one(self) -> bool:
        """Learns from one image, for which a request that arrives waits; returns whether there was one."""
        async with self._learning:
            # A request that was cancelled leaves the batch after its window.
            decoding = self._running or self._engine.stats().get("running")
            if decoding or not self._finished or self._failed:
                return False
            image, known = self._finished.popleft(), len(self._online.losses)
            try:
                await asyncio.to_thread(self._observe, [image])
            except Exception as error:  # of memory, of a file: requests do not need the drafter's next version
                self._failed = True
                log.warning("the drafter learns no more: %s", error)
                return False
        for number, loss in enumerate(self._online.losses[known:], known + 1):
            log.info("update %d of the drafter: loss %.3f", number, loss)
        return True

    def _observe(self, images: list[tuple[str, Tensor]]) -> None:
        for prompt, codes in images:
            self._online.observe([prompt], codes[None])

    def stats(self) -> dict[str, float]:
        return {**self._engine.stats(), "drafter_updates": float(len(self._online.losses))}

    async def aclose(self) -> None:
        await self._engine.aclose()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def learning(engine: Engine, pipe: Any, recipe: str, folder: Path) -> LearningEngine:
    """The same engine with a drafter that learns.

    Args:
        engine: The engine of the pipeline.
        pipe: An image pipeline.
        recipe: Of its requests.
        folder: Where the drafter is written after each update; `--drafter` reads it.

    Raises:
        ArgumentError: If the pipeline generates no images from prompts, or has no drafter that can learn.
    """
    if makes_audio(pipe) or not hasattr(pipe, "prepare") or not hasattr(pipe, "add_drafter"):
        raise ArgumentError("--learn requires an image model that drafters can be trained for")
    return LearningEngine(engine, OnlineDistillation(pipe, drafter_kind(pipe, recipe), folder))
