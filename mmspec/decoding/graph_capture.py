"""Captures of what Python launches on a CUDA device, as CUDA graphs."""

from __future__ import annotations

import os
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
