"""Continuous tokens: the exact rule keeps the target distribution, and broken variants of it are found.

Distributions are compared by `mmspec.testing.latents`: two samples of 20,000 joint latents by some 170 statistics. The
limit is exceeded by chance once in a million runs, the seeds are fixed, and a bias of 0.08 standard deviations in any
of the statistics is found in 99 of 100 runs.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run, run_latents
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.sampler import Gaussian, LatentModel, LatentSampler
from mmspec.continuous.smoothed import Smoothed
from mmspec.continuous.stats import LatentStats
from mmspec.continuous.tolerance import Tolerance
from mmspec.decoding.adaptive_window import AdaptiveWindow
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter
from mmspec.decoding.window_policy import Committed, FixedWindow
from mmspec.errors import ArgumentError, ModelError
from mmspec.methods.cspd import CSpD
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import CounterRNG, WindowRNG
from mmspec.testing.latents import check_latents, compare_samples, run_toy, sample_plain
from mmspec.testing.toys import ToyBackbone, ToyHead, ToyTarget

SAMPLES = 20_000
DRAFTED = ["draft", "few-steps", "layer-skip"]
EXACT = [
    "draft+smoothed:window=4,sigma=0.3",
    "layer-skip+smoothed:window=3,sigma=0.6",
    "few-steps:window=2,sigma=0.1",
    "sjd+smoothed:window=3,sigma=0.3",
    "sjd+smoothed:window=3,sigma=0.3,start=left",
    "scd+smoothed:window=4,sigma=0.3",
    "scd+smoothed:window=4,sigma=0.3,coupling=gumbel",
]


def window(probs: Gaussian, batch_size: int, slots: int) -> tuple[Gaussian, WindowRNG]:
    """The same distributions in many rows and slots, and random numbers for them."""
    rng = CounterRNG(range(batch_size), torch.device("cpu"))
    wide = Gaussian(*(part.expand(batch_size, slots, *part.shape[2:]) for part in vars(probs).values()))
    return wide, rng.window(np.tile(np.arange(slots), (batch_size, 1)), 3)


@pytest.mark.parametrize("recipe", EXACT)
def test_exact_recipes_keep_the_target_distribution(recipe: str) -> None:
    result = check_latents(recipe, samples=SAMPLES)
    assert result.ok and result.tokens_per_call > 1.05, result


def test_reflection_coupling_accepts_as_often_as_any_coupling_can() -> None:
    sigma, rows, dim = 0.3, 30_000, 16
    step = torch.full((dim,), 0.1)
    p = Gaussian.deterministic(torch.zeros(1, 1, dim))
    q = Gaussian.deterministic(p.mean + step)
    target, draws = window(p, rows, 2)
    sampler = LatentSampler(ToyHead(dim), CounterRNG(range(rows), torch.device("cpu")), Smoothed(sigma), 9)
    draft = sampler.sample_from_normals(
        q.pack().expand(rows, 1, -1), torch.randn(rows, 1, dim, generator=torch.Generator().manual_seed(0))
    )
    verdict = sampler.verify(target.pack(), Draft(draft, q.pack().expand(rows, 1, -1)), sampler.rule, draws)
    best = 2 * NormalDist().cdf(-float(step.norm()) / (2 * sigma))
    assert float((verdict.accepted == 1).mean()) == pytest.approx(best, abs=5 * (0.25 / rows) ** 0.5)
    first = verdict.tokens[:, 0]
    assert float(first.mean(0).abs().max()) < 5 * sigma / rows**0.5
    covariance = torch.cov(first.T) / sigma**2
    assert float((covariance - torch.eye(dim)).abs().max()) < 5 * (2 / rows) ** 0.5


@pytest.mark.parametrize("drafting", DRAFTED)
@pytest.mark.parametrize("rule", ["smoothed", "tolerance:distance=0.000001", "cspd:schedule=corrected", "cspd"])
def test_the_target_as_draft_model_is_always_accepted(drafting: str, rule: str) -> None:
    name, _, knobs = rule.partition(":")
    head = ToyHead(3, sigma=0.01, path=0.8)
    rows, length = 5, 13

    def target_itself(*_: int) -> LatentModel:
        return LatentModel(ToyBackbone(rows, 3, length, 0), head)

    resources = DraftResources(
        latent_models={"draft": target_itself, "layer-skip": target_itself, "few-steps": target_itself}
    )
    layout = Layout(length=length, cell=(3,), dtype=torch.float32)
    recipe = parse(f"{drafting}+{name}:{knobs},window=4" if knobs else f"{drafting}+{name}:window=4")
    decoded = run_latents(ToyBackbone(rows, 3, length, 0), head, recipe, layout, range(rows), resources)
    assert (
        decoded.stats.window == 4
        and decoded.stats.acceptance == [1.0, 1.0, 1.0]
        and decoded.stats.tokens_per_call == 13 / 4
    )


class FixedSchedule(AdaptiveWindow):
    """Chooses windows by a fixed schedule instead of measured times, so that runs are reproducible."""

    turn = 0

    def choose(self) -> int:
        self.turn += 1
        return self.widths[(self.turn * 5) % 3]

    def steps(self) -> int:
        return 1

    def together(self) -> bool:
        return False

    def record(self, width: int, committed: Committed) -> None:
        pass


@pytest.mark.parametrize("drafting", ["draft", "scd"])
def test_adaptive_windows_keep_the_target_distribution(drafting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.decoding.adaptive_window.AdaptiveWindow", FixedSchedule)
    result = check_latents(f"{drafting}+smoothed:window=auto,sigma=0.3", samples=SAMPLES)
    assert result.ok and result.tokens_per_call > 1.05, result
    monkeypatch.undo()
    resources, layout = DraftResources(), Layout(length=40, cell=(2,), dtype=torch.float32)
    for _ in range(2):
        run_latents(ToyBackbone(1, 2, 40, 0), ToyHead(2), parse("scd+tolerance:window=auto"), layout, [0], resources)
    (adaptive_window,) = resources.adaptive_windows.values()
    assert isinstance(adaptive_window, AdaptiveWindow)
    assert adaptive_window.rate(1) > 0


class Untruncated(Smoothed):
    """Does not end the window at a rejected draft."""

    truncates = False


class ReusedNoise(Smoothed):
    """Resamples with the noise of the rejected draft."""

    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        return p.mean + (x - q.mean)


class ResampledFromTarget(Smoothed):
    """Resamples from the target distribution instead of the residual."""

    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        return p.mean + self.sigma * torch.randn(p.mean.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("twin", [Untruncated, ReusedNoise, ResampledFromTarget])
def test_broken_variants_of_the_exact_rule_are_found(twin: type[Smoothed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.continuous.smoothed.Smoothed", twin)
    result = check_latents("draft+smoothed:window=4,sigma=0.3", samples=SAMPLES, shift=0.3)
    assert not result.ok, result


def test_a_drafter_that_uses_the_same_noise_at_every_position_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_normals = LatentSampler.fixed_normals

    def same_everywhere(self: LatentSampler, positions: NDArray[np.int64]) -> Tensor:
        return fixed_normals(self, np.zeros_like(positions))

    monkeypatch.setattr(LatentSampler, "fixed_normals", same_everywhere)
    assert not check_latents("scd+smoothed:window=4,sigma=0.3,coupling=gumbel", samples=SAMPLES).ok


@pytest.mark.parametrize("factor", ["none", "paper", "code"])
def test_the_volume_factor_biases_the_published_rule(factor: str) -> None:
    # With equal deviations, no flattening and the corrected schedule, only the factor of the published rule is biased.
    recipe = parse(f"draft+cspd:window=2,flatten=1,schedule=corrected,factor={factor},sigma=0.4")
    head, draft = ToyHead(1, sigma=0.4), ToyHead(1, 0.15, sigma=0.4, path=0.7)
    decoded = run_toy(recipe, range(SAMPLES), 0, 1, 2, head, draft)
    expected = sample_plain(CSpD(1.0, "none", "corrected", 0.4, 0.0), SAMPLES, 0, 1, 2, head)
    score, limit = compare_samples(decoded.tokens, expected)
    assert (score <= limit) == (factor == "none"), score


def test_the_published_schedule_is_biased_and_reports_no_bound() -> None:
    result = check_latents("draft+cspd:sigma=0.3", samples=5000)
    head = ToyHead(2, sigma=0.1)
    stats = run_toy(parse("draft+cspd:window=4,prefill=0"), range(3), 0, 2, 9, head, head).stats
    assert stats.tv_bound > 0.6  # 1 for every tested draft
    assert not result.ok and not parse("draft+cspd").exact and result.tokens_per_call == 2.0
    assert result.acceptance[0] is not None and result.acceptance[0] < 1


def test_a_rejected_draft_is_replaced_by_a_sample_of_the_target() -> None:
    rule = CSpD(1.0, "paper", "published", 0.01, 0.0)
    # The volume of p is so small that the residual accepts no sample; the published code would leave zeros.
    p = Gaussian(
        torch.full((1, 1, 4), 5.0), torch.full((1, 1, 4), -2.0), torch.full((1, 1), 50.0), torch.empty(1, 1, 0)
    )
    q = Gaussian(p.mean, p.log_sigma, torch.full((1, 1), -50.0), p.marks)
    wide, draws = window(p, 500, 1)
    draft, _ = window(q, 500, 1)
    token = rule.resample(wide, draft, draft.mean, draws)
    assert float(token.mean()) == pytest.approx(5.0, abs=0.02)
    assert float(token.std()) == pytest.approx(np.exp(-2.0), rel=0.1)


def test_tolerance_stays_within_its_distance() -> None:
    result = check_latents("draft+tolerance:distance=0.2,window=4", samples=2000)
    assert 0 < result.distance < 0.2 and result.tokens_per_call > 1.2
    # Converged Jacobi iterations are the target's own latents.
    backbone, head = ToyBackbone(4, 2, 9, 0), ToyHead(2)
    layout = Layout(length=9, cell=(2,), dtype=torch.float32)
    plain = run_latents(ToyBackbone(4, 2, 9, 0), head, parse("plain"), layout, range(4))
    jacobi = run_latents(backbone, head, parse("scd+tolerance:distance=0.00001,window=6"), layout, range(4))
    assert torch.allclose(jacobi.tokens, plain.tokens, atol=1e-4) and isinstance(jacobi.stats, LatentStats)
    assert jacobi.stats.farthest <= 1e-5
    assert plain.stats.tokens_per_call == 1.0 and jacobi.stats.target_calls <= plain.stats.target_calls


def test_rows_do_not_depend_on_their_batch() -> None:
    for recipe in ("draft+smoothed:window=4", "scd+smoothed:window=3", "sjd+cspd:window=3", "draft+tolerance:window=3"):
        head, draft = ToyHead(2, sigma=0.1), ToyHead(2, 0.05, sigma=0.1)
        together = run_toy(parse(recipe), [3, 4, 5], 0, 2, 9, head, draft)
        alone = run_toy(parse(recipe), [4], 0, 2, 9, head, draft)
        assert torch.allclose(together.tokens[1], alone.tokens[0], atol=1e-5), recipe


class Guided(ToyBackbone):
    """A toy with an unconditional output: half of the conditional one, shifted."""

    def prefill(self) -> Logits:
        return Logits(super().prefill().cond, super().prefill().cond / 2 - 0.2)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        cond = super().forward(tokens, at).cond
        return Logits(cond, cond / 2 - 0.2)


class GuidedHead(ToyHead):
    """A head with guidance 1.7 and noise of standard deviation 0.8."""

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        assert logits.uncond is not None
        mixed = torch.lerp(logits.uncond, logits.cond, 1.7)
        return super().__call__(Logits(mixed, None), noise * 0.8, positions)


def test_guidance_and_temperature_are_part_of_the_target_distribution() -> None:
    layout, head = Layout(4, cell=(2,), dtype=torch.float32), GuidedHead(2)

    def decode(recipe: str, seeds: range) -> Any:
        resources = DraftResources(
            latent_models={"draft": lambda _: LatentModel(Guided(SAMPLES, 2, 4, 0, spread=0.9), GuidedHead(2, 0.15))}
        )
        return run_latents(Guided(SAMPLES, 2, 4, 0), head, parse(recipe), layout, seeds, resources)

    expected = decode("plain+smoothed:sigma=0.3", range(10**9, 10**9 + SAMPLES)).tokens
    for recipe in ("draft+smoothed:window=4,sigma=0.3", "scd+smoothed:window=3,sigma=0.3"):
        decoded = decode(recipe, range(SAMPLES))
        score, limit = compare_samples(decoded.tokens, expected)
        assert score <= limit and decoded.stats.tokens_per_call > 1.05, recipe
    unguided = sample_plain(Smoothed(0.3), SAMPLES, 0, 2, 4, ToyHead(2))
    assert compare_samples(unguided, expected)[0] > limit


class EndingHead(ToyHead):
    """A head with one mark: 1 on the last latent of a row, which its noise decides."""

    marks = 1

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        dist = super().__call__(logits, noise, positions)
        return Gaussian.deterministic(dist.mean, (noise[..., :1] + logits.cond[..., :1] > 1.2).float())


def test_marks_are_those_of_the_target() -> None:
    layout = Layout(4, cell=(3,), dtype=torch.float32, ends=lambda tokens: tokens[..., 2] == 1, pad=0)

    def sibling(batch_size: int) -> LatentModel:
        return LatentModel(ToyBackbone(batch_size, 2, 4, 0, spread=0.5), EndingHead(2, 0.1))

    resources = DraftResources(latent_models={"draft": lambda _: sibling(SAMPLES)})
    recipe = parse("draft+smoothed:window=4,sigma=0.3")
    head = EndingHead(2)
    target = ToyBackbone(SAMPLES, 2, 4, 0)
    decoded = run_latents(target, head, recipe, layout, range(SAMPLES), resources)
    seeds = range(10**9, 10**9 + SAMPLES)
    state = BatchState(seeds, layout, 1, torch.device("cpu"))
    rule, meter = Smoothed(0.3), Meter(torch.device("cpu"), SAMPLES)
    sampler = LatentSampler(head, CounterRNG(seeds, torch.device("cpu")), rule, 4)
    RunningBatch(ToyBackbone(SAMPLES, 2, 4, 0), None, rule, sampler, state, FixedWindow(1), meter).start()
    ends = decoded.tokens[..., 2]
    assert 0.1 < float(ends.any(1).float().mean()) < 0.9 and float(ends.sum(1).max()) == 1
    score, limit = compare_samples(decoded.tokens[:, 1:, :2], state.result()[:, 1:, :2])
    assert score <= limit and decoded.stats.tokens_per_call > 1.1
    assert abs(float(ends.mean() - state.result()[..., 2].mean())) < 5 * (0.5 / SAMPLES / 4) ** 0.5


@pytest.mark.parametrize("recipe", ["plain+smoothed", "draft+smoothed", "sjd+smoothed", "scd+smoothed:coupling=gumbel"])
def test_a_row_does_not_depend_on_rows_that_end_before_it(recipe: str) -> None:
    layout = Layout(6, cell=(3,), dtype=torch.float32, ends=lambda tokens: tokens[..., 2] == 1, pad=0)

    def decode(seeds: list[int]) -> Tensor:
        rows = len(seeds)
        sibling = LatentModel(ToyBackbone(rows, 2, 6, 0, spread=0.5), EndingHead(2, 0.1))
        resources = DraftResources(latent_models={"draft": lambda _: sibling})
        return run_latents(ToyBackbone(rows, 2, 6, 0), EndingHead(2), parse(recipe), layout, seeds, resources).tokens

    together = decode(list(range(12)))
    lengths = (together[..., 2] == 1).any(1)
    assert 3 < int(lengths.sum()) < 12
    for row in range(12):
        assert torch.allclose(decode([row]), together[row : row + 1], atol=1e-4), row


def test_a_draft_with_another_mark_ends_the_window() -> None:
    """Its latent stays if it was accepted, with the mark of the target; the slots after it have read the wrong mark."""
    sampler = LatentSampler(EndingHead(2), CounterRNG([0] * 4, torch.device("cpu")), Smoothed(0.3), 9)
    positions = np.tile(np.arange(4), (4, 1))
    p = Gaussian.deterministic(torch.zeros(4, 4, 2), torch.zeros(4, 4, 1)).pack()
    drafts = torch.zeros(4, 3, 3)
    drafts[1, 0, 2] = drafts[2, 1, 2] = drafts[3, 2, 2] = 1.0  # another mark in slot 0, 1, 2 of rows 1, 2, 3
    draws = CounterRNG(range(4), torch.device("cpu")).window(positions, 1)
    verdict = sampler.verify(p, Draft(drafts, p[:, :3]), sampler.rule, draws)
    assert verdict.accepted.tolist() == [3, 0, 1, 2]
    assert not verdict.tokens[:, :3, :2].any() and not verdict.tokens[..., 2].any()


def test_rules_and_recipes_for_other_tokens_are_refused() -> None:
    layout = Layout(length=3, cell=(2,), dtype=torch.float32)
    for recipe in ("scd", "draft+lantern", "sjd:window=4"):
        with pytest.raises(ArgumentError, match="for discrete tokens.*smoothed"):
            run_latents(ToyBackbone(1, 2, 3, 0), ToyHead(2), parse(recipe), layout, [0])
    for recipe in ("draft+smoothed", "table+smoothed", "scd+smoothed:start=up", "few-steps"):
        with pytest.raises(ArgumentError, match="not possible"):
            run_latents(ToyBackbone(1, 2, 3, 0), ToyHead(2), parse(recipe), layout, [0])
    for recipe in ("smoothed", "scd+cspd", "sjd+tolerance"):
        with pytest.raises(ArgumentError, match="for tokens that are vectors"):
            run(ToyTarget(1, 3, 4, 0), parse(recipe), Layout(4), [SamplingParams()], [0])
    with pytest.raises(ModelError, match="finite"):
        run_latents(ToyBackbone(1, 2, 3, 0), ToyHead(2, shift=torch.inf), parse("plain"), layout, [0])
    sampler = LatentSampler(ToyHead(2), CounterRNG([0], torch.device("cpu")), Tolerance(0.0), 3)
    with pytest.raises(ArgumentError, match="must be the same object"):
        sampler.verify(torch.zeros(1, 1, 5), Draft(torch.empty(0), torch.empty(0)), Smoothed(1.0), None)  # type: ignore[arg-type]


def test_verification_does_not_modify_the_distributions() -> None:
    sampler = LatentSampler(ToyHead(2), CounterRNG([0, 1], torch.device("cpu")), Tolerance(0.0), 9)
    positions = np.tile(np.arange(3), (2, 1))
    p = sampler(Logits(torch.zeros(2, 3, 2), None), Numbers(positions))
    before = p.clone()
    draws = CounterRNG([0, 1], torch.device("cpu")).window(positions, 1)
    verdict = sampler.verify(p, Draft(torch.ones(2, 2, 2), p[:, :2]), sampler.rule, draws)
    assert isinstance(verdict, Verdict) and torch.equal(p, before) and verdict.accepted.tolist() == [0, 0]
    assert torch.equal(verdict.tokens[:, 0], p[:, 0, :2])


def test_plain_decoding_with_a_rule_samples_the_distribution_that_the_rule_keeps() -> None:
    result = check_latents("plain+smoothed:sigma=0.3", samples=SAMPLES)
    assert result.ok and result.tokens_per_call == 1.0, result
    layout = Layout(length=3, cell=(2,), dtype=torch.float32)
    without_noise, with_noise = (
        run_latents(ToyBackbone(9, 2, 3, 0), ToyHead(2), parse(name), layout, range(9)).tokens[:, 0]
        for name in ("plain", "plain+smoothed:sigma=0.0001")
    )
    assert 0 < float((with_noise - without_noise).abs().max()) < 1e-3
    with pytest.raises(ArgumentError, match="for tokens that are vectors"):
        run(ToyTarget(1, 3, 4, 0), parse("plain+smoothed"), Layout(4), [SamplingParams()], [0])
