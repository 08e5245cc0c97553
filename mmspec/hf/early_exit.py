"""The first layers of a decoder of transformers, as a decoder of their own that shares its weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from torch import nn


def count_layers(decoder: Any) -> int:
    """How many layers a decoder has; 0 where its first ones cannot be asked alone.

    That takes a module whose `layers` run one after the other. One that accelerate has hooked as a whole would run all.
    """
    if hasattr(decoder, "first"):
        return int(decoder.count)
    hooked = "forward" in getattr(decoder, "__dict__", {})
    layers = getattr(decoder, "layers", None)
    return len(layers) if isinstance(layers, nn.ModuleList) and not hooked else 0


def first_layers(decoder: Any, count: int) -> Callable[..., Any]:
    """The decoder without the layers after the first `count`."""
    if hasattr(decoder, "first"):
        part: Callable[..., Any] = decoder.first(count)
        return part
    cut = copy(decoder)
    cut._modules = {**decoder._modules, "layers": nn.ModuleList(list(decoder.layers)[:count])}
    cut._compiled_call_impl = None  # that of the whole
    return cut
