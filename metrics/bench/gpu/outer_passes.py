"""Predicted seconds of windows that are refreshed by the outer layers, from counted launches.

A window costs a captured call that keeps the states of some layers, and for every pass a captured call of the outer
layers, with the outer head if there is one, and a few launches besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mmspec.decoding.target import reuses_updates
from mmspec.methods.outer.drafter import outer_layers
from mmspec.methods.outer.head import OuterHead
from mmspec.metrics.bench.gpu.counting import Trace, fake_device, trace
from mmspec.metrics.bench.gpu.devices import Device
from mmspec.metrics.bench.gpu.prediction import between, seconds_of
from mmspec.metrics.bench.gpu.published import PublishedModel, random_weights
from mmspec.training.drafter_kind import head_sizes

FEWEST = 3  # layers of a target with something between its outer ones
PASS_LAUNCHES = 7  # of a pass besides its call: the window that is read again, and the coupling; counted as those of a
# window are (`tests/decoding/test_window_counts.py`)


@dataclass(frozen=True)
class Passes:
    """The passes of a refresh by the outer layers.

    Attributes:
        count: Passes of a window.
        layers: Of the target, in each.
        head: Whether an outer head of two layers runs in each.
    """

    count: int
    layers: int
    head: bool


def outer_seconds(
    model: PublishedModel, device: Device, rows: int, windows: Sequence[tuple[int, Passes]]
) -> list[float] | None:
    """Predicted seconds of windows, with what lies between two of them; None if the model cannot reuse its updates.

    Args:
        model: The model.
        device: The device.
        rows: Rows, B.
        windows: The width of each, and its passes.
    """
    found = []
    counted = {(width, p.head): _calls(model, rows, width, p.head) for width, p in windows}
    for width, passes in windows:
        calls = counted[width, passes.head]
        if calls is None:
            return None
        (few, few_outer), (more, more_outer) = calls
        # All layers are equal: a model of `FEWEST` layers with two outer ones, and one more of each.
        whole = few.followed_by(more.without(few), model.layers - FEWEST)
        outer = few_outer.followed_by(more_outer.without(few_outer), passes.layers - 2)
        one = seconds_of(outer, device) + PASS_LAUNCHES * device.kernel
        found.append(seconds_of(whole, device) + between(device, width) + passes.count * one)
    return found


def _calls(model: PublishedModel, rows: int, width: int, with_head: bool) -> list[tuple[Trace, Trace]] | None:
    """A call of the target that keeps states and a pass, of models of `FEWEST` layers and of one more."""
    found = []
    with fake_device() as device, torch.inference_mode():
        for more in (0, 1):
            made = model.on(device, torch.bfloat16, FEWEST + more)
            target: Any = made.target(rows, width)
            if made.depth is not None or target.cell or not reuses_updates(target):
                return None
            read, count = target.rows * target.cfg_factor, 2 + more
            end = min(model.prompt + model.length // 2, target.capacity)
            tokens = torch.zeros(read, width, dtype=torch.int64, device=device)
            slots = torch.arange(end - width, end, device=device).repeat(read, 1)
            features = target.read(tokens, slots, end)[1]  # allocates the cache
            dim, head = features.shape[-1], None
            if with_head:
                heads, hidden = head_sizes(dim)
                with random_weights(device, torch.bfloat16):
                    head = OuterHead(target.vocab_size, dim, hidden, heads)
            part = outer_layers(target, count, head)
            target.collect_layers(part.gap)
            states = features.new_zeros(read, width, 2 * dim)
            whole = partial(target.read, tokens, slots, end, states=states)
            found.append((trace(whole), trace(partial(whole, part))))
    return found
