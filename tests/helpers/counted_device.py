"""A CUDA device that counts: its tensors hold CPU tensors, so that a decode runs on it, and every operator is seen.

It counts what a window costs the host outside of the model:

    waits      reads of values, copies to the host, and copies from the host that are not asynchronous
    uploads    copies from the host
    launches   kernels and copies; an operator that makes a view or allocates is none

A kernel of `mmspec.kernels` counts as what its launcher launches; the values come from its torch reference.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from triton.runtime.interpreter import InterpretedFunction

from mmspec.decoding.target import EarlyExit
from mmspec.heads.eagle import EagleHead
from mmspec.kernels import backend
from mmspec.methods.block.head import BlockHead
from mmspec.methods.grid.head import GridHead
from mmspec.methods.hydra.head import HydraHeads
from mmspec.methods.kangaroo.head import ExitAdapter
from mmspec.methods.medusa.head import MedusaHeads
from mmspec.sampling import numbers
from mmspec.sampling.logits import split_cfg
from mmspec.sampling.tree import Tree

NAME = "fakegpu"
_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(f"{NAME}:0")
_ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "lift_fresh"}
_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "repeat_interleave", "equal"}
_SEVERAL = {"constant_pad_nd": 2}  # kernels of one operator


class DeviceTensor(Tensor):
    """A tensor of the device."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise AssertionError(f"{func} outside of `counted_device`")


@cache
def _launcher(func: Any) -> Callable[..., Any]:
    """The launcher of an op of `mmspec.kernels`, or of a method."""
    loaded = [module for name, module in sys.modules.items() if name.startswith(("mmspec.kernels.", "mmspec.methods."))]
    found = [one for module in loaded for one in vars(module).values() if isinstance(one, backend.Operator)]
    return next(one._function for one in found if one.op._opoverload is func)


class _Launches(TorchDispatchMode):
    """Counts the operators that a launcher runs besides its kernel."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "mmspec":
            with self:  # which is off here; through the op's dispatch it would not see what its launcher does
                return _launcher(func)(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        if _launches(func, args, out):
            self._found[_name(func)] += 1
        return out


class CountedDevice(TorchDispatchMode):
    """The context in which the device exists.

    Attributes:
        launches: What was launched.
        uploads: Copies from the host.
        waits: What the host waited for.
        is_on: Whether anything is counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_on = True
        self._is_busy = False  # whether a call of the model was launched since the latest verification
        self._idle_from: int | None = None  # the launches and uploads before the wait at which the device ran dry
        self.clear()
        self._locked: set[int] = set()
        self._recorded: RecordedGraph | None = None  # the graph that is being recorded

    def clear(self) -> None:
        """Starts a new count."""
        if self._idle_from is not None:
            self._idle_from -= self._work()
        self.launches: Counter[str] = Counter()
        self.uploads: list[str] = []
        self.waits: list[str] = []
        self.idle = 0  # launches and uploads between a wait that leaves the device idle and the next call of the model

    def page_locked(self, host: Tensor) -> Tensor:
        """A copy in memory that is marked as page-locked."""
        host = host.clone()
        self._locked.add(host.untyped_storage()._cdata)
        self._kept = [*getattr(self, "_kept", []), host]
        return host

    def is_locked(self, host: Tensor) -> bool:
        """Whether memory of the host was marked."""
        return host.untyped_storage()._cdata in self._locked

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        on_device = any(isinstance(leaf, DeviceTensor) for leaf in leaves)
        name = _name(func)
        wanted = kwargs.get("device")
        there = on_device if wanted is None else torch.device(wanted).type == NAME
        if name == "copy_":
            there = isinstance(args[0], DeviceTensor)
        if not on_device and not there:
            return func(*args, **kwargs)
        if func.namespace != "prim" and func.namespace != "mmspec":
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        from_host = [leaf for leaf in leaves if not isinstance(leaf, DeviceTensor) and leaf.dim()]
        if there and from_host:
            self._upload(
                name,
                from_host,
                bool(args[2]) if name == "copy_" and len(args) > 2 else bool(kwargs.get("non_blocking")),
            )
        elif name in _WAITS or not there:
            self._note(self.waits, name)
            if not self._is_busy and self._idle_from is None:
                self._idle_from = self._work()
        host_args, host_kwargs = tree_map(_to_host, (args, dict(kwargs)))
        if self._recorded is not None:
            if not there or from_host or name in _WAITS:
                raise RuntimeError(f"{name} cannot be captured")
            self._recorded.keep(func, host_args)
        if func.namespace == "mmspec":
            found = self._kernel(func, host_args, host_kwargs)
        else:
            found = func(*host_args, **host_kwargs)
            if self._recorded is not None:
                self._recorded.add(func, host_args, host_kwargs, found)
            if self.is_on and there and not from_host and _launches(func, host_args, found):
                self.launches[name] += _SEVERAL.get(name, 1)
        if not there:
            return found
        if func._schema.is_mutable and name.endswith("_"):
            return args[0]
        return tree_map(lambda leaf: DeviceTensor(leaf) if isinstance(leaf, Tensor) else leaf, found)

    def _upload(self, name: str, sources: list[Tensor], asynchronous: bool) -> None:
        self._note(self.uploads, name)
        if not (asynchronous and all(map(self.is_locked, sources))):
            self._note(self.waits, f"{name} from pageable memory")

    def _note(self, kind: list[str], name: str) -> None:
        if self.is_on:
            kind.append(name)

    def _work(self) -> int:
        return sum(self.launches.values()) + len(self.uploads)

    def model_is_called(self) -> None:
        """Notes that a call of the model was launched: nothing that is launched after it keeps the device waiting."""
        if self._idle_from is not None:
            self.idle += self._work() - self._idle_from
        self._idle_from, self._is_busy = None, True

    def _kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Counts what a launcher launches, on a copy of its tensors; the values are the reference's."""
        copies = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
        copies = tree_map(lambda leaf: leaf, copies)
        with pytest.MonkeyPatch.context() as patch:
            found: Counter[str] = Counter()

            def launched(kernel: Any, *args: Any, **kwargs: Any) -> None:
                found[kernel.fn.__name__] += 1

            patch.setattr(InterpretedFunction, "run", launched)
            with _Launches(found):
                func(*args, **kwargs) if not func._schema.is_mutable else func(*copies[0], **copies[1])
            if self.is_on:
                self.launches += found
            if {"_verify_window", "_fused_sample"} & found.keys():
                self._is_busy = False
            patch.setenv(backend.VARIABLE, "torch")
            out = func(*args, **kwargs)
        if self._recorded is not None:
            self._recorded.add(func, args, kwargs, out)
        return out

    def capture(self, body: Callable[[], None], *_: Any) -> RecordedGraph | None:
        """Records a call, as a CUDA graph; None if an operator cannot be captured."""
        graph, was_on, was_busy = RecordedGraph(self), self.is_on, self._is_busy
        self._recorded, self.is_on = graph, False
        try:
            body()
        except RuntimeError:
            return None
        finally:
            self._recorded, self.is_on, self._is_busy = None, was_on, was_busy
            graph.forget()
        return graph


