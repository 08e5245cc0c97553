"""A fingerprint of a pipeline's weights: samples of different weights must not be mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

SAMPLED = 4096  # values of each tensor that are hashed; large models are not read completely
# Attributes that the digest has another name for, so that results of earlier versions can be continued.
NAMES = {"adapter": "speaker"}


def fingerprint(pipe: Any) -> str:
    """The first 12 digits of the SHA-256 of names, shapes and evenly spaced values of a pipeline's weights.

    A change outside the sampled values goes unnoticed, such as one of a few values of a large tensor.

    Returns:
        "" if no part of the pipeline is a `torch.nn.Module`.
    """
    modules = dict(_modules("", pipe, depth=3))
    if not modules:
        return ""
    digest = hashlib.sha256()
    for name, module in sorted(modules.items()):
        for key, tensor in sorted(module.state_dict().items()):
            values = tensor.detach().flatten()
            step = max(1, values.numel() // SAMPLED)
            digest.update(f"{name} {key} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(values[::step].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def _modules(name: str, part: Any, depth: int) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that an object holds, directly or through objects that it holds."""
    if isinstance(part, torch.nn.Module):
        yield name, part
    elif depth:
        # A diffusers pipeline lists its components; other pipelines keep them as attributes.
        held = getattr(part, "components", None) or getattr(part, "__dict__", None)
        for key, value in held.items() if isinstance(held, Mapping) else ():
            yield from _modules(f"{name}.{NAMES.get(key, key)}", value, depth - 1)
