"""Targets on a CUDA device that does not exist: what a CUDA graph of their `read` would meet."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import pytest
import torch
from gpu_bench.counting import Trace, fake_device, trace
from torch import Tensor, nn

from mmspec.audio.depth.captured_depth import sample_frame
from mmspec.audio.depth.depth_target import DepthTarget
from mmspec.audio.models.moshi.decoding import MoshiDepth
from mmspec.hf.causal_target import CausalTarget
from mmspec.vision.llamagen.target import LlamaGenTarget

_KINDS = (CausalTarget, LlamaGenTarget, DepthTarget, MoshiDepth)


@contextmanager
def made_targets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Yields a list of the targets with a `read` that are made inside."""
    made = list[Any]()
    with monkeypatch.context() as patch:
        for kind in _KINDS:

            def init(self: Any, *args: Any, before: Any = kind.__init__, **kwargs: Any) -> None:
                before(self, *args, **kwargs)
                made.append(self)

            patch.setattr(kind, "__init__", init)
        yield made


def traced_reads(
    target: Any, cell: tuple[int, ...] = (), parts: Sequence[Any] = (None,), like: Tensor | None = None
) -> list[Trace]:
    """The traces of a step and of a window of a target, which is moved to a fake device and cannot be used after.

    Args:
        target: With a `read`.
        cell: The shape of a token in its tokens [R, W, *cell], for a target that does not tell.
        parts: The early exits that are read, None for the whole model.
        like: States of layers that the target collects, [..., layers * D]; None if it collects none.
    """
    with fake_device() as device, torch.inference_mode():
        _move(target, device, {})
        rows = target.rows * target.cfg_factor
        found = []
        for width in (1, 3):
            tokens = torch.zeros(rows, width, *(getattr(target, "cell", ()) or cell), dtype=torch.int64, device=device)
            slots = torch.arange(width, device=device).repeat(rows, 1) + target.capacity - width
            for part in parts:
                call = partial(target.read, tokens, slots, target.capacity, _move(part, device, {}))
                if like is not None:
                    call.keywords["states"] = torch.zeros(rows, width, like.shape[-1], dtype=like.dtype, device=device)
                call()  # allocates
                found.append(trace(call))
        return found


def traced_frame(target: Any, codes: int) -> Trace:
    """The trace of the loop that samples a whole frame, of a target that is on a fake device already.

    Args:
        target: A `mmspec.audio.depth.captured_depth.CapturableDepth`.
        codes: The codes of a frame.
    """
    with fake_device() as device, torch.inference_mode():
        _move(target, device, {})
        rows = target.rows
        numbers, one = torch.zeros(rows, 2, dtype=torch.int64, device=device), torch.ones(rows, device=device)
        settings = one[:, None], one, one.int(), one
        call = partial(sample_frame, target, numbers, *settings, codes, True, True)
        call()  # allocates
        return trace(call)


def traced_whole(target: Any, codebooks: int) -> Trace:
    """The trace of the call that reads whole frames, of a target that is on a fake device already."""
    with fake_device() as device, torch.inference_mode():
        frame = torch.zeros(target.rows, codebooks, dtype=torch.int64, device=device)
        target.every_code(frame)  # allocates
        return trace(partial(target.every_code, frame))


def _move(value: Any, device: torch.device, seen: dict[int, Any]) -> Any:
    """Replaces every tensor that can be reached from a value; returns what replaces the value itself."""
    if isinstance(value, torch.device):
        return device
    if isinstance(value, Tensor):
        moved = value.detach().to(device)
        return nn.Parameter(moved, requires_grad=False) if isinstance(value, nn.Parameter) else moved
    if id(value) in seen:
        return value
    seen[id(value)] = value  # kept, since another object could get its id
    if isinstance(value, dict):
        for key, item in list(value.items()):
            value[key] = _move(item, device, seen)
    elif isinstance(value, list):
        value[:] = [_move(item, device, seen) for item in value]
    elif isinstance(value, tuple) and type(value) is tuple:
        return tuple(_move(item, device, seen) for item in value)
    elif isinstance(value, types.MethodType):
        _move(value.__self__, device, seen)
    elif isinstance(value, partial):
        _move(value.func, device, seen)
        _move(value.keywords, device, seen)
        return partial(value.func, *(_move(item, device, seen) for item in value.args), **value.keywords)
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            cell.cell_contents = _move(cell.cell_contents, device, seen)
        defaults = value.__kwdefaults__ or {}
        defaults.update({name: _move(default, device, seen) for name, default in defaults.items()})
    elif isinstance(value, nn.Module) or is_dataclass(value) or type(value).__module__.startswith(("mmspec", "transf")):
        _move(getattr(value, "__dict__", {}), device, seen)
    return value


def problems(traces: list[Trace]) -> list[str]:
    """What a CUDA graph cannot hold."""
    return [wait for traced in traces for wait in traced.waits]


def moved(value: Any, device: torch.device) -> Any:
    """A value whose tensors are on a fake device, and which cannot be used after."""
    return _move(value, device, {})