class RecordedGraph:
    """The operators of a captured graph. A capture runs nothing: what was computed meanwhile is undone.

    Args:
        counted: The device.
    """

    def __init__(self, counted: CountedDevice) -> None:
        self._counted = counted
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    def keep(self, func: Any, args: Sequence[Any]) -> None:
        """Keeps the values of what an operator is about to write."""
        for spec, value in zip(func._schema.arguments, args, strict=False):
            if spec.alias_info is not None and spec.alias_info.is_write:
                self._before.append((value, value.clone()))

    def add(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Notes an operator and what it has given."""
        given = {t.untyped_storage()._cdata for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)}
        outputs = [t for t in tree_flatten(found)[0] if isinstance(t, Tensor)]
        new = [t for t in outputs if t.untyped_storage()._cdata not in given]
        if new or func._schema.is_mutable:
            self._calls.append((func, args, kwargs, new))

    def forget(self) -> None:
        """Undoes what was written, and spoils what was made."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)
        for *_, new in self._calls:
            for tensor in new:
                tensor.fill_(torch.nan if tensor.is_floating_point() else 1)
        self._before = []

    def replay(self) -> None:
        """Runs the operators on the tensors that they were given, as one launch."""
        counted, was_on = self._counted, self._counted.is_on
        if was_on:
            counted.launches["graph"] += 1
        counted.is_on = False
        for func, args, kwargs, new in self._calls:
            found = counted._kernel(func, args, kwargs) if func.namespace == "mmspec" else func(*args, **kwargs)
            if new:
                for place, value in zip(new, [t for t in tree_flatten(found)[0] if isinstance(t, Tensor)], strict=True):
                    place.copy_(value)
        counted.is_on = was_on


def _name(func: Any) -> str:
    return str(func._schema.name.split("::")[-1])


def _launches(func: Any, args: Any, out: Any) -> bool:
    """Whether an operator does more than to make a view or to allocate."""
    if _name(func) in _ALLOCATES:
        return False
    own = {t.untyped_storage()._cdata for t in tree_flatten(args)[0] if isinstance(t, Tensor)}
    outputs = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)]
    return bool(func._schema.is_mutable or not outputs or any(t.untyped_storage()._cdata not in own for t in outputs))


