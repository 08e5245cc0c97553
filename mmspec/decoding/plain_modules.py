"""Modules whose products may be computed from their weights: plain ones, without hooks, adapters or quantization."""

from __future__ import annotations

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor


def is_plain(module: nn.Module) -> bool:
    """Whether calling the module computes what its class says: no hook, no replaced `forward`, no adapter.

    A linear layer of another type than `torch.nn.Linear`, or with a weight of another type, is quantized or adapted.
    """
    if any(hasattr(module, name) for name in ("_hf_hook", "_diffusers_hook")) or "forward" in module.__dict__:
        return False
    if module._forward_hooks or module._forward_pre_hooks or "peft" in type(module).__module__:
        return False
    if isinstance(module, nn.Linear):
        # A fake tensor stands for a plain one where calls are traced without a device.
        return type(module) is nn.Linear and type(module.weight.data) in (Tensor, FakeTensor)
    return True


def add_linear(h: Tensor, x: Tensor, linear: nn.Linear) -> None:
    """Adds linear(x) to `h` [R, W, D] in place, for a plain layer; the matrix product adds to its output by itself."""
    h.flatten(0, 1).addmm_(x.flatten(0, 1), linear.weight.t())
    if linear.bias is not None:
        h.add_(linear.bias)
