"""How model calls run on a CUDA device: as captured CUDA graphs or not, and with which attention backends.

The cuDNN backend is the fastest at a few tokens per row (8 us where memory-efficient attention takes 29, on an H100
with 40 heads and 416 cached tokens), but builds a plan for every new length of the KV cache: 50 ms, longer than many
calls, and a decoded sequence has a new length in nearly every call. The other backends take any length at once. A
captured call has one length, so that its plan is built once, before it is captured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmspec.decoding.quantized_cache import cache_bits
from mmspec.errors import ArgumentError

_SYNCHRONIZES = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "item"}
_INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}
VARIABLE = "MMSPEC_CUDA_GRAPHS"
_lock = Lock()  # of what follows
_users = 0  # calls that are inside, in any thread
_before = True
_one_length = ContextVar("one_length", default=False)
capturing = Lock()  # captures share streams, and libraries keep one workspace per stream


def use_cuda_graphs(device: torch.device) -> bool:
    """Whether CUDA graphs are used on a device.

    They are not used under autocast: its cache of cast weights is freed when it ends, and graphs would read freed
    memory. Nor with quantized caches, whose calls are not captured.

    Raises:
        ArgumentError: If the environment variable has an unknown value.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "off"):
        raise ArgumentError(f"{VARIABLE}={value!r} is not allowed; it must be off, or unset for graphs on CUDA devices")
    if cache_bits() is not None:
        return False
    return device.type == "cuda" and not value and not torch.is_autocast_enabled(device.type)


@cache
def streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The warm-up and the capture stream of a device. They are reused, as libraries keep a workspace per stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


class RefusesSynchronization(TorchDispatchMode):
    """A context in which an operator that synchronizes with a CUDA device raises an error; in a capture it would
    corrupt the graph.

    It holds for this thread alone, unlike `torch.cuda.set_sync_debug_mode`: others decode meanwhile.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        chosen_by_value = name in _INDEXES and any(t.dtype in (torch.bool, torch.uint8) for t in given[1:])
        if (name in _SYNCHRONIZES or chosen_by_value) and any(t.is_cuda for t in given):
            raise RuntimeError(f"{name} synchronizes with the device")
        out = func(*args, **(kwargs or {}))
        tensors = [*given, *(t for t in tree_leaves(out) if isinstance(t, Tensor))]
        # A number of the host is passed as an argument of the kernel.
        if len({t.device.type for t in tensors if t.dim() or t.is_cuda}) > 1:
            raise RuntimeError(f"{name} copies between host and device")
        return out


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
