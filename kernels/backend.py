"""The choice between a Triton kernel and its torch reference.

`MMSPEC_KERNELS=triton|torch` sets it for all devices; without it, tensors on a CUDA device use the kernels and all
others use torch. On a CPU the kernels run in Triton's interpreter, which must be enabled by `TRITON_INTERPRET=1` before
Python starts; it serves to test them, not for speed.

Importing this module does not import Triton.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from threading import RLock
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from mmspec.environment.setup_work import record_setup
from mmspec.errors import ArgumentError, did_you_mean

VARIABLE = "MMSPEC_KERNELS"
CHOICES = ("triton", "torch")


def chosen(tensor: Tensor) -> str:
    """The backend for tensors on the device of this one: "triton" or "torch"."""
    return choose(tensor.device.type)


def choose(device: str) -> str:
    """The backend for tensors on a device of this type: "triton" or "torch".

    Raises:
        ArgumentError: If `MMSPEC_KERNELS` has another value, or names a backend that cannot run.
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


P = ParamSpec("P")
R = TypeVar("R")


class Operator(Generic[P, R]):
    """A torch custom op whose function is called at once where nothing observes the operators that run.

    The dispatch of a custom op takes the host longer than the launch of its kernel, and a window has five. Compilers,
    fake tensors and other dispatch modes get the op.

    Attributes:
        op: The op, `torch.ops.mmspec.*`.
    """

    def __init__(self, name: str, function: Callable[P, R], mutates_args: Iterable[str]) -> None:
        self.op = torch.library.custom_op(name, function, mutates_args=mutates_args)
        self.register_fake = self.op.register_fake
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            found: R = self.op(*args, **kwargs)
            return found
        return self._function(*args, **kwargs)


def operator(name: str, *, mutates_args: Iterable[str]) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Decorates the function of an `Operator`; arguments as those of `torch.library.custom_op`."""
    return lambda function: Operator(name, function, mutates_args)


# Triton's interpreter replaces functions of its language while a kernel runs: two threads must not be in it.
_interpreting = RLock()


def launchable(tensor: Tensor) -> AbstractContextManager[object]:
    """A context in which Triton launches on the tensor's device."""
    _note_compilations()
    if tensor.device.type == "cpu":
        return _interpreting
    if not tensor.is_cuda or torch.cuda.current_device() == tensor.device.index:
        return nullcontext()
    return torch.cuda.device(tensor.device)


@cache
def launches_early(device: torch.device) -> bool:
    """Whether a kernel may be launched on a device while those before it still run (programmatic dependent launch).

    Such a kernel waits for them itself before it reads what they write, and before it writes.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return device.type == "cuda"  # a fake device, on which calls are traced, stands for an H100
    return bool(torch.version.cuda) and torch.cuda.get_device_capability(device)[0] >= 9


def warps(block: int) -> int:
    """The number of warps of a program that holds `block` numbers: about 16 numbers in the registers of each thread."""
    return max(1, min(32, block // 512))


@cache
def _note_compilations() -> None:
    """Makes Triton tell `mmspec.environment.setup_work` of kernels that it compiles or loads; other hooks stay."""
    from triton import knobs

    earlier = getattr(knobs.runtime, "jit_post_compile_hook", None)

    def hook(*args: Any, **kwargs: Any) -> Any:
        record_setup()
        return None if earlier is None else earlier(*args, **kwargs)

    knobs.runtime.jit_post_compile_hook = hook


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
