"""Predicted seconds of windows that are refreshed by the outer layers, from counted launches.

On a CUDA device all calls of such a decode are launched one by one, those of the target too, since it keeps the states
of some layers. A window costs a call that keeps them, and for every pass the outer layers, the outer head if there is
one, and a sampler and a coupling, which are counted as all that lies between two calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from mmspec.decoding.target import reuses_updates
from mmspec.drafters.outer_layers import outer_layers
from mmspec.heads.outer import OuterHead
from mmspec.metrics.bench.gpu.counting import Trace, fake_device, trace
from mmspec.metrics.bench.gpu.devices import Device
from mmspec.metrics.bench.gpu.prediction import WINDOW_LAUNCHES, between, eager_seconds
from mmspec.metrics.bench.gpu.published import PublishedModel, random_weights
from mmspec.sampling import mirrored
from mmspec.training.kinds import head_sizes

FEWEST = 3  # layers of a target with something between its outer ones


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
        one = eager_seconds(outer, device) + WINDOW_LAUNCHES * device.launch
        found.append(eager_seconds(whole, device) + between(device, width) + passes.count * one)
    return found


def _calls(model: PublishedModel, rows: int, width: int, with_head: bool) -> list[tuple[Trace, Trace]] | None:
    """A call of the target that keeps states and a pass, of models of `FEWEST` layers and of one more."""
    found = []
    middle = np.full(rows, model.length // 2)
    # No memory of this machine is locked for a device that does not exist.
    locked = patch.object(mirrored, "page_locked", lambda host, device: host)
    with fake_device() as device, torch.inference_mode(), locked:
        for more in (0, 1):
            made = model.on(device, torch.bfloat16, FEWEST + more)
            target: Any = made.target(rows, width)
            if made.depth is not None or target.cell or not reuses_updates(target):
                return None
            head: OuterHead | None = None
            part = outer_layers(target, 2 + more, None)
            target.collect_layers(part.gap)
            tokens = torch.zeros(rows, width, dtype=torch.int64, device=device)
            target.forward(tokens, middle)  # allocates the cache
            if with_head:
                dim = target.layer_features().shape[-1] // 2
                heads, hidden = head_sizes(dim)
                with random_weights(device, torch.bfloat16):
                    head = OuterHead(target.vocab_size, dim, hidden, heads)
                part = outer_layers(target, 2 + more, head)
            whole = trace(partial(target.forward, tokens, middle))
            found.append((whole, trace(partial(target.forward, tokens, middle, part))))
    return found
