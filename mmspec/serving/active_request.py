"""A request from its arrival to its end: who waits for it, what became of it, and the response that streams it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from traceback import format_tb
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from mmspec.batching.async_engine import EngineClosedError
from mmspec.errors import ArgumentError, MMSpecError, PromptError, UnknownNameError
from mmspec.serving.accounting import Accounting
from mmspec.serving.errors import DRAINING, ApiError, draining, from_mmspec
from mmspec.serving.generation import Generation, QueueFullError
from mmspec.serving.metrics import ServerMetrics
from mmspec.serving.request_ids import current_id
from mmspec.serving.sse import MEDIA_TYPE, event

log = logging.getLogger("mmspec.serving")
T = TypeVar("T")


class ClientLeft(Exception):
    """The client has closed the connection."""


class ActiveRequest:
    """Counts a request while the server works on it.

    Args:
        metrics: Of the server.
        kind: "image" or "audio".
        fields: The parameters of such requests.
        ended: Called once, when the request has ended.
    """

    def __init__(
        self, metrics: ServerMetrics, model: str, kind: str, fields: Iterable[str], ended: Callable[[], None]
    ) -> None:
        self.accounting = Accounting(metrics, model, kind)
        self._metrics, self._model, self._fields = metrics, model, tuple(fields)
        self._on_end: Callable[[], None] | None = ended
        metrics.running.labels(model).inc()

    def end(self, error: BaseException | None) -> None:
        """Records the end; later calls have no effect.

        Args:
            error: Why the request has no complete response; None if it has one.
        """
        if self._on_end is None:
            return
        self._on_end()
        self._on_end = None
        self._metrics.running.labels(self._model).dec()
        refused = isinstance(error, ApiError) and error.status < 500
        cut = isinstance(error, ApiError) and error.code == DRAINING
        left = cut or isinstance(error, (ClientLeft, asyncio.CancelledError))
        outcome = "ok" if error is None else "refused" if refused else "cancelled" if left else "error"
        self._metrics.finished.labels(self._model, outcome).inc()
        if outcome == "ok":
            self._metrics.seconds.labels(self._model).observe(self.accounting.elapsed)
        if outcome == "error":
            self._metrics.decoding_errors.labels(self._model).inc()
            # The message of an error may have the prompt in it: it is shown to those who debug.
            where = "".join(format_tb(None if error is None else error.__traceback__))
            log.error("request %s to %s failed: %s\n%s", current_id(), self._model, type(error).__name__, where)
            log.debug("request %s: %s", current_id(), error)

    def translate(self, error: BaseException) -> BaseException:
        """The error of the response: what mmspec refuses becomes an `ApiError`."""
        if isinstance(error, QueueFullError):
            return ApiError(429, str(error), "queue_full", headers={"Retry-After": "1"})
        if isinstance(error, EngineClosedError) and error.__cause__ is not None:
            return ApiError(503, "the engine of the model has failed; another server may work", "engine_failed")
        if isinstance(error, EngineClosedError):
            return draining()
        if isinstance(error, (ArgumentError, PromptError, UnknownNameError)):
            found = from_mmspec(error, self._fields)
            if isinstance(error, PromptError) and found.param is None:
                found.param = "prompt" if "prompt" in self._fields else "input"
            return found
        if isinstance(error, MMSpecError):
            return ApiError(500, f"the request failed while it was decoded: {error}", "decoding_error")
        return error


async def unless_disconnected(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """Awaits an answer, and cancels it when its client leaves.

    Raises:
        ClientLeft: If the client has left.
    """
    task = asyncio.ensure_future(answer)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watcher = asyncio.ensure_future(watch())
    try:
        await asyncio.wait([task, watcher], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeft
    finally:
        for one in (task, watcher):
            one.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


class GeneratedResponse(StreamingResponse):
    """A response that is sent while it is generated; when the client leaves, the request is cancelled.

    Args:
        active: The request.
        generation: What generates.
        parts: The parts of the body.
        media_type: Of the body. An error ends events with an event `error`, and a file with a closed connection.
        headers: Of the response.
    """

    def __init__(
        self,
        active: ActiveRequest,
        generation: Generation,
        parts: AsyncIterator[bytes],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        self._active, self._generation = active, generation
        self._outcome: BaseException | None = ClientLeft()
        super().__init__(self._watched(parts), headers=headers, media_type=media_type)

    async def _watched(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for part in parts:
                yield part
            self._outcome = None
        except Exception as error:
            self._outcome = found = self._active.translate(error)
            if self.media_type != MEDIA_TYPE:
                if found is error:
                    raise
                raise found from error
            if not isinstance(found, ApiError):
                found = ApiError(500, "the server failed", "internal_error")
            yield event({"type": "error", **found.body()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except ApiError:
            pass  # the server closes the connection of a response that is not complete, and `end` logs why
        finally:
            await self._generation.close()
            self._active.end(self._outcome)
