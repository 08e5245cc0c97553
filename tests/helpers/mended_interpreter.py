"""Triton's interpreter with four changes: multiply-adds and products as on a device, and half of the time or less.

Kernels divide by a corrected product (`mmspec.kernels.softmax_stats.quotient`), which is exact only where a fused
multiply-add is rounded once; the interpreter itself rounds it twice. For each call of a function of a kernel the
interpreter looks through all members of `triton.language` again, which takes half of the time of small kernels.
A reduction by a function of a kernel takes it a call of that function per number; here it takes one per halving.
Products of matrices of bfloat16 are those of their numbers; the interpreter multiplies the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import ismodule
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter


def fused(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """a * b + c of float32, rounded once.

    The product is exact in float64. Of the sum, the last bit is set where it is inexact ("round to odd"), so that
    rounding it to float32 is as rounding the exact sum.
    """
    with np.errstate(all="ignore"):
        product, addend = a.astype(np.float64) * b, c.astype(np.float64)
        total = product + addend
        back = total - addend
        error = (product - back) + (addend - (total - back))
        even = (total.view(np.int64) & 1) == 0
        toward = np.where(error > 0, np.inf, -np.inf)
        inexact = np.isfinite(total) & (error != 0) & even
        return np.where(inexact, np.nextafter(total, toward), total).astype(np.float32)


def _create_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """`InterpreterBuilder.create_fma`, for float32 only, the one type that kernels fuse."""
    return interpreter.TensorHandle(fused(x.data, y.data, z.data), z.dtype.scalar)


def _wide(tensor: Any) -> NDArray[Any]:
    """The numbers of a tensor of a kernel; the interpreter keeps those of bfloat16 as their bits."""
    if tensor.dtype.scalar != tl.bfloat16:
        return tensor.data
    return (tensor.data.astype(np.uint32) << 16).view(np.float32)


def _create_dot(builder: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
    """`InterpreterBuilder.create_dot`, which multiplies the bits of numbers of bfloat16."""
    return interpreter.TensorHandle(np.matmul(_wide(a), _wide(b), dtype=d.data.dtype) + d.data, d.dtype.scalar)


@cache
def _languages(function: Any) -> tuple[int, ...]:
    """The modules of `triton.language` that a function names."""
    values = function.__globals__.values()
    return tuple(id(value) for value in values if ismodule(value) and value in (tl, tl.core))


class _Patches:
    """The patches of `triton.language` of the running kernel: each module once, restored at the kernel's end."""

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        self._scopes = dict[tuple[int, ...], Any]()

    def __call__(self, function: Any) -> _Patches:
        languages = _languages(function)
        if languages not in self._scopes:
            self._scopes[languages] = self._patch(function)
        return self

    def restore(self) -> None:
        for languages in reversed(list(self._scopes)):
            self._scopes.pop(languages).restore()


def _reduce_by_halves(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """`ReduceOps.generic_reduce` along one axis of a power of 2 of numbers, whose function works on whole blocks."""
    parts = tuple(inputs)
    axis = self.axis
    while parts[0].handle.data.shape[axis] > 1:
        halves = [np.split(part.handle.data, 2, axis) for part in parts]
        left, right = (
            [
                self.to_tensor(np.ascontiguousarray(half[i]), part.dtype)
                for half, part in zip(halves, parts, strict=True)
            ]
            for i in (0, 1)
        )
        found = self.combine_fn.fn(*left, *right)
        parts = found if isinstance(found, tuple) else (found,)
    rest = [part.handle.data if self.keep_dims else part.handle.data.squeeze(axis) for part in parts]
    pairs = zip(rest, parts, strict=True)
    return [self.to_tensor(data if data.ndim else data.item(), part.dtype) for data, part in pairs]


def mend() -> None:
    """Changes the interpreter of this process."""
    interpreter.ReduceOps.generic_reduce = _reduce_by_halves
    interpreter.InterpreterBuilder.create_fma = _create_fma
    interpreter.InterpreterBuilder.create_dot = _create_dot
    interpreter._patch_lang = _Patches(interpreter._patch_lang)
