"""One-step generators: noise of the target's map, whole images as drafts, the errors that they invite, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from torch import Tensor

import mmspec.drafters.jacobi
import mmspec.methods.one_step.drafter
import mmspec.testing.exactness
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError, ModelError
from mmspec.methods.one_step.drafter import OneStepRunner, WholeImageRunner
from mmspec.methods.one_step.head import OneStepHead
from mmspec.methods.one_step.training import noise_of
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft
from mmspec.testing.exactness import check
from mmspec.testing.toys import FEATURES, ToyTarget, toy_resources

GRID = Layout(length=5, width=2)


def images(seeds: Any) -> Tensor:
    """Some image for each seed."""
    return torch.from_numpy((seeds[:, None] * 7 + np.arange(5) ** 2) % 3)


def images_that_are(tokens: Tensor, seeds: Any) -> Tensor:
    """The same tokens for all seeds."""
    return tokens


def test_noise_made_backwards_picks_the_tokens_and_is_gumbel_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.tensor([0.6, 0.3, 0.1, 0.0]).repeat(40_000, 1)
    tokens = p.multinomial(1, generator=generator)[:, 0]
    noise = noise_of(p, tokens, generator)
    assert torch.equal((p.log() + noise).argmax(-1), tokens)
    # Mean 0.5772 and variance pi**2 / 6 of each; five standard errors are 0.032 and 0.09.
    torch.testing.assert_close(noise.mean(0), torch.full((4,), 0.5772), atol=0.032, rtol=0)
    torch.testing.assert_close(noise.var(0), torch.full((4,), 1.6449), atol=0.09, rtol=0)


def test_a_place_does_not_read_its_own_noise() -> None:
    head = OneStepHead(3, 8, 16, 2, max_position_embeddings=8)
    noise = torch.randn(1, 4, 3, requires_grad=True)
    tokens, places = torch.tensor([[-1, 1, 2, -1, -1, 0, -1]]), torch.arange(-1, 6)[None]
    out = head(tokens, places, noise, torch.randn(1, 8))
    assert out.shape == (1, 5, 8)
    for slot in range(5):
        (reads,) = torch.autograd.grad(out[0, slot].sum(), noise, retain_graph=True)
        assert not reads[0, slot:].any() and not reads[0, 2].any()  # slot 2 has a token
    (reads,) = torch.autograd.grad(out[0, 4].sum(), noise)
    assert reads[0, 0].any() and reads[0, 1].any() and reads[0, 3].any()


def test_whole_images_are_exact_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    def resources(*arguments: Any) -> DraftResources:
        return replace(toy_resources(*arguments), models={"one-step": images})

    monkeypatch.setattr(mmspec.testing.exactness, "toy_resources", resources)
    for recipe in ("one-step:window=6", "scd:window=4,start=one-step"):
        result = check(recipe, SamplingParams(temperature=0.8, guidance_scale=1.5), 20_000, layout=GRID, seed=1)
        assert result.ok, result


def test_an_image_that_is_the_target_s_own_is_accepted_whole() -> None:
    settings = [SamplingParams(temperature=0)] * 2
    plain = run(ToyTarget(2, 3, 5, 0), parse("plain"), GRID, settings, [1, 2], DraftResources())
    own = DraftResources(models={"one-step": lambda seeds: plain.tokens})
    out = run(ToyTarget(2, 3, 5, 0), parse("one-step:window=5"), GRID, settings, [1, 2], own)
    assert torch.equal(out.tokens, plain.tokens) and out.stats.target_calls == 2  # the prefill samples the first token
    assert out.stats.draft_calls == 1


def test_a_generator_that_reads_the_noise_of_its_own_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = OneStepRunner.probs

    def peeking(self: OneStepRunner, state: BatchState, draft: Draft, is_new: Tensor, noise: Tensor) -> Tensor:
        q = honest(self, state, draft, is_new, noise)
        return (q.log() + 0.5 * noise).softmax(-1)  # as if it had been predicted so

    monkeypatch.setattr(OneStepRunner, "probs", peeking)
    result = check("one-step:window=5", SamplingParams(), 20_000, layout=GRID, seed=1)
    assert not result.ok, result


def test_an_image_tested_as_a_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of published one-step drafts: a q that the tokens were not drawn from."""

    def resources(*arguments: Any) -> DraftResources:
        return replace(toy_resources(*arguments), models={"one-step": images})

    honest = WholeImageRunner.probs
    monkeypatch.setattr(mmspec.testing.exactness, "toy_resources", resources)
    monkeypatch.setattr(
        mmspec.methods.one_step.drafter.OneStepDrafter,
        "extend",
        lambda self, state, draft, reused, draws: Draft(
            (found := honest(self._generator, state, draft, draft.tokens == 0, draft.q)).argmax(-1),
            (found + 1) / (found + 1).sum(-1, keepdim=True),
        ),
    )
    assert not check("one-step:window=5", SamplingParams(), 20_000, layout=GRID, seed=1).ok


def test_refusals() -> None:
    settings, recipe = [SamplingParams()], parse("one-step")
    with pytest.raises(ArgumentError, match="one_step_layers=0 is not allowed"):
        OneStepHead(4, FEATURES, 16, 2, one_step_layers=0)
    for wrong, reason in (
        (torch.zeros(2, 3, dtype=torch.int64), r"gave \[2, 3\] of torch.int64; it must give int64 \[1, N\]"),
        (torch.zeros(1, 3), r"gave \[1, 3\] of torch.float32"),
        (torch.full((1, 3), 3), "gave tokens outside of 0 to 2"),
    ):
        given = DraftResources(models={"one-step": partial(images_that_are, wrong)})
        with pytest.raises(ModelError, match=reason):
            run(ToyTarget(1, 3, 3, 0), recipe, Layout(3), settings, [0], given)
