"""The engine of a model, as the server uses it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from mmspec.audio.adapter import PreparedText
from mmspec.batching.async_engine import AsyncEngine
from mmspec.batching.engine import QueueFullError as BatchQueueFullError
from mmspec.serving.generation import CallOutput, DecodingRequest, QueueFullError


def new_engine(pipe: Any, recipe: str, max_rows: int, max_waiting: int) -> RunningBatch:
    """The engine of a pipeline.

    Args:
        recipe: The recipe of most requests.
        max_rows: Rows that are decoded at the same time.
        max_waiting: Requests that may wait.
    """
    engine = AsyncEngine(pipe, recipe=recipe, max_rows=max_rows, max_waiting=max_waiting)
    return RunningBatch(engine)


class RunningBatch:
    """An `mmspec.batching.async_engine.AsyncEngine`, as the server uses it; see `mmspec.serving.generation.Engine`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def generate(self, prompt: str | PreparedText, request: DecodingRequest) -> AsyncGenerator[CallOutput, None]:
        # Pixels and samples are decoded elsewhere, while the tokens come.
        options: dict[str, Any] = {**request.settings, "output_type": "latent"}
        if request.negative_prompt is not None:
            options["negative_prompt"] = request.negative_prompt
        if request.size is not None:
            options["height"], options["width"] = request.size
        outputs = self._engine.generate(prompt, seed=request.seed, recipe=request.recipe, user=request.user, **options)
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    if output.error is not None:
                        raise output.error
                    notes = getattr(output.result, "notes", ())
                    yield CallOutput(output.tokens, output.target_calls, output.part, output.prompt, notes)
        except BatchQueueFullError as error:
            raise QueueFullError(str(error)) from error

    @property
    def has_failed(self) -> bool:
        """Whether the engine has ended with an error of its own."""
        return self._engine.has_failed

    def stats(self) -> dict[str, float]:
        found = self._engine.stats().to_dict()
        parts = {f"seconds_{part}": seconds for part, seconds in found.pop("seconds_by_part").items()}
        return {name: float(value) for name, value in (found | parts).items() if value is not None}

    async def aclose(self) -> None:
        await self._engine.aclose(drain=False)
