"""The target without some layers: which of them run, that its own cache stays whole, and how they are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import torch
from batch_runs import run
from tiny_targets import causal, llamagen

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit, skips_layers
from mmspec.methods.swift.head import SkippedLayers
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.vision.llamagen.target import LlamaGenTarget

N = 16


def without(target: Any, layer: int) -> None:
    """Lets a layer of the model pass its input on in every call."""
    if isinstance(target, LlamaGenTarget):
        target._gpt.layers[layer].forward = lambda h, *rest: h
    else:
        target._backbone.decoder.layers[layer].forward = lambda hidden_states, *args, **kwargs: hidden_states


@pytest.mark.parametrize("make", [llamagen, causal])
def test_skipped_layers_pass_their_input_on(make: Callable[[], Any]) -> None:
    x = torch.randint(tiny_llamagen.V, (2, 3), generator=torch.Generator().manual_seed(3))
    target, at = make(), np.array([0, 0])
    assert skips_layers(target) and target.layers >= 2
    with torch.inference_mode():
        target.prefill()
        whole = target.forward(x, at)
        found = target.forward(x, at, EarlyExit(target.layers, True, skip=(0,)))
        last = target.forward(x, at, EarlyExit(target.layers, True, skip=(target.layers - 1,)))
        first = target.forward(x, at, EarlyExit(target.layers - 1, True))
        torch.testing.assert_close(last.cond, first.cond)
        without(target, 0)
        expected = target.forward(x, at)
    torch.testing.assert_close(found.cond, expected.cond, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found.cond, whole.cond, atol=1e-3)


@pytest.mark.parametrize("make", [llamagen, causal])
def test_the_targets_cache_stays_whole(make: Callable[[], Any]) -> None:
    settings = [SamplingParams(temperature=0, guidance_scale=2.0)] * 2

    def greedy(recipe: str) -> torch.Tensor:
        target = make()
        chosen = SkippedLayers(target.vocab_size, 8, target.layers)
        resources = DraftResources(heads={"swift": chosen})
        return run(target, parse(recipe), Layout(N, width=4), settings, [1, 2], resources).tokens

    assert torch.equal(greedy("swift:window=4"), greedy("plain"))


def test_the_share_of_skipped_layers() -> None:
    chosen = SkippedLayers(3, 8, 5)
    chosen.order.copy_(torch.tensor([3, 1, 2, 4]))
    assert [chosen.skip(share) for share in (0.0, 0.4, 0.6, 1.0)] == [(3,), (1, 3), (1, 2, 3), (1, 2, 3, 4)]
