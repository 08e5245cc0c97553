"""`AsyncEngine`: an engine whose steps run in a thread of its own, for asyncio."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Hashable, Iterable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from mmspec.batching.engine import Engine
from mmspec.batching.request import Request, RequestOutput
from mmspec.batching.totals import EngineStats
from mmspec.errors import ArgumentError

_Received = RequestOutput | BaseException


@dataclass(eq=False)
class _Receiver:
    """Who waits for the outputs of a request: `left` is set once its reader is gone."""

    name: str
    loop: asyncio.AbstractEventLoop
    received: asyncio.Queue[_Received] = field(default_factory=asyncio.Queue)
    left: threading.Event = field(default_factory=threading.Event)


class EngineClosedError(ArgumentError):
    """The engine has been closed and takes no more requests."""


class AsyncEngine:
    """An `Engine` for asyncio, whose steps run in a thread of its own.

        engine = mmspec.AsyncEngine(pipe, recipe="scd", max_rows=32)
        async for output in engine.generate("a red circle above a blue square", seed=0):
            ...
        await engine.aclose()

    Args:
        **options: The other arguments of `mmspec.batching.engine.Engine`.
    """

    def __init__(self, pipe: Any, **options: Any) -> None:
        self.engine = Engine(pipe, **options)
        self._changed = threading.Condition()
        self._receivers: dict[str, _Receiver] = {}
        self._closing = self._dropping = False
        self._error: BaseException | None = None
        # With the context variables of the caller, such as `mmspec.decoding.quantized_cache`.
        self._worker = threading.Thread(
            target=copy_context().run, args=(self._work,), name="mmspec-engine", daemon=True
        )
        self._worker.start()

    async def generate(
        self, prompt: Any, *, request_id: str | None = None, user: Hashable = None, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the outputs of a request; the last one is finished. Arguments are those of `Engine.add`.

        Leaving the iteration, or cancelling its task, cancels the request at the next window.

        Raises:
            PromptError: If the model does not accept the prompt.
            ArgumentError: For an argument whose value is not allowed; a `QueueFullError` if too many requests wait, an
                `EngineClosedError` if the engine is closed.
        """
        name = f"req-{uuid.uuid4().hex}" if request_id is None else request_id
        receiver = _Receiver(name, asyncio.get_running_loop())
        adding = asyncio.ensure_future(asyncio.to_thread(self._add, receiver, prompt, user, options))
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            # The end of the loop cancels `adding` as well, and its thread goes on.
            adding.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._leave(receiver)
            raise
        finished = False
        try:
            while not finished:
                output = await receiver.received.get()
                if isinstance(output, BaseException):
                    raise output
                finished = output.finished
                yield output
        finally:
            if not finished:
                self._leave(receiver)

    def cancel(self, request_id: str) -> bool:
        """Cancels a request, which leaves at the next window; returns whether it was unfinished."""
        found = self.engine.cancel(request_id)
        with self._changed:
            self._changed.notify_all()
        return found

    @property
    def has_failed(self) -> bool:
        """Whether the engine has ended with an error of its own."""
        return self._error is not None

    def stats(self) -> EngineStats:
        """What the engine has done so far."""
        return self.engine.stats()

    async def aclose(self, drain: bool = True) -> None:
        """Takes no more requests, and ends the thread.

        Args:
            drain: Whether to finish the requests first; otherwise they are cancelled.
        """
        await asyncio.to_thread(self.close, drain)

    def close(self, drain: bool = True) -> None:
        """`aclose` for callers without asyncio; it waits for the thread."""
        with self._changed:
            self._closing = True
            if not drain:
                self._dropping = True
                for name in list(self._receivers):
                    self.engine.cancel(name)
            self._changed.notify_all()
        self._worker.join()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose(drain=exc[0] is None)

    def _add(self, receiver: _Receiver, prompt: Any, user: Hashable, options: dict[str, Any]) -> Request:
        """Adds a request, unless its receiver has left already."""
        name = receiver.name
        with self._changed:
            if self._error is not None:
                raise EngineClosedError("the engine has ended with an error") from self._error
            if self._closing:
                raise EngineClosedError("the engine is closed and takes no more requests")
            if name in self._receivers:
                raise ArgumentError(f"request_id={name[:200]!r} is not allowed; a request of this name is unfinished")
            self._receivers[name] = receiver
        try:
            request = self.engine.add(prompt, request_id=name, user=user, **options)
        except BaseException:
            with self._changed:
                self._receivers.pop(name, None)  # an engine that has ended has no receivers any more
                self._changed.notify_all()  # it may wait for this request before it ends
            raise
        with self._changed:
            if self._dropping or receiver.left.is_set():
                self.engine.cancel(name)
            self._changed.notify_all()
        return request

    def _leave(self, receiver: _Receiver) -> None:
        """Cancels the request of a receiver, also one that is still being added, but no later one of its name."""
        with self._changed:
            receiver.left.set()
            if self._receivers.get(receiver.name) is receiver:
                self.engine.cancel(receiver.name)
            self._changed.notify_all()

    def _work(self) -> None:
        """Steps the engine whenever a request is unfinished, until the engine is closed."""
        try:
            while self._wait():
                outputs = self.engine.step()
                with self._changed:
                    # A request that was added to `engine` itself has no receiver.
                    to = [(self._receivers.get(output.request_id), output) for output in outputs]
                    for output in outputs:
                        if output.finished:
                            self._receivers.pop(output.request_id, None)
                self._hand_over([(receiver, output) for receiver, output in to if receiver is not None])
        except BaseException as error:  # a fault of the engine itself: every request must hear of it
            with self._changed:
                self._error, self._closing = error, True
                receivers, self._receivers = self._receivers, {}
            self._hand_over([(receiver, error) for receiver in receivers.values()])

    def _hand_over(self, outputs: Iterable[tuple[_Receiver, _Received]]) -> None:
        """Gives outputs to their loops; each is woken once, as a wakened loop takes the interpreter from the engine."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Receiver, _Received]]] = {}
        for receiver, output in outputs:
            by_loop.setdefault(receiver.loop, []).append((receiver, output))
        for loop, found in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put, found)
            except RuntimeError:  # the loop has ended, and its generators with it
                for receiver, _ in found:
                    self._leave(receiver)

    def _wait(self) -> bool:
        """Waits for requests; returns False once the engine is closed and has none left."""
        with self._changed:
            while not self.engine.has_unfinished:
                if self._closing and not self._receivers:
                    return False
                self._changed.wait()
            return True


def _put(outputs: Iterable[tuple[_Receiver, _Received]]) -> None:
    for receiver, output in outputs:
        receiver.received.put_nowait(output)
