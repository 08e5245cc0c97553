"""Layers of aMUSEd that reuse what they computed in earlier steps, and keepers of tokens in its pipeline."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tiny_amused import tiny_amused
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.masked.keeping import Credit, NearSure
from mmspec.vision.amused import AmusedPipeline
from mmspec.vision.amused.cached import StepCache

PROMPTS = ["a red cat", "a blue dog", "a cat"]


@pytest.fixture(scope="module")
def pipe() -> AmusedPipeline:
    return tiny_amused()


@torch.no_grad()
def test_places_are_reused_one_step_after_they_got_their_tokens(pipe: AmusedPipeline) -> None:
    model, mask = pipe.transformer, pipe.scheduler.config.mask_token_id
    generator = torch.Generator().manual_seed(0)
    hidden, pooled = torch.randn(2, 5, 16, generator=generator), torch.randn(2, 16, generator=generator)
    micro = torch.tensor([[8.0, 8.0, 0.0, 0.0, 6.0]]).expand(2, -1)
    final = torch.randint(0, 32, (2, 64), generator=generator)
    order = torch.rand(2, 64, generator=generator).argsort(1).argsort(1)
    kept, anew = StepCache(model, 2, 100), StepCache(model, 2, 2)

    def logits(cache: StepCache | None, step: int) -> Tensor:
        missing = order >= 16 * step
        states = final.masked_fill(missing, mask).unflatten(1, (8, 8))
        if cache is None:
            return model(states, hidden, pooled, micro)
        return cache.logits(torch.arange(2), step, states, missing, hidden, pooled, micro)

    for step in range(3):
        expected = logits(None, step)
        # A place without a token at the last call is computed again with it: only then it may be reused.
        assert bool((logits(kept, step) - expected).abs().max() > 1e-3) == (step == 2)
        torch.testing.assert_close(logits(anew, step), expected)
    assert (kept.computed, kept.places) == (2 * (64 + 64 + 48), 2 * 3 * 64)
    model.register_to_config(downsample=True)
    try:
        with pytest.raises(ModelError, match="joins 2 x 2 tokens"):
            StepCache(model, 2, 2)
    finally:
        model.register_to_config(downsample=False)


def test_caches_in_the_pipeline(pipe: AmusedPipeline) -> None:
    settings: dict[str, Any] = {"steps": 6, "guidance_scale": 3.0, "output_type": "latent", "refresh": 3}
    out = pipe(PROMPTS, seed=0, confidence=0.2, **settings)
    assert int((out.tokens == pipe.scheduler.config.mask_token_id).sum()) == 0
    alone = pipe(PROMPTS[1], seed=1, confidence=0.2, **settings)
    assert torch.equal(alone.tokens[0], out.tokens[1])


def test_two_threads_have_their_own_caches(pipe: AmusedPipeline) -> None:
    settings: dict[str, Any] = {"seed": 0, "steps": 6, "guidance_scale": 3.0, "output_type": "latent"}
    own = pipe(PROMPTS, **settings).tokens
    wanted = pipe(PROMPTS, refresh=3, **settings).tokens

    steps = iter([None, None, "the first step with reuse"])

    def call_within(*_: object) -> None:
        if next(steps, None) is None:
            return
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(pool.submit(pipe, PROMPTS, **settings).result().tokens, own)

    handle = pipe.transformer.transformer_layers[0].attn2.register_forward_hook(call_within)
    try:
        assert torch.equal(pipe(PROMPTS, refresh=3, **settings).tokens, wanted)
    finally:
        handle.remove()


def test_keepers_in_the_pipeline(pipe: AmusedPipeline) -> None:
    settings: dict[str, Any] = {"seed": 0, "steps": 12, "guidance_scale": 30.0, "output_type": "latent"}
    threshold = pipe(PROMPTS, confidence=0.05, **settings)
    for keep in (Credit(0.05, weight=0.0), NearSure(0.05, 1.0)):
        assert torch.equal(pipe(PROMPTS, keep=keep, **settings).tokens, threshold.tokens)
    credit = Credit(0.05, weight=2.0)
    first = pipe(PROMPTS, keep=credit, **settings)
    assert torch.equal(pipe(PROMPTS, keep=credit, **settings).tokens, first.tokens), "credit outlived a call"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0.5}, "keep=0.5 is not allowed; it must be a mmspec.masked.keeping.Keeper"),
        ({"keep": Credit}, "is not allowed; it must be a mmspec.masked.keeping.Keeper"),
        ({"refresh": 0}, "refresh=0 is not allowed"),
        ({"refresh": 2, "ahead": 2}, "ahead=2 is not possible with refresh"),
        ({"keep": Credit(), "ahead": 2}, "ahead=2 is not possible with this keep"),
    ],
)
def test_arguments_that_are_refused(pipe: AmusedPipeline, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pipe(PROMPTS, **arguments)
