"""Refresh by the outer layers: what they read, that the target's cache stays whole, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import torch
from batch_runs import run
from tiny_targets import causal, llamagen, one_by_one
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit, reuses_updates
from mmspec.hf.decoder_layers import DecoderLayers
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget
from mmspec.vision.llamagen.target import LlamaGenTarget

N = 16
OUTER = EarlyExit(4, True, skip=(1, 2), reuse=True)


def add_in_place_of_layers(target: Any, before: Tensor, after: Tensor) -> None:
    """Lets layer 1 add what layers 1 and 2 added in another call, and layer 2 pass its input on."""
    if isinstance(target, LlamaGenTarget):
        target._gpt.layers[1].forward = lambda h, *rest: h + (after - before)
        target._gpt.layers[2].forward = lambda h, *rest: h
    elif isinstance(target._backbone.decoder, DecoderLayers):
        decoder: Any = target._backbone.decoder
        layers, enter = decoder._layers, decoder.enter

        def enter_with_gap(*args: Any) -> Any:
            hidden, run = enter(*args)
            added = {layers[1]: after - before, layers[2]: torch.zeros(())}
            return hidden, lambda layer, h: h + added[layer] if layer in added else run(layer, h)

        decoder.enter = enter_with_gap
    else:
        layers = target._backbone.decoder.layers
        layers[1].forward = lambda hidden_states, *args, **kwargs: hidden_states + (after - before)
        layers[2].forward = lambda hidden_states, *args, **kwargs: hidden_states


@pytest.mark.parametrize("make", [llamagen, causal, one_by_one])
def test_skipped_layers_add_what_they_added_before(make: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(3)
    old, new = torch.randint(tiny_llamagen.V, (2, 2, 5), generator=generator).unbind()
    new[:, :2] = old[:, :2]
    target, at = make(layers=4), np.array([0, 0])
    assert reuses_updates(target)
    with torch.inference_mode():
        target.collect_layers(OUTER.gap)
        target.prefill()
        whole = target.forward(old, at)
        states = target.layer_features()
        again = target.forward(old, at, OUTER)
        assert torch.equal(again.cond, whole.cond)
        found = target.forward(new, at, OUTER)
        assert torch.equal(target.layer_features(), states)  # those of the last full call
        assert torch.equal(found.cond[:, :2], whole.cond[:, :2])
        add_in_place_of_layers(target, *states.chunk(2, dim=-1))
        expected = target.forward(new, at)
    torch.testing.assert_close(found.cond, expected.cond, atol=1e-5, rtol=1e-4)
    if found.uncond is not None:
        torch.testing.assert_close(found.uncond, expected.uncond, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found.cond, whole.cond, atol=1e-3)


def test_another_thread_reads_the_same_model_as_it_is() -> None:
    """A call in the middle of one that adds what skipped layers did before."""
    tokens, at = torch.randint(tiny_llamagen.V, (2, 5), generator=torch.Generator().manual_seed(3)), np.array([0, 0])
    target, other = causal(layers=4), causal(layers=4)
    other._backbone, found = target._backbone, list[Tensor]()

    def call_the_other(layer: Any, args: Any) -> None:
        reading.remove()
        found.append(other.forward(tokens, at).cond)

    with torch.inference_mode():
        target.collect_layers(OUTER.gap)
        target.prefill()
        target.forward(tokens, at)
        other.prefill()
        alone = other.forward(tokens, at).cond
        reading = target._backbone.decoder.layers[0].register_forward_pre_hook(call_the_other)
        target.forward(tokens.flip(1), at, OUTER)
    assert torch.equal(found[0], alone)


@pytest.mark.parametrize("make", [llamagen, causal, one_by_one])
@pytest.mark.parametrize("knobs", ["", ",layers=3", ",passes=2"])
def test_the_targets_cache_stays_whole(make: Callable[..., Any], knobs: str) -> None:
    settings = [SamplingParams(temperature=0, guidance_scale=1.0 if make is one_by_one else 2.0)] * 2

    def greedy(recipe: str) -> Tensor:
        return run(make(layers=4), parse(recipe), Layout(N, width=4), settings, [1, 2], DraftResources()).tokens

    assert torch.equal(greedy(f"scd:window=4,refresh=outer{knobs}"), greedy("plain"))


def test_each_pass_is_counted() -> None:
    def calls(passes: int) -> int:
        recipe = parse(f"scd:window=4,refresh=outer,passes={passes}")
        return run(
            ToyTarget(3, 3, 8, 0), recipe, Layout(8), [SamplingParams()] * 3, [1, 2, 3], DraftResources()
        ).stats.draft_calls

    assert 0 < calls(1) < calls(3)
