"""Captures of what Python launches on a CUDA device, as CUDA graphs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmspec.decoding.quantized_cache import cache_bits
from mmspec.environment.setup_work import record_setup
from mmspec.errors import ArgumentError

_SYNCHRONIZES = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "item"}
_INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}
VARIABLE = "MMSPEC_CUDA_GRAPHS"
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


class GraphPool:
    """The memory of graphs that are captured with `capture`.

    CUDA frees a pool only when it runs out of memory, so that the pool of graphs that are not needed any more becomes
    that of later ones.

    Attributes:
        handle: Of the pool, once a graph has been captured.
        latest: The latest graph, with which the pool lives.
    """

    def __init__(self) -> None:
        self.handle: Any = None
        self.latest: torch.cuda.CUDAGraph | None = None

    @classmethod
    def of(cls, device: torch.device) -> GraphPool:
        """A pool that is free."""
        try:
            return _spare[device].pop()
        except IndexError:
            return cls()

    def release(self, device: torch.device) -> None:
        """Leaves the pool to others; its graphs must not be replayed any more."""
        if self.latest is not None:
            _spare[device].append(self)


_spare: defaultdict[torch.device, list[GraphPool]] = defaultdict(list)


def can_capture(device: torch.device) -> bool:
    """Whether `capture` can capture on a device."""
    return device.type == "cuda"


def capture(body: Callable[[], None], device: torch.device, pool: GraphPool) -> torch.cuda.CUDAGraph | None:
    """Captures what a function launches on a device, which is not run; None if it cannot be captured.

    Args:
        body: The function. Whatever it compiles or prepares once is done already.
        device: A CUDA device.
        pool: The memory of the graph.
    """
    current, (_, capture_stream) = torch.cuda.current_stream(device), streams(device)
    graph = torch.cuda.CUDAGraph()
    # As `torch.cuda.graph`, which also waits for the device and frees what memory is unused: here a model decodes.
    with capturing, torch.cuda.device(device), torch.cuda.stream(current):
        pool.handle = pool.handle or torch.cuda.graph_pool_handle()
        capture_stream.wait_stream(current)
        try:
            with torch.cuda.stream(capture_stream):
                graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                try:
                    body()
                finally:
                    graph.capture_end()
        except RuntimeError:  # raised by torch and CUDA for what synchronizes, and by `page_locked`
            return None
    pool.latest = graph
    record_setup()
    return graph
