"""The kernels that a call launches, with their bytes and operations, counted without a device.

Tensors are fake (`torch._subclasses.FakeTensorMode`): they have shapes, dtypes and a CUDA device, but no memory. Every
operator that reaches the dispatcher counts as one launch, unless it only makes a view or allocates. Attention counts as
one launch, as each fused backend of `scaled_dot_product_attention` is at least one; that of `mmspec.kernels.attention`
as its two kernels. Kernels that a library launches inside one operator (split-K reductions, workspace clears) are not
seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "lift_fresh"}
_FUSED = {"_fused_rms_norm"}  # kernels of CUDA that would be decomposed on other devices
_GATHERS = {"embedding", "index", "index_select", "gather"}
_SCATTERS = {"index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_", "index_copy_"}
_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "repeat_interleave"}
_STORES = {"rotate_and_store", "rotate_halves_and_store", "qkv"}  # see `mmspec.kernels.layers` and `.linear`
JOIN = "join parts of attention"


@dataclass(frozen=True)
class Launch:
    """One kernel.

    Attributes:
        name: Of the operator.
        bytes: That it reads and writes at least.
        flops: Floating-point operations of matrix products and attention; 0 for all others.
    """

    name: str
    bytes: int
    flops: int


@dataclass(frozen=True)
class Trace:
    """What a call does.

    Attributes:
        launches: How often each launch occurs.
        waits: Operators that make the host wait for the device, or copy between host and device, in order. A call with
            any cannot be captured in a CUDA graph.
    """

    launches: Counter[Launch]
    waits: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of launches."""
        return sum(self.launches.values())

    @property
    def operators(self) -> int:
        """The number of operators that launch: attention in two kernels is one."""
        return sum(n for launch, n in self.launches.items() if launch.name != JOIN)

    @property
    def bytes(self) -> int:
        """Bytes read and written by all launches."""
        return sum(launch.bytes * n for launch, n in self.launches.items())

    @property
    def flops(self) -> int:
        """Floating-point operations of all launches."""
        return sum(launch.flops * n for launch, n in self.launches.items())

    def followed_by(self, other: Trace, times: int = 1) -> Trace:
        """This call, and then another one `times` times."""
        launches = Counter(self.launches)
        for launch, n in other.launches.items():
            launches[launch] += n * times
        return Trace(launches, self.waits + other.waits * times)

    def without(self, other: Trace) -> Trace:
        """The launches that another call does not have."""
        return Trace(self.launches - other.launches, self.waits[len(other.waits) :])


class _FakeMode(FakeTensorMode):
    """Fake tensors on a machine without the device: empty constants are not moved to it."""

    def may_turn_const(self, t: Tensor) -> bool:
        return t.numel() > 0 and super().may_turn_const(t)


@contextmanager
def fake_device() -> Iterator[torch.device]:
    """A context in which tensors have no memory; yields a CUDA device, which need not exist."""
    with _FakeMode(allow_non_fake_inputs=True):
        yield torch.device("cuda:0")


def trace(call: Callable[[], object]) -> Trace:
    """The launches of a call, inside `fake_device` or with real tensors.

    Raises:
        Exception: Whatever `call` raises; an operator whose result depends on data cannot run on fake tensors.
    """
    counter = _Counter()
    with _Attention(counter), counter:
        call()
    return Trace(counter.launches, tuple(counter.waits))


class _Attention(TorchFunctionMode):
    """Counts attention as one launch, whatever a backend would make of it."""

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        named = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | dict(kwargs)
        q, k, v, mask = named["query"], named["key"], named["value"], named.get("attn_mask")
        # The fused backends write the heads of a token next to each other, whatever the layout of the queries.
        out = q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[-1])).transpose(1, 2)
        moved = sum(touched(t) for t in (q, k, v, out)) + (0 if mask is None else touched(mask))
        self._counter.launches[Launch("attention", moved, _attention_flops(q, k, v))] += 1
        return out


class _Counter(TorchDispatchMode):
    """Counts the operators that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[Launch] = Counter()
        self.waits: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.split("::")[-1]
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if name in _WAITS and any(map(_on_device, inputs)):
            self.waits.append(name)
        # In inference mode operators such as `linear` and `reshape` arrive before they are decomposed.
        if name not in _FUSED and func.namespace != "prim":
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        everything = inputs + outputs
        # Numbers of the host that a kernel takes as an argument are no copies.
        if any(map(_on_device, everything)) and any(not _on_device(t) and t.dim() for t in everything):
            self.waits.append(f"{name} between host and device")
        if not outputs and func._schema.is_mutable:
            outputs = inputs[:1]  # such as `add_linear`, which only writes to its first argument
        if any(map(_on_device, outputs)) and not (name in _ALLOCATES or _is_view(func, inputs, outputs)):
            self.launches.update(_launches(name, inputs, outputs, args))
        return out


def touched(tensor: Tensor) -> int:
    """The bytes of a tensor in memory; an expanded axis counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count * tensor.element_size()


def _on_device(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _is_view(func: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether an operator writes nothing: its results are memory of its arguments."""
    own = {t.untyped_storage()._cdata for t in inputs}
    return not func._schema.is_mutable and all(t.untyped_storage()._cdata in own for t in outputs)


def _launches(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], args: Sequence[Any]) -> list[Launch]:
    """The kernels of an operator."""
    if name == "attend":  # see `mmspec.kernels.attention`
        from mmspec.kernels.attention import bytes_of_parts  # Triton may be missing

        q, keys, values, mask, _, splits, _ = args
        parts = bytes_of_parts(q, keys, splits)
        moved = sum(map(touched, (q, keys, values, mask))) + parts
        flops = _attention_flops(q, keys, values)
        return [Launch("attend", moved, flops), Launch(JOIN, parts + sum(map(touched, outputs)), 0)]
    return [Launch(name, _bytes(name, inputs, outputs), _flops(name, inputs, outputs))]


def _attention_flops(q: Tensor, keys: Tensor, values: Tensor) -> int:
    return 2 * q.shape[0] * q.shape[1] * q.shape[2] * keys.shape[2] * (q.shape[3] + values.shape[3])


def _bytes(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    if name in _GATHERS:  # of a table only the rows that are read
        return 2 * sum(map(touched, outputs)) + sum(touched(t) for t in inputs[1:])
    if name in _SCATTERS:
        return touched(inputs[-1]) + sum(touched(t) for t in inputs[1:])
    if name == "copy_":
        return touched(inputs[1]) + touched(inputs[0])
    if name in _STORES:  # of the caches, which come last, what is written: a key and a value of each token
        *others, keys, values = inputs
        tokens = outputs[0].shape[0] * outputs[0].shape[1]
        stored = (keys.shape[1] * keys.shape[3] + values.shape[1] * values.shape[3]) * keys.element_size()
        return sum(map(touched, others)) + tokens * stored + sum(map(touched, outputs))
    return sum(map(touched, inputs)) + sum(map(touched, outputs))


def _flops(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    if name in ("add_linear", "swiglu_linear", "qkv"):  # see `mmspec.kernels.linear`
        x, weights = inputs[name == "add_linear"], [t for t in inputs if t.ndim == 2]
        return 2 * x.shape[0] * x.shape[1] * sum(t.numel() for t in weights)
    name = name.removesuffix("_")
    if name not in ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear"):
        return 0
    left = inputs[1] if name in ("addmm", "baddbmm") else inputs[0]
    return 2 * outputs[0].numel() * left.shape[-1]
