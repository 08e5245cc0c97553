"""Captured calls on a CPU: the operators of a call are recorded, and replayed on the tensors that they had.

As a CUDA graph, a recorded call reads and writes the same memory again and again: the weights, caches and tables of the
target that it was recorded for, whatever tensors others have, and it does nothing that Python did in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmspec.decoding import captured_calls


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name.removeprefix("aten::") in ("_local_scalar_dense", "nonzero", "masked_select"):
            raise RuntimeError(f"{func} reads values on the host")
        found = func(*args, **kwargs)
        given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        new = [t for t in _tensors(found) if t.untyped_storage()._cdata not in given]
        if new or func._schema.is_mutable:  # not a view
            self.calls.append((func, args, kwargs, new))
        return found


class RecordedCall:
    """A call of tensors on a CPU, replayed as a CUDA graph.

    Args:
        call: The call, which is run once.

    Attributes:
        out: What it has returned; a replay overwrites it.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        recorder = _Recorder()
        with recorder:
            self.out = call()
        self._calls = recorder.calls

    def replay(self) -> Any:
        for func, args, kwargs, new in self._calls:
            found = func(*args, **kwargs)
            if new:
                own = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
                made = [t for t in _tensors(found) if t.untyped_storage()._cdata not in own]
                for place, value in zip(new, made, strict=True):
                    place.copy_(value)
        return self.out


class Recordings:
    """The recorded calls of `recorded_graphs`.

    Attributes:
        count: How many calls were recorded.
        is_on: Whether targets capture their calls; if not, they decode as on a CPU.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_on = True

    def call(self, call: Any, read: Callable[..., Any]) -> Any:
        if not hasattr(call, "recorded"):
            self.count += 1
            call.recorded = RecordedCall(lambda: call._run(read))
            return call.recorded.out
        return call.recorded.replay()

    def eager(self, call: Callable[[], Tensor]) -> Tensor:
        """What a call gives without captures."""
        self.is_on = False
        try:
            return call()
        finally:
            self.is_on = True


@contextmanager
def recorded_graphs() -> Iterator[Recordings]:
    """A context in which LlamaGen and models of transformers capture their calls on a CPU, as on a CUDA device."""
    from mmspec.hf import causal_target
    from mmspec.vision.llamagen import target as llamagen_target

    found = Recordings()
    with pytest.MonkeyPatch.context() as patch:
        for module in (causal_target, llamagen_target):
            patch.setattr(module, "use_cuda_graphs", lambda device: found.is_on)
        patch.setattr(captured_calls.CapturedCall, "__call__", lambda call, read: found.call(call, read))
        yield found


def _tensors(found: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
