"""Moshi in its own `generate`, with recipes that decode the depth of its frames."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_speech as tiny
import torch
from torch import Tensor

import mmspec
from mmspec.audio.models.moshi.decoding import MoshiDepth
from mmspec.decoding.layout import Layout
from mmspec.errors import ArgumentError
from mmspec.hf.cache_name import cache_input, cache_of
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_samples, check_windows


def call(model: Any, frames: int = 8, **more: Any) -> Any:
    how = {"do_sample": False, "depth_decoder_do_sample": False, "return_audio_codes": True}
    prompts = model.get_unconditional_inputs(num_samples=2)
    prompts["input_ids"] = torch.tensor([[12], [3]])
    return model.generate(**prompts, max_new_tokens=frames, **{**how, **more})


def depth(model: Any) -> Any:
    hidden = torch.randn(1, 16, generator=torch.Generator().manual_seed(0))

    def make(batch_size: int, window: int) -> MoshiDepth:
        first = torch.full((batch_size, 1), 3)
        return MoshiDepth(model.depth_decoder, hidden.expand(batch_size, -1), first, 0, window)

    return make


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=4,start=up"])
def test_greedy_matches_the_models_own_generate(recipe: str) -> None:
    model = tiny.moshi()
    own = call(model)
    ours = call(model, custom_generate=mmspec.generate, recipe=recipe)
    assert torch.equal(ours.sequences, own.sequences)
    assert torch.equal(ours.audio_codes, own.audio_codes)
    torch.testing.assert_close(ours.audio_sequences, own.audio_sequences)


@pytest.mark.releases
def test_windows_match_single_tokens_of_transformers() -> None:
    model = tiny.moshi()
    make = depth(model)
    assert check_windows(make, 4, window=2) < 1e-4
    codes = torch.tensor([[5, 1, 0]])
    target = make(1, 4)
    ours = torch.cat([target.prefill().cond, target.forward(codes, torch.zeros(1).long().numpy()).cond], dim=1)
    past: dict[str, Any] = {}
    own: list[Tensor] = []
    for token in (torch.tensor([[3]]), *codes.split(1, dim=1)):  # in one chunk its attention would not be causal
        out = model.depth_decoder(token, target.inputs[0][:, None], use_cache=True, **past)
        past = cache_input(model.depth_decoder, cache_of(out))
        own.append(out.logits)
    torch.testing.assert_close(ours, torch.cat(own, dim=1))


def test_samples_follow_the_target_distribution() -> None:
    make = depth(tiny.moshi(codes=2))
    found = check_samples(make, Layout(4), "scd:window=3,start=left", SamplingParams(1.2, top_p=0.9), samples=4_000)
    assert found.ok and found.tokens_per_call > 1, found


def test_errors() -> None:
    model = tiny.moshi()
    with pytest.raises(ArgumentError, match="draft_model is not possible for Moshi"):
        call(model, custom_generate=mmspec.generate, draft_model=model)
    with pytest.raises(ArgumentError, match="eos_token_id is not possible for Moshi"):
        call(model, custom_generate=mmspec.generate, eos_token_id=2)
