"""A request in the running batch: what the server needs of an engine, and what it reads from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from mmspec.audio.adapter import PreparedText
from mmspec.errors import MMSpecError
from mmspec.serving.step_clock import StepClock


@dataclass(frozen=True)
class CallOutput:
    """What one target call gave to a request.

    Attributes:
        tokens: The tokens that were committed: codes of an image in raster order, int64 [n], or tokens of a speech
            model, int64 [n, *cell].
        calls: Target calls of the request so far.
        part: The index of the part of the text that they belong to; parts come in order.
        prompt: The prompt of the part, as the engine decoded it.
        notes: With the last tokens of a text: remarks for the caller.
    """

    tokens: Tensor
    calls: int
    part: int = 0
    prompt: Any = None
    notes: Sequence[str] = ()


class Engine(Protocol):
    """Decodes requests."""

    def generate(self, prompt: str | PreparedText, request: DecodingRequest) -> AsyncGenerator[CallOutput, None]:
        """Yields what each target call gave to the request; leaving the iteration cancels it.

        Args:
            prompt: The prompt of an image, or the prepared text of speech.
            request: Its settings.

        Raises:
            MMSpecError: From the first iteration, if the request is refused.
            QueueFullError: If too many requests wait.
        """
        ...

    def stats(self) -> Mapping[str, float]:
        """Numbers for `/metrics`, by name."""
        ...

    async def aclose(self) -> None:
        """Cancels all requests, and ends the work."""
        ...


class QueueFullError(MMSpecError, RuntimeError):
    """Too many requests wait."""


@dataclass(frozen=True)
class DecodingRequest:
    """The settings of a request.

    Attributes:
        seed: Of the request.
        recipe: How to decode.
        user: Requests of one user share one place in the queue.
        settings: Sampling parameters that are set.
        negative_prompt: Of images; None is the model's.
        size: Height and width of images in pixels; None is the model's.
    """

    seed: int
    recipe: str
    user: str | None = None
    settings: Mapping[str, float | int] = field(default_factory=dict)
    negative_prompt: str | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class CallStep:
    """What one target call committed.

    Attributes:
        tokens: Their number.
        calls: Target calls so far.
        seconds: Since the request arrived.
    """

    tokens: int
    calls: int
    seconds: float

    def event(self) -> dict[str, Any]:
        """As a server-sent event."""
        return {
            "type": "generation.step",
            "tokens": self.tokens,
            "target_calls": self.calls,
            "seconds": round(self.seconds, 4),
        }


class Generation:
    """Reads the outputs of a request as they come, however slowly its client reads.

    Args:
        outputs: What the engine yields.
        clock: Of the model; None for none.

    Attributes:
        outputs: What has come so far.
        steps: What each call committed.
        done: Whether all outputs have come.
        started: When the request arrived, of `time.perf_counter`.
    """

    def __init__(self, outputs: AsyncGenerator[CallOutput, None], clock: StepClock | None = None) -> None:
        self._clock = clock or StepClock()
        self.outputs: list[CallOutput] = []
        self.steps: list[CallStep] = []
        self.done = False
        self.started = time.perf_counter()
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(outputs))

    @property
    def calls(self) -> int:
        """Target calls so far."""
        return self.steps[-1].calls if self.steps else 0

    @property
    def notes(self) -> list[str]:
        """Remarks on what was decoded, when all outputs have come."""
        return list(self.outputs[-1].notes) if self.done and self.outputs else []

    @property
    def count(self) -> int:
        """Committed tokens so far."""
        return sum(step.tokens for step in self.steps)

    @property
    def seconds(self) -> float:
        """From the arrival of the request to its latest token."""
        return self.steps[-1].seconds if self.steps else time.perf_counter() - self.started

    async def _read(self, outputs: AsyncGenerator[CallOutput, None]) -> None:
        try:
            with self._clock.request():
                async for output in outputs:
                    self._clock.step()
                    self.outputs.append(output)
                    if len(output.tokens) or not output.notes:
                        seconds = time.perf_counter() - self.started
                        self.steps.append(CallStep(len(output.tokens), output.calls, seconds))
                    self._news.set()
        except BaseException as error:
            self._error = self._error or error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            await outputs.aclose()
            self.done = True
            self._news.set()

    async def news(self) -> None:
        """Waits until there are new tokens, or the last.

        Raises:
            Exception: What the engine raised.
        """
        await self._news.wait()
        if not self.done:
            self._news.clear()
        if self._error is not None:
            raise self._error

    async def started_well(self) -> None:
        """Waits for the first tokens.

        Raises:
            Exception: What the engine raised, such as a refusal of the request.
        """
        while not self.outputs and not self.done and self._error is None:
            await self._news.wait()
        if self._error is not None:
            raise self._error

    async def finish(self) -> None:
        """Waits for all tokens."""
        while not self.done:
            await self.news()
        await self.news()

    def fail(self, error: BaseException) -> bool:
        """Cancels the request if it is still running, with an error for who waits for it; returns whether it was."""
        if self.done:
            return False
        self._error = error
        self._task.cancel()
        self._news.set()
        return True

    async def close(self) -> None:
        """Cancels the request if it is still running."""
        if not self._task.done():
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
