"""CUDA graphs that live with the model: those of a decode are handed to the next one of the same shapes.

A graph refers to weights, caches and tables by address. They are kept together with the graphs, and the target of the
next decode writes its own numbers to the same tensors. A decode takes a set of graphs away and gives it back when its
target is freed, so that two threads never replay the same graph. A set is freed with the model, and as soon as weights
that it reads are freed, as by `model.to("cpu")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import RLock
from types import CodeType, FunctionType, MethodType
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, finalize, ref

import torch
from torch import Tensor, nn

from mmspec.decoding.captured_calls import GraphCache
from mmspec.decoding.cuda_graphs import Capturable, CUDAGraphTarget
from mmspec.kernels.backend import choose

MAX_BYTES = 2**31  # of the sets of a model; with larger batches capturing takes a small part of the time
ROUND = 64  # slots of a cache, so that calls with other prompts and windows have the same shapes
_lock = RLock()  # a target may be freed, and its set given back, by a garbage collection while a set is taken
_PRIMITIVES = (bool, int, float, str, type(None), torch.dtype, torch.device)


class Reusable(Protocol):
    """A target that can work on the tensors of an earlier one.

    Attributes:
        device: The device of its tensors.
    """

    device: torch.device

    def shapes(self) -> tuple[Any, ...]:
        """What must be equal in both; before the prefill."""
        ...

    def tensors(self) -> list[Tensor]:
        """The tensors that `read` reads and writes besides the weights; after the prefill."""
        ...

    def take_over(self, tensors: list[Tensor]) -> None:
        """Moves to the tensors of an earlier target of the same shapes; called before the prefill."""
        ...


@dataclass(eq=False)
class _Kept:
    """A set of graphs.

    Attributes:
        parts: What the graphs call, see `parts_of`. Modules are weak references: the model has the sets, and is freed
            with them.
        key: Addresses of the weights, shapes, and settings that a graph has fixed.
        stream: The stream of the decode that used them last; None on a CPU.
        is_stale: Whether weights that they read have been freed.
    """

    parts: list[object]
    key: tuple[Any, ...]
    graphs: GraphCache
    stream: torch.cuda.Stream | None = None
    is_stale: bool = False


class KeptGraphs:
    """The sets of graphs of a model that no decode is using."""

    def __init__(self) -> None:
        self._free: list[_Kept] = []

    @classmethod
    def of(cls, model: nn.Module) -> KeptGraphs:
        """The sets of a model."""
        with _lock:
            return _sets.setdefault(model, cls())

    def __len__(self) -> int:
        return len(self._free)

    def take(self, parts: list[object], key: tuple[Any, ...]) -> _Kept | None:
        """A set that fits, which is the caller's from now on; sets of other weights are dropped."""
        with _lock:
            self._free = [one for one in self._free if one.key[0] == key[0]]
            for one in self._free:
                if one.key == key and _same(one.parts, parts):
                    # A garbage collection may have given sets back, and this one may not be in the list any more.
                    self._free = [other for other in self._free if other is not one]
                    return one
        return None

    def give(self, kept: _Kept) -> None:
        """Takes a set back, if it can be of use, in the place of those that have not been used for longest."""
        graphs = kept.graphs
        if graphs.tensors is None or not (graphs.has_calls and graphs.works()) or graphs.nbytes > MAX_BYTES:
            return
        with _lock:
            if not kept.is_stale:
                self._free.append(kept)
                while sum(one.graphs.nbytes for one in self._free) > MAX_BYTES:
                    self._free = self._free[1:]

    def drop(self, kept: _Kept) -> None:
        """Frees a set, now or once its decode gives it back."""
        with _lock:
            kept.is_stale = True
            self._free = [one for one in self._free if one is not kept]


# Beside the models and not in them: copies and pickles of a model have none. No set refers to its model, which would
# never be freed otherwise.
_sets: WeakKeyDictionary[nn.Module, KeptGraphs] = WeakKeyDictionary()


def free_graphs(model: nn.Module) -> None:
    """Frees the graphs that are kept with a model and its parts, with their caches."""
    for module in model.modules():
        with _lock:
            _sets.pop(module, None)


class ReusableTarget(Reusable, Capturable, Protocol):
    """A target whose windows are captured, and that can work on the tensors of an earlier one."""


class UsesGraphs(Protocol):
    """What replays graphs.

    Attributes:
        give_back: Called when it no longer uses them; before that it is called when it is freed.
    """

    give_back: Callable[[], object] | None


AReusable = TypeVar("AReusable", bound=Reusable)
AUser = TypeVar("AUser", bound=UsesGraphs)


def with_kept_graphs(target: ReusableTarget, model: nn.Module, calls: Iterable[object] = ()) -> CUDAGraphTarget:
    """The target with its windows captured in CUDA graphs, which are those of an earlier decode if there are any.

    Args:
        target: The target, before its prefill.
        model: The model that the graphs live with.
        calls: What else `read` calls: modules and functions. Graphs are kept only if the next decode calls the same.
    """
    return use_kept_graphs(CUDAGraphTarget, target, model, calls)


