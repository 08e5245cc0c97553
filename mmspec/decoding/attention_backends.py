"""Which attention backends PyTorch may choose from while a model decodes on a CUDA device.

The cuDNN backend is the fastest at a few tokens per row (8 us where memory-efficient attention takes 29, on an H100
with 40 heads and 416 cached tokens), but builds a plan for every new length of the KV cache: 50 ms, longer than many
calls, and a decoded sequence has a new length in nearly every call. The other backends take any length at once. A
captured call has one length, so that its plan is built once, before it is captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

import torch

_lock = Lock()
_users = 0  # calls that are inside, in any thread
_before = True
_one_length = ContextVar("one_length", default=False)


@contextmanager
def with_plans() -> Iterator[None]:
    """A context in which `without_plans` does nothing in this thread: the calls inside have one cache length."""
    token = _one_length.set(True)
    try:
        yield
    finally:
        _one_length.reset(token)


@contextmanager
def without_plans(device: torch.device) -> Iterator[None]:
    """A context in which attention on a CUDA device is not computed by cuDNN; nothing on others.

    The setting is one of the process. The first call that enters turns the backend off, the last one that leaves
    restores what was set before; a graph keeps what was chosen at its capture.
    """
    if device.type != "cuda" or _one_length.get():
        yield
        return
    global _users, _before
    with _lock:
        if not _users:
            _before = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                torch.backends.cuda.enable_cudnn_sdp(_before)
