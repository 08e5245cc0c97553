"""Streaming: the outputs of a call whose engine a thread of its own steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from contextvars import copy_context

from mmspec.batching.call import CallEngine
from mmspec.batching.request import RequestOutput


def outputs_from_thread(engine: CallEngine) -> Generator[RequestOutput, None, None]:
    """Yields what the engine gives out; leaving the iteration ends the call."""
    arrived: queue.SimpleQueue[RequestOutput | BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            for output in engine.outputs():
                arrived.put(output)
            arrived.put(None)
        except BaseException as error:  # re-raised by the consumer's thread
            arrived.put(error)

    # With the context variables of the caller, such as `mmspec.decoding.quantized_cache`.
    worker = threading.Thread(target=copy_context().run, args=(work,), name="mmspec-stream", daemon=True)
    worker.start()
    try:
        while (output := arrived.get()) is not None:
            if isinstance(output, BaseException):
                raise output
            yield output
    finally:
        engine.stop()
        worker.join()
