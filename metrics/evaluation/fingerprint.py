"""Which weights a pipeline has, in twelve digits: samples of other weights must not be mixed with its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

SEEN = 4096  # values of each tensor that are looked at: a large model's are not all read


def fingerprint(pipe: Any) -> str:
    """The first 12 digits of the SHA-256 of names, shapes and evenly spaced values of a pipeline's weights.

    A change that keeps every value looked at is not noticed: one of a few values of a large tensor. Nothing is found,
    and "" returned, where no part of the pipeline is a `torch.nn.Module`.
    """
    modules = dict(_modules("", pipe, depth=3))
    if not modules:
        return ""
    digest = hashlib.sha256()
    for name, module in sorted(modules.items()):
        for key, tensor in sorted(module.state_dict().items()):
            values = tensor.detach().flatten()
            step = max(1, values.numel() // SEEN)
            digest.update(f"{name} {key} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(values[::step].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def _modules(name: str, part: Any, depth: int) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that an object holds, or that objects which it holds do."""
    if isinstance(part, torch.nn.Module):
        yield name, part
    elif depth:
        # A pipeline of diffusers lists its parts; others keep them as attributes.
        held = getattr(part, "components", None) or getattr(part, "__dict__", None)
        for key, value in held.items() if isinstance(held, Mapping) else ():
            yield from _modules(f"{name}.{key}", value, depth - 1)