def _to_host(leaf: Any) -> Any:
    if isinstance(leaf, DeviceTensor):
        return leaf.host
    return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == NAME else leaf


@contextmanager
def counted_device() -> Iterator[CountedDevice]:
    """A context in which tensors of `DEVICE` compute what a CPU does, and are counted."""
    counted = CountedDevice()
    with pytest.MonkeyPatch.context() as patch:
        # Views of tensors of a class of its own are not possible in inference mode; the operators are the same.
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.set_grad_enabled(mode is False))
        patch.setattr(Tensor, "pin_memory", lambda tensor, *_: counted.page_locked(tensor))
        patch.setenv(backend.VARIABLE, "triton")
        patch.setattr(numbers, "page_locked", lambda host, device: counted.page_locked(host))
        with counted:
            yield counted


class CountedTarget:
    """A model on the device whose calls are not counted: logits by the token before and the position.

    It can be captured; what `CUDAGraphTarget` does around a captured call is counted.

    Args:
        counted: The device.
        batch_size: B.
        vocab_size: V.
        length: Of the sequence.
        guided: Whether it has unconditional logits.

    Attributes:
        broken_from: The slot from which on its logits are NaN.
        lowest: The lowest token that it has read.
    """

    broken_from = 2**62
    lowest = 0
    cell: tuple[int, ...] = ()
    fused_layers = ()
    layers = 3
    short_cache = can_skip_layers = can_reuse_updates = True

    def __init__(self, counted: CountedDevice, batch_size: int, vocab_size: int, length: int, guided: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.vocab_size, self.device = vocab_size, DEVICE
        self.rows, self.capacity, self.cfg_factor = batch_size, length + 32, 1 + guided
        self._counted = counted
        self._table = torch.randn(self.cfg_factor, vocab_size, vocab_size, generator=generator) * 1.5
        self._places = torch.randn(self.cfg_factor, 7, vocab_size, generator=generator)
        self._table[..., -1] -= 4.0  # it ends rows in the tests
        self._last: Tensor | None = None
        self._exit: Tensor | None = None
        self._collected: tuple[int, ...] = ()
        self._states: Tensor | None = None

    def slot(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return at

    def read(
        self, tokens: Tensor, slots: Tensor, end: int, early_exit: EarlyExit | None = None, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(tokens, DeviceTensor)
        host = tokens.host.clamp(0, self.vocab_size - 1)
        side = (torch.arange(len(host)) // self.rows).view(-1, *(1,) * (host.ndim - 1))
        assert isinstance(slots, DeviceTensor)
        self.lowest = min(self.lowest, int(tokens.host.min()))
        logits = self._table[side, host] + self._places[side, slots.host % 7]
        logits[slots.host >= self.broken_from] = torch.nan
        if early_exit is not None:
            logits = logits * 0.8
        if self._collected and early_exit is None:
            of_layers = torch.cat([logits * (n + 1) for n in self._collected], dim=-1)
            if states is None:
                self._states = DeviceTensor(of_layers)
            else:
                assert isinstance(states, DeviceTensor)
                states.host.copy_(of_layers)
        elif early_exit is not None and early_exit.reuse:
            states = self._states if states is None else states
            assert isinstance(states, DeviceTensor)
            logits = logits + 0.1 * states.host.unflatten(-1, (len(self._collected), -1)).sum(-2)
        self._counted.model_is_called()
        return DeviceTensor(logits), DeviceTensor(logits)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Any:
        """A window outside of captured calls."""
        from mmspec.sampling.tree import Tree

        parents = np.arange(max(tokens.shape[1] - 1, 1))[None]
        return self.forward_tree(tokens, at, Tree(parents, torch.device("cpu")), early_exit=early_exit)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Any:
        assert isinstance(tokens, DeviceTensor)
        last = first + tokens.shape[1]
        there = None if tree.has_known_depths else tree.device_depth  # what the host does not know
        depth = there.host if isinstance(there, DeviceTensor) else torch.from_numpy(tree.depth)
        places = torch.from_numpy(at)[:, None] + depth[:, first:last]
        factor = self.cfg_factor if early_exit is None or early_exit.guided else 1
        both, slots_of_both = (DeviceTensor(one.repeat(factor, 1)) for one in (tokens.host, places))
        logits, features = self.read(both, slots_of_both, 0, early_exit)
        if early_exit is None:
            self._last = features
        else:
            self._exit = features
        return split_cfg(logits, factor == 2)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        """It has no cache."""

    def prefill(self) -> Any:
        logits = DeviceTensor(self._table[:, :1].repeat_interleave(self.rows, 0))
        self._last = logits
        self._states = DeviceTensor(logits.host.repeat(1, 1, len(self._collected)))
        return split_cfg(logits, self.cfg_factor == 2)

    def features(self) -> Tensor:
        assert self._last is not None
        return self._last

    def exit_features(self) -> Tensor:
        assert self._exit is not None
        return self._exit

    def head(self, features: Tensor) -> Tensor:
        return features

    def collect_layers(self, layers: Sequence[int]) -> None:
        self._collected = tuple(layers)

    def layer_features(self) -> Tensor:
        assert self._states is not None
        return self._states

    def set_layer_features(self, states: Tensor) -> None:
        self._states = states

    def select_rows(self, row_ids: list[int]) -> None:
        self.rows = len(row_ids)


class CountedColumns(CountedTarget):
    """A `CountedTarget` of columns: logits of each cell by the code before it in its codebook, and the position.

    Args:
        counted: The device.
        batch_size: B.
        codebooks: K.
        vocab_size: V.
        length: Of the sequence.
        guided: Whether it has unconditional logits.
        ends: The code that ends rows in the tests, and is seldom sampled; None if there is none.
    """

    def __init__(
        self,
        counted: CountedDevice,
        batch_size: int,
        codebooks: int,
        vocab_size: int,
        length: int,
        guided: bool,
        ends: int | None,
    ) -> None:
        super().__init__(counted, batch_size, vocab_size, length, guided)
        self.cell = (codebooks,)
        self._table[..., -1] += 4.0
        if ends is not None:
            self._table[..., ends] -= 5.0

    def read(
        self, tokens: Tensor, slots: Tensor, end: int, early_exit: EarlyExit | None = None, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        spread = DeviceTensor(_to_host(slots)[..., None].expand(tokens.shape))
        return super().read(tokens, spread, end, early_exit, states)

    def prefill(self) -> Any:
        first = DeviceTensor(torch.zeros(self.rows * self.cfg_factor, 1, *self.cell, dtype=torch.int64))
        self._last, _ = self.read(first, DeviceTensor(torch.zeros(first.shape[:2], dtype=torch.int64)), 0)
        return split_cfg(self._last, self.cfg_factor == 2)


def uncounted(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a head that computes on the host, and takes and returns tensors of the device."""

    def call(head: object, *inputs: Any) -> Any:
        return tree_map(DeviceTensor, method(head, *tree_map(_to_host, inputs)))

    return call


class CountedEagle(EagleHead):
    """A head on the device whose own network is not counted, nor the kernels of its attention."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, vocab_size, 8, 1)

    @property
    def device(self) -> torch.device:
        return DEVICE

    project = uncounted(EagleHead.project)
    finish = uncounted(EagleHead.finish)


class CountedMedusa(MedusaHeads):
    """Heads on the device whose own network is not counted."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, vocab_size)

    @property
    def device(self) -> torch.device:
        return DEVICE

    def forward(self, features: Tensor) -> Tensor:
        assert isinstance(features, DeviceTensor)
        return DeviceTensor(super().forward(features.host))


class CountedHydra(HydraHeads):
    """Heads on the device whose own network is not counted."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, vocab_size, 8)

    @property
    def device(self) -> torch.device:
        return DEVICE

    forward = uncounted(HydraHeads.forward)


class CountedGrid(GridHead):
    """A head on the device whose own network is not counted."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__(vocab_size, vocab_size, 8, width)

    @property
    def device(self) -> torch.device:
        return DEVICE

    forward = uncounted(GridHead.forward)


class CountedBlock(BlockHead):
    """A head on the device whose own network is not counted."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, vocab_size, 8, 2, 1, block_size=4)

    @property
    def device(self) -> torch.device:
        return DEVICE

    context = uncounted(BlockHead.context)
    forward = uncounted(BlockHead.forward)


class CountedKangaroo(ExitAdapter):
    """An adapter on the device whose own network is not counted, nor the kernels of its attention."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, vocab_size, 8, 1, exit_layer=1)

    @property
    def device(self) -> torch.device:
        return DEVICE

    project = uncounted(ExitAdapter.project)
    finish = uncounted(ExitAdapter.finish)
