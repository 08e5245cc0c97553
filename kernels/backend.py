"""Which of the two runs: the Triton kernel, or the torch code beside it.

`MMSPEC_KERNELS=triton|torch` says so for every device; without it, tensors on a CUDA device get the kernels and all
others torch. On a CPU the kernels run in Triton's interpreter, which `TRITON_INTERPRET=1` must turn on before Python
starts; it is there to test them, not for speed.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from mmspec.errors import ArgumentError, did_you_mean

VARIABLE = "MMSPEC_KERNELS"
CHOICES = ("triton", "torch")


def chosen(tensor: Tensor) -> str:
    """ "triton" or "torch", for tensors that lie where this one does."""
    return choose(tensor.device.type)


def choose(device: str) -> str:
    """ "triton" or "torch", for tensors on a device of that type.

    Raises:
        ArgumentError: When the variable asks for what there is not.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", *CHOICES):
        hint = did_you_mean(wanted, CHOICES)
        raise ArgumentError(
            f"{VARIABLE}={wanted!r} is not allowed{hint}; it must be triton or torch, or unset: kernels on CUDA only"
        )
    if not wanted:
        return "triton" if device == "cuda" and _installed() else "torch"
    if wanted == "triton" and not _installed():
        raise ArgumentError(f"{VARIABLE}=triton is not possible: Triton is not installed; run pip install triton")
    if wanted == "triton" and device != "cuda" and os.environ.get("TRITON_INTERPRET", "0") != "1":
        raise ArgumentError(
            f"{VARIABLE}=triton is not possible on {device}: kernels need a CUDA device; to run them slowly in "
            "Triton's interpreter, set TRITON_INTERPRET=1 as well"
        )
    return wanted


def launchable(tensor: Tensor) -> AbstractContextManager[object]:
    """Inside it, Triton launches on the tensor's device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def warps(block: int) -> int:
    """Warps of a program that holds `block` numbers: about 16 numbers in each thread's registers."""
    return max(1, min(32, block // 512))


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
