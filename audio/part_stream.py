"""Streaming: audio of one part of a text while it is decoded."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from contextvars import copy_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.adapter import SpeechAdapter, codec_of_part
from mmspec.batching.run import Decoded
from mmspec.decoding.step import OnStep, Step


class _StreamClosed(Exception):
    """Stops the decoding of a stream whose consumer has left the iteration."""


def stream_part(
    adapter: SpeechAdapter,
    part: Any,
    decode: Callable[[OnStep], Decoded],
    first: int,
    every: int,
    on_step: OnStep | None,
) -> Generator[NDArray[np.float32], None, Decoded]:
    """Decodes one part in a separate thread, yields its audio as the codes arrive, and returns what was decoded.

    Args:
        adapter: The model.
        part: The part.
        decode: Decodes the part, and calls its argument after every window.
        first: Frames in the first chunk.
        every: Frames in the later chunks.
        on_step: Called after every window, from the other thread.
    """
    arrived: queue.SimpleQueue[Tensor | BaseException | Decoded] = queue.SimpleQueue()
    closed = threading.Event()
    sent = 0

    def send(tokens: Tensor, last: bool) -> None:
        nonlocal sent
        codes = adapter.codes(tokens)
        new = codes.shape[-1] - sent
        if new and (last or new >= (every if sent else first)):
            arrived.put(codes[None, :, sent:])
            sent = codes.shape[-1]

    def observe(step: Step) -> None:
        if closed.is_set():
            raise _StreamClosed
        if on_step is not None:
            on_step(step)
        send(step.tokens[0], last=False)

    def work() -> None:
        try:
            decoded = decode(observe)
            send(decoded.tokens[0], last=True)
            arrived.put(decoded)
        except BaseException as error:  # re-raised by the consumer's thread
            arrived.put(error)

    # With the context variables of the caller, such as `mmspec.decoding.quantized_cache`.
    worker = threading.Thread(target=copy_context().run, args=(work,), name="mmspec-stream", daemon=True)
    worker.start()
    stream = codec_of_part(adapter, part).stream()
    try:
        while True:
            codes = arrived.get()
            if isinstance(codes, BaseException):
                raise codes
            audio = stream.finish() if isinstance(codes, Decoded) else stream.push(codes)
            if audio.shape[-1]:
                yield audio[0].cpu().numpy()
            if isinstance(codes, Decoded):
                return codes
    finally:
        closed.set()
        worker.join()