def use_kept_graphs(
    user_of: Callable[[AReusable, GraphCache | None], AUser],
    target: AReusable,
    model: nn.Module,
    calls: Iterable[object] = (),
) -> AUser:
    """What replays the graphs of a target, with those of an earlier decode if there are any.

    Args:
        user_of: Takes the target, and the graphs; None if they cannot be kept.
    """
    parts = parts_of(model, *calls)
    key = None if parts is None else _key(parts, target)
    if parts is None or key is None:
        return user_of(target, None)
    sets = KeptGraphs.of(model)
    kept = sets.take(parts, key)
    if kept is None:
        kept = _Kept(parts, key, GraphCache())
        _drop_with_weights(sets, kept, model, target.device)
    if target.device.type == "cuda":
        stream = torch.cuda.current_stream(target.device)
        if kept.stream is not None:
            stream.wait_stream(kept.stream)
        kept.stream = stream
    if kept.graphs.tensors is not None:
        target.take_over(kept.graphs.tensors)
    user = user_of(target, kept.graphs)
    user.give_back = give_back = finalize(user, sets.give, kept)
    give_back.atexit = False
    return user


def _drop_with_weights(sets: KeptGraphs, kept: _Kept, model: nn.Module, device: torch.device) -> None:
    """Frees a set when the first weight of the model on the device is freed: they move together."""

    def drop(of: ref[KeptGraphs], which: ref[_Kept]) -> None:
        found, stale = of(), which()
        if found is not None and stale is not None:
            found.drop(stale)

    for weight in (*model.parameters(), *model.buffers()):
        if weight.numel() and weight.device == device:
            # Objects that hold on to a weight, such as a `state_dict`, do not hold on to the graphs.
            waits = finalize(weight.untyped_storage(), drop, ref(sets), ref(kept))
            waits.atexit = False
            finalize(kept, waits.detach).atexit = False  # graphs that are not kept leave nothing here
            return


def parts_of(*calls: object) -> list[object] | None:
    """The modules, tensors, code and constants that functions consist of; None if there is anything else in them.

    Modules are weak references, one object for each module. Functions that are made for each call are the same if these
    are. Other objects may change between two calls.
    """
    return _parts_of(calls, set())


def _parts_of(calls: Iterable[object], seen: set[int]) -> list[object] | None:
    found: list[object] = []
    for call in calls:
        if isinstance(call, FunctionType) and id(call) in seen:  # a function that calls itself
            continue
        seen.add(id(call))
        inner: Iterable[object] = ()
        if isinstance(call, nn.Module):
            found.append(ref(call))
        elif isinstance(call, (Tensor, CodeType, *_PRIMITIVES)):
            found.append(call)
        elif isinstance(call, FunctionType):
            inside = (cell.cell_contents for cell in call.__closure__ or ())
            inner = call.__code__, *(call.__defaults__ or ()), *(call.__kwdefaults__ or {}).values(), *inside
        elif isinstance(call, MethodType):
            inner = call.__self__, call.__func__
        elif isinstance(call, partial):
            inner = call.func, *call.args, *call.keywords, *call.keywords.values()
        else:
            return None
        parts = _parts_of(inner, seen)
        if parts is None:
            return None
        found += parts
    return found


def _same(some: list[object], others: list[object]) -> bool:
    """Whether two results of `parts_of` are the same."""

    def alike(one: object, other: object) -> bool:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            return _place(one) == _place(other)
        return one is other or (isinstance(one, _PRIMITIVES) and type(one) is type(other) and one == other)

    return len(some) == len(others) and all(map(alike, some, others))


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _key(parts: list[object], target: Reusable) -> tuple[Any, ...] | None:
    """The key of a set, see `_Kept`; None if graphs may not be valid for as long as the addresses are the same."""
    modules = [module for part in parts if isinstance(part, ref) and isinstance(module := part(), nn.Module)]
    inside = [module for outer in modules for module in outer.modules()]
    # Tables that are attributes, and not buffers, may be made anew.
    tables = (value for module in inside for value in vars(module).values() if isinstance(value, Tensor))
    weights = [_place(t) for outer in modules for t in (*outer.parameters(), *outer.buffers()) if t.numel()]
    weights += [_place(table) for table in tables if table.numel()]
    if any(address == 0 for address, *_ in weights):  # packed weights
        return None
    # Adapters of PEFT can be switched, and hooks removed, without a change of addresses.
    for module in inside:
        if hasattr(module, "_disable_adapters") or getattr(module, "_hf_peft_config_loaded", False):
            return None
        if module._forward_hooks or module._forward_pre_hooks:
            return None
    return tuple(weights), target.shapes(), _fixed(target.device), tuple(map(_settings, inside))


def _fixed(device: torch.device) -> tuple[Any, ...]:
    """Settings of the process that a graph has fixed."""
    cuda = torch.backends.cuda
    # Not `allow_tf32`, which is an error once `fp32_precision` was set.
    products = cuda.matmul.fp32_precision, torch.are_deterministic_algorithms_enabled()
    attention = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
    return *products, *attention, choose(device.type)


def _settings(module: nn.Module) -> tuple[Any, ...]:
    """What a module computes with its weights, as far as a caller can change it."""
    return type(module), module.training, getattr(vars(module).get("config"), "_attn_implementation", None)
