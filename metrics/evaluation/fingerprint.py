"""Which weights a pipeline has, in twelve digits: samples of other weights must not be mixed with its own."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

SEEN = 4096  # values of each tensor that are looked at: a large model's are not all read


def fingerprint(pipe: Any) -> str:
    """The first 12 digits of the SHA-256 of names, shapes and evenly spaced values of a pipeline's weights.

    A change that keeps every value looked at is not noticed: one of a few values of a large tensor. Nothing is found,
    and "" returned, where no part of the pipeline is a `torch.nn.Module`.
    """
    parts = getattr(pipe, "components", None) or vars(pipe)
    modules = {name: part for name, part in sorted(parts.items()) if isinstance(part, torch.nn.Module)}
    if not modules:
        return ""
    digest = hashlib.sha256()
    for name, module in modules.items():
        for key, tensor in sorted(module.state_dict().items()):
            values = tensor.detach().flatten()
            step = max(1, values.numel() // SEEN)
            digest.update(f"{name} {key} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(values[::step].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
