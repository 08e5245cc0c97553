"""Kernels against their references in float64, and against the torch code of `mmspec.sampling`.

Without a CUDA device they run in Triton's interpreter, on small grids; `pytest -m gpu` runs the same tests on a device.
docs/kernels.md says which bugs they catch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.codebook import Codebook, nearest, similar
from mmspec.errors import ArgumentError
from mmspec.registry import RULES
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.constraints import Constraint, ForcedCells
from mmspec.sampling.k_seq import verify_drafts
from mmspec.sampling.logits import Logits
from mmspec.sampling.multi_codebook import MAX_SAMPLES
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft, ratio, residual, sample, verify
from mmspec.sampling.rng import CounterRNG
from mmspec.sampling.sampler import ColumnSampler, TokenSampler
from mmspec.sampling.tree import Chosen, Independent, Siblings, Tree, TreeDraft, WithoutReplacement
from mmspec.sampling.tree_rejection import TreeVerdict, verify_tree

pytest.importorskip("triton")

import triton
import triton.language as tl

from mmspec.kernels import (
    accept,
    column_drafts,
    columns,
    commit,
    coupling,
    draft_tree,
    fused_sampler,
    k_seq,
    philox,
    softmax_stats,
    token_init,
    tree,
)
from mmspec.kernels import residual as residual_kernel
from mmspec.kernels.backend import choose, launchable
from mmspec.kernels.rule import KernelRule

pytestmark = pytest.mark.usefixtures("poison")
LAST = 1 - 2.0**-24  # the largest random number


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def numbers(*shape: int) -> Tensor:
    """Uniform numbers as in `mmspec.sampling.rng`, including both ends."""
    u = torch.randint(2**24, shape).float() / 2**24
    u.flatten()[0], u.flatten()[-1] = 0.0, LAST
    return u


def run_sampler(
    cond: Tensor, uncond: Tensor | None = None, drafts: Tensor | None = None, u: Tensor | None = None, **settings: Any
) -> fused_sampler.FusedSamples:
    """Kernel 1; settings that are not given are off."""
    batch, width, _ = cond.shape

    def per_row(name: str, default: float | None, dtype: torch.dtype) -> Any:
        value = settings.get(name, default)
        return None if value is None else torch.as_tensor(value, dtype=dtype, device=cond.device).expand(batch)

    chosen = fused_sampler.Settings(
        torch.as_tensor(settings.get("scale", 1.0), device=cond.device).expand(batch, width),
        per_row("temperature", 1.0, torch.float32),
        per_row("top_k", None, torch.int32),
        per_row("top_p", None, torch.float32),
        settings.get("kind"),
        settings.get("allowed"),
    )
    u = torch.full((batch, width), 0.5, device=cond.device) if u is None else u
    return fused_sampler.fused_sample(cond, uncond, chosen, u, drafts)


def same_tokens(ours: Tensor, theirs: Tensor, weights: Tensor, u: Tensor) -> bool:
    """Whether tokens are equal; on a device, a sample within 1e-5 of the edge between two tokens may be either."""
    wrong = ours != theirs
    if not ours.is_cuda or not bool(wrong.any()):
        return not bool(wrong.any())
    cdf = weights.double().cumsum(-1)
    edges = cdf / cdf[..., -1:]
    high = edges.gather(-1, ours.clamp(min=0)[..., None])[..., 0]
    low = (edges - weights / cdf[..., -1:]).gather(-1, ours.clamp(min=0)[..., None])[..., 0]
    return bool((~wrong | ((low - 1e-5 <= u) & (u <= high + 1e-5) & (ours >= 0))).all())


def test_uniforms_equal_the_core_s(device: torch.device) -> None:
    seeds = [7, -3, 2**63 + 5, 2**32 - 1]
    positions = np.array([[0, 1, 2**31], [5, 6, 2**32 - 1], [1, 2, 3], [9, 9, 9]])
    indices = np.arange(5, 7)
    core = CounterRNG(seeds, torch.device("cpu"))
    wanted = torch.stack(core.uniforms(positions[..., None], 4, indices))
    as_int64 = torch.tensor([(seed + 2**63) % 2**64 - 2**63 for seed in seeds], device=device)
    there = torch.from_numpy(positions).to(device)
    given: tuple[Any, ...] = (as_int64, there, torch.full_like(there, 4), 5, 2)
    assert torch.equal(philox.uniforms(*given).cpu(), wanted)
    assert torch.equal(philox.uniforms_reference(*given).cpu(), wanted)
    for of_slots in (np.array([[0, 7, 1]]), np.arange(12).reshape(4, 3)):
        wanted = torch.stack(core.uniforms(positions, 4, of_slots))[..., None]
        given = (as_int64, there, torch.full_like(there, 4), 0, 1, torch.from_numpy(of_slots).to(device))
        assert torch.equal(philox.uniforms(*given).cpu(), wanted)
        assert torch.equal(philox.uniforms_reference(*given).cpu(), wanted)


def test_a_token_that_only_one_side_of_guidance_forbids(device: torch.device) -> None:
    """Allowed without guidance where the unconditional logits forbid it; never where the conditional ones do."""
    cond = torch.tensor([[[0.0, 1.0, -torch.inf]]], device=device)
    uncond = torch.tensor([[[0.0, -torch.inf, 0.0]]], device=device)
    stats = run_sampler(cond, uncond, scale=1.0).stats
    assert torch.allclose(stats.dense(), cond.softmax(-1))
    tokens = [int(run_sampler(cond, uncond, u=torch.full((1, 1), u, device=device)).tokens) for u in (0.1, 0.9)]
    assert tokens == [0, 1]
    assert int(run_sampler(cond, uncond, scale=2.0).tokens) == -1  # no probabilities: the sampler raises an error


@triton.jit
def _divide(numbers, divisors, quotients, wanted, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(numbers + lanes), tl.load(divisors + tl.program_id(0))
    tl.store(quotients + lanes, softmax_stats.quotient(a, b))
    tl.store(wanted + lanes, tl.div_rn(a, b + tl.zeros_like(a)))


def test_quotients_are_rounded_to_nearest(device: torch.device) -> None:
    rows = 4 if device.type == "cpu" else 4096
    numbers = torch.randn(rows, 1024, device=device) * 10.0 ** torch.randint(-6, 6, (rows, 1), device=device)
    numbers[0, :4] = torch.tensor([torch.inf, -torch.inf, 0.0, torch.nan])
    divisors = 10 ** (8 * torch.rand(rows, device=device) - 4)
    quotients, wanted = torch.empty_like(numbers), torch.empty_like(numbers)
    _divide[(rows,)](numbers, divisors, quotients, wanted, BLOCK=1024)
    assert torch.equal(quotients.nan_to_num(-1), wanted.nan_to_num(-1))


SHAPES = [
    (2, 1, 1, torch.float32), (3, 2, 7, torch.bfloat16), (3, 1, 130, torch.float16), (4, 1, 1000, torch.bfloat16),
    (1, 1, 16384 + 3, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "width", "vocab", "dtype"), SHAPES, ids=lambda v: str(v).removeprefix("torch."))
def test_slots(
    device: torch.device, batch: int, width: int, vocab: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All settings at once: slices of a larger vocabulary, ties by rounding, forbidden tokens, greedy rows."""
    logits = ((torch.randn(2, batch, width, vocab + 5) * 4).round() / 2).to(dtype)[..., 2 : 2 + vocab]
    cond, uncond = logits.to(device)
    allowed = torch.rand(3, vocab, device=device) < 0.7
    allowed[:, 0] = True
    settings: dict[str, Any] = {
        "scale": 1 + 3 * torch.rand(batch, width, device=device),
        "temperature": torch.tensor([1.0, 0.7, 0.0, 1.3])[:batch],
        "top_k": torch.tensor([0, 3, 0, 5])[:batch],
        "top_p": torch.tensor([0.9, 0.8, 1.0, 0.5])[:batch],
        "kind": torch.randint(3, (batch, width), dtype=torch.int32, device=device),
        "allowed": allowed,
    }
    u = numbers(batch, width).to(device)
    drafts = torch.randint(-1, vocab, (batch, width), device=device)
    for whole in [True, False] if vocab == 130 else [True]:
        if not whole:  # read in chunks, as longer rows are
            monkeypatch.setattr(fused_sampler, "WHOLE", 0)
            monkeypatch.setattr(fused_sampler, "CHUNK", 128)
        got = run_sampler(cond, uncond, drafts, u, **settings)
        with monkeypatch.context() as patch:
            patch.setenv("MMSPEC_KERNELS", "torch")
            wanted = run_sampler(cond, uncond, drafts, u, **settings)
        assert torch.allclose(got.stats.floats, wanted.stats.floats, rtol=1e-5, atol=1e-6)
        assert torch.equal(got.stats.ints, wanted.stats.ints)
        assert torch.allclose(got.chance, wanted.chance, rtol=1e-4, atol=1e-7)
        assert same_tokens(got.tokens, wanted.tokens, wanted.stats.dense(torch.float64), u)


def misleading_rows() -> Tensor:
    """Rows [15, 300] that mislead a search: ties everywhere, one token of all mass, neighbors of one bit, logits of any
    size and sign, hardly any token.
    """
    ramp = torch.arange(300.0)
    one = torch.full((300,), -1e9).index_fill(0, torch.tensor([7]), 1.0)
    some = torch.full((300,), -torch.inf).index_fill(0, torch.tensor([3, 140, 299]), -5.0)
    nudged = (torch.full((300,), 3.0).view(torch.int32) + (ramp % 5).int()).view(torch.float32)
    steps, sizes = (ramp % 3) * 40, 10.0 ** (ramp % 40 - 36)
    rows = [ramp * 0, ramp * 0 - 1e30, one, some, nudged, -nudged, steps, sizes, -sizes, ramp * 1e30, ramp / 37, -ramp]
    rows += [ramp * 1e-40, ramp * 1e-7 - 104, (ramp * 7919 % 300) / 11]
    return torch.stack(rows)


@pytest.mark.parametrize("whole", [True, False])
def test_the_kth_largest_of_rows_that_a_search_may_lose_its_way_in(
    device: torch.device, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(fused_sampler, "WHOLE", 0)
        monkeypatch.setattr(fused_sampler, "CHUNK", 128)
    rows = misleading_rows()
    for first in (1, 143) if whole else (290,):
        k = (first + torch.arange(len(rows)) * 7) % 300
        got = run_sampler(rows[:, None].to(device), top_k=k)
        wanted = rows.sort(dim=-1, descending=True).values.gather(-1, k[:, None] - 1)
        assert torch.equal(got.stats.floats[..., softmax_stats.FLOOR].cpu(), wanted)


@pytest.mark.parametrize("whole", [True, False])
def test_the_nucleus_of_rows_that_a_search_may_lose_its_way_in(
    device: torch.device, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(fused_sampler, "WHOLE", 0)
        monkeypatch.setattr(fused_sampler, "CHUNK", 128)
    rows = misleading_rows()
    cond = rows[:, None].to(device)
    u = torch.full((len(rows), 1), 0.377, device=device)  # on no edge of equally likely tokens
    for share in (0.9, 1e-6, 1 - 2.0**-24) if whole else (0.503,):
        settings = {"top_p": torch.full((len(rows),), share), "top_k": torch.arange(len(rows)) % 4 * 60}
        got = run_sampler(cond, None, None, u, **settings)
        with monkeypatch.context() as patch:
            patch.setenv("MMSPEC_KERNELS", "torch")
            wanted = run_sampler(cond, None, None, u, **settings)
        kept = (got.stats.dense() > 0) ^ (wanted.stats.dense() > 0)
        lost = torch.where(kept, run_sampler(cond).stats.dense(torch.float64), 0.0).sum(-1)
        assert float(lost.max()) < 1e-6, f"share {share}: {lost.flatten().tolist()}"
        assert torch.equal(got.stats.ints[..., 3:], wanted.stats.ints[..., 3:]) and torch.equal(
            got.tokens, wanted.tokens
        )


@pytest.mark.parametrize("whole", [True, False])
def test_the_nucleus_of_rows_beside_invalid_ones(
    device: torch.device, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN, nothing allowed, one token allowed, a share of 1 and a tiny one, bfloat16; V is no multiple of a block."""
    if not whole:
        monkeypatch.setattr(fused_sampler, "WHOLE", 0)
        monkeypatch.setattr(fused_sampler, "CHUNK", 128)
    vocab = 131
    rows = torch.randn(8, vocab).mul(2).round()
    rows[1, 130], rows[2], rows[3, 5] = torch.nan, -torch.inf, torch.inf
    rows[4] = torch.full((vocab,), -torch.inf).index_fill(0, torch.tensor([130]), -3.0)
    rows[5, 1:] = -torch.inf
    cond = rows[:, None].bfloat16().to(device)
    shares = torch.tensor([0.5, 0.5, 0.5, 0.5, 1e-38, 1 - 2.0**-24, 1.0, 1e-38])
    u = torch.full((8, 1), 0.377, device=device)
    got = run_sampler(cond, None, None, u, top_p=shares)
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    wanted = run_sampler(cond, None, None, u, top_p=shares)
    assert torch.equal(got.tokens, wanted.tokens) and torch.equal(got.stats.ints[..., 3:], wanted.stats.ints[..., 3:])
    assert (got.tokens[:, 0] < 0).tolist() == [False, True, True, True, False, False, False, False]
    good = got.tokens[:, 0] >= 0
    assert torch.allclose(got.stats.dense()[good], wanted.stats.dense()[good], atol=1e-6)
    assert got.tokens[4:6, 0].tolist() == [130, 0]
    assert int((got.stats.dense()[6] > 0).sum()) == vocab and int((got.stats.dense()[7] > 0).sum()) == 1


def test_the_largest_number_gives_a_token_of_the_nucleus(device: torch.device) -> None:
    """With top-p the kept mass and the running sum are added up in different orders, so that rounding may leave the
    running sum below u times the mass: without a remedy 4 of these 40 rows give id V."""
    torch.manual_seed(0)
    logits = (2 * torch.randn(40, 1, 128)).to(device)
    got = run_sampler(logits, None, u=torch.full((40, 1), LAST, device=device), top_p=torch.full((40,), 0.9))
    assert int(got.tokens.max()) < 128 and bool((got.stats.dense().gather(-1, got.tokens[..., None]) > 0).all())


def test_slots_give_the_core_s_probabilities_and_samples(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel 1 against `mmspec.sampling.sampler` and `mmspec.sampling.rejection`, for sampling parameters."""
    monkeypatch.setattr(softmax_stats, "_BLOCK", 128)  # several programs write a slot's logarithms
    samplings = [
        SamplingParams(0.7, guidance_scale=3.0, guidance_end=2),
        SamplingParams(top_k=40, guidance_scale=0.3),
        SamplingParams(top_p=0.8, guidance_scale=2.0),
        SamplingParams(temperature=0, guidance_scale=2.0),
    ]
    batch, width, vocab = len(samplings), 3, 200
    cond, uncond = torch.randn(2, batch, width, vocab, device=device) * 3
    allowed = torch.rand(2, vocab, device=device) < 0.5
    constraint = Constraint(torch.arange(6, device=device) % 2, allowed)
    positions = np.arange(width)[None].repeat(batch, 0)
    sampler = TokenSampler(samplings, constraint, device)
    p = sampler.probs(Logits(cond, uncond), positions)
    u = numbers(batch, width).to(device)
    scale = torch.tensor([[3.0, 3.0, 1.0], [0.3] * 3, [2.0] * 3, [2.0] * 3], device=device)
    kind = constraint.kind[torch.from_numpy(positions).to(device)].int()
    got = run_sampler(
        cond, uncond, None, u, scale=scale, temperature=[0.7, 1.0, 1.0, 0.0], top_k=[0, 40, 0, 0],
        top_p=[1.0, 1.0, 0.8, 1.0], kind=kind, allowed=allowed,
    )  # fmt: skip
    assert torch.allclose(got.stats.dense(), p, atol=1e-6)
    logs = softmax_stats.log_probs(*got.stats.source(), 3)
    assert torch.allclose(logs.exp()[..., :vocab], p, atol=1e-6) and bool(logs[..., vocab:].isneginf().all())
    assert torch.equal(logs[..., :vocab].isneginf(), p == 0)
    assert same_tokens(got.tokens, sample(p, u), p, u)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, "all"])
@pytest.mark.parametrize("temperature", [1.0, 0.0], ids=["sampled", "greedy"])
def test_an_invalid_distribution_is_marked_and_leaves_the_others(
    device: torch.device, bad: Any, temperature: float
) -> None:
    cond = torch.randn(2, 3, 50, device=device)
    broken = cond.clone()
    broken[0, 1, 7 : None if bad == "all" else 8] = -torch.inf if bad == "all" else bad
    if bad == "all":
        broken[0, 1] = -torch.inf
    good, got = run_sampler(cond, temperature=temperature), run_sampler(broken, temperature=temperature)
    assert got.tokens[0, 1] == -1
    others = torch.tensor([[True, False, True], [True, True, True]], device=device)
    assert torch.equal(got.tokens[others], good.tokens[others])
    drafts = torch.zeros(2, 3, dtype=torch.int64, device=device)
    q = softmax_stats.point_mass_stats(got.stats, drafts)
    found = accept.verify_window(
        got.stats, q[:, :2], drafts[:, :2], got.chance, got.tokens, *torch.zeros(2, 2, 3, device=device)
    )
    first = found.accepted
    assert found.found[:, 1].tolist() == [3, 0] or first[0] == 0
    assert first[0] <= 1  # a draft is never accepted under an invalid distribution
    resampled = residual_kernel.resample(got.stats, q, torch.ones_like(others), torch.full((2, 3), 0.5, device=device))
    assert resampled[0, 1] == -1 and bool((resampled[others] >= 0).all())


def test_tokens_of_no_mass_are_never_sampled(device: torch.device) -> None:
    cond = torch.full((1, 4, 300), -torch.inf, device=device)
    cond[..., 130], cond[..., 131], cond[..., 290] = 0.0, -torch.inf, -20.0
    u = torch.tensor([[0.0, 0.5, LAST, 1.0]], device=device)
    assert set(run_sampler(cond, u=u).tokens.flatten().tolist()) <= {130, 290}
    cond[..., 290] = -torch.inf
    assert run_sampler(cond, u=u).tokens.tolist() == [[130] * 4]


RELAXED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("exact", {}, {}),
    ("beta", {"beta": 0.2}, {"a": 0.2}),
    ("ensemble", {"draft": 0.3}, {"a": 0.3}),
    ("omega", {"delta": 3.0, "decay": 0.7}, {"a": 3.0, "b": 0.7}),
    ("lantern", {"delta": 0.02, "k": 7}, {"a": 0.02}),
    ("lantern++", {"factor": 3.0, "k": 7}, {"a": 3.0}),
    ("gsd", {"group": 5, "probability": 0.15, "distance": 0.0}, {"a": 0.15, "group": 5}),
    ("gsd", {"group": 6, "probability": 0.15, "distance": 2.0}, {"a": 0.15, "b": 2.0, "group": 6}),
    ("typical", {"epsilon": 0.09, "alpha": 0.7}, {"a": 0.09, "b": 0.7}),
    ("top-m", {"m": 6}, {"group": 6}),
    ("pcg", {"size": 5, "theta": 0.9}, {}),
    ("fallback", {"trust": 0.9, "rollback": 0.02}, {"a": 0.1, "b": 0.02}),
]


@lru_cache
def window_of_probs(device: torch.device, batch: int, m: int, vocab: int) -> tuple[Any, Any, Tensor]:
    """The output of kernel 1 for m + 1 slots of p and m of a similar q, and drafts sampled from q.

    This is what takes long in Triton's interpreter; the tests of all rules share it.
    """
    torch.manual_seed(1)
    logits = torch.randn(batch, m + 1, vocab).to(device)
    near = logits[:, :m] + 0.3 * torch.randn(batch, m, vocab).to(device)
    q = run_sampler(near, top_p=0.95, u=numbers(batch, m).to(device))
    p = run_sampler(logits, temperature=0.8, top_k=max(vocab // 2, 1), drafts=q.tokens)
    torch.manual_seed(0)
    return p, q, q.tokens


def verified(p: Any, q: Any, x: Tensor, u: Tensor, rule: KernelRule | None = None) -> accept.Verified:
    """The verification of drafts at `u` [B, m]; p has a slot more."""
    u = torch.cat([u, torch.full_like(u[:, :1], 0.4)], dim=1)
    return accept.verify_window(p.stats, q.stats, x, p.chance, p.tokens, u, 1 - u, rule or KernelRule())


@pytest.mark.parametrize(
    ("rule", "knobs", "test"), RELAXED, ids=[f"{rule}{i}" for i, (rule, _, _) in enumerate(RELAXED)]
)
def test_accepted_drafts_are_those_of_the_core_s_rules(
    device: torch.device, rule: str, knobs: dict[str, Any], test: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = rule in ("typical", "top-m", "fallback") or (test.get("b") and rule == "gsd")
    vocab = 300 if chunks else 40
    codebook = Codebook(torch.rand(vocab, 3).to(device))
    if rule.startswith("lantern"):
        test = {**test, "near": nearest(codebook, knobs["k"]).to(device)}
    if test.get("b") and rule == "gsd":
        test = {**test, "vectors": codebook.vectors, "known": codebook.known}
    if rule == "pcg":
        members = similar(codebook, knobs["size"], knobs["theta"])
        test = {**test, "near": members, "vectors": 1 / (members >= 0).sum(-1, keepdim=True).float()}
    if chunks:
        monkeypatch.setattr(residual_kernel, "CHUNK", 256)  # as for longer rows
    p, q, x = window_of_probs(device, 4, 3, vocab)
    u = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.1, 0.1], [0.3, 0.9, 0.1], [0.5, 0.5, 0.9]], device=device)
    core: Accept = RULES[rule].build(knobs, codebook)
    whole = torch.cat([u, torch.full_like(u[:, :1], 0.4)], dim=1)
    wanted = verify(p.stats.dense(), Draft(x, q.stats.dense()), core, whole, 1 - whole)
    found = verified(p, q, x, u, KernelRule(rule, **test))
    first = found.accepted
    assert first.tolist() == wanted.accepted.tolist()
    with monkeypatch.context() as patch:
        patch.setenv("MMSPEC_KERNELS", "torch")
        reference = verified(p, q, x, u, KernelRule(rule, **test))
    assert torch.equal(found.tokens, reference.tokens) and torch.equal(found.found[:, :6], reference.found[:, :6])
    assert torch.allclose(found.excess(), reference.excess(), atol=1e-5)
    assert torch.equal(found.found[:, 0], first.int()) and torch.equal(found.found[:, 2:6], found.tokens.int())
    row = torch.arange(4, device=device)
    bonus = torch.where(first == 3, p.tokens[:, 3], wanted.tokens[row, first])
    assert torch.equal(found.tokens[row, first], bonus)
    assert all(found.tokens[b, :n].tolist() == x[b, :n].tolist() for b, n in enumerate(first.tolist()))
    assert len(set(first.tolist())) > 1, "a weak test: all rows are equal"


@pytest.mark.parametrize(
    ("rule", "test"),
    [
        ("beta", {}),
        ("ensemble", {}),
        ("omega", {}),
        ("lantern", {}),
        ("lantern++", {"a": 1.0}),
        ("gsd", {"a": 0.15}),
        ("typical", {"b": 0.3}),
        ("top-m", {}),
        ("fallback", {"a": 1.0}),
        ("pcg", {}),
    ],
)
def test_a_relaxation_of_zero_is_the_exact_rule(device: torch.device, rule: str, test: dict[str, Any]) -> None:
    p, q, x = window_of_probs(device, 3, 4, 30)
    near = torch.randint(30, (30, 5), dtype=torch.int32, device=device) if rule.startswith("lantern") else None
    if rule == "pcg":
        near, test = (
            torch.arange(30, dtype=torch.int32, device=device)[:, None],
            {"vectors": torch.ones(30, 1).to(device)},
        )
    u = torch.rand(3, 4, device=device)
    exact, relaxed = verified(p, q, x, u), verified(p, q, x, u, KernelRule(rule, near=near, **test))
    assert torch.equal(exact.tokens, relaxed.tokens) and torch.equal(exact.accepted, relaxed.accepted)
    # A device rounds once where the interpreter rounds twice.
    assert not bool(exact.excess().any()) and float(relaxed.excess().abs().max()) < 1e-6


def test_equal_distributions_accept_whatever_the_random_number(device: torch.device) -> None:
    """p(x) / q(x) must not be below 1, though different kernels compute p and q."""
    logits = torch.randn(2, 2, 7, 1000, device=device).bfloat16()
    settings: dict[str, Any] = {"scale": 3.0, "temperature": 0.9, "top_k": 200}
    q = run_sampler(logits[0, :, :6], logits[1, :, :6], None, numbers(2, 6).to(device), **settings)
    p = run_sampler(logits[0], logits[1], q.tokens, **settings)
    u = torch.full((2, 6), LAST, device=device)
    found = verified(p, q, q.tokens, u)
    assert found.accepted.tolist() == [6, 6] and found.excess().max() == 0
    assert torch.equal(found.tokens, torch.cat([q.tokens, p.tokens[:, 6:]], dim=1))


@pytest.mark.parametrize("vocab", [1, 7, 500])
@pytest.mark.parametrize("kind", ["sampled", "same", "chosen", "dense"])
def test_resampled_tokens_are_the_core_s(
    device: torch.device, vocab: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q, x = window_of_probs(device, 2, 2, vocab)
    p_stats = q.stats if kind == "same" else p.stats[:, :2]
    probs = {
        "chosen": softmax_stats.point_mass_stats(p_stats, x),
        "dense": softmax_stats.stats_of_probs(q.stats.dense()),
    }.get(kind, q.stats)
    active = torch.tensor([[True, False], [True, True]], device=device)
    u = numbers(2, 2).to(device)
    p_probs = p_stats.dense()
    wanted = torch.where(active, sample(residual(p_probs, probs.dense()), u, fallback=p_probs), -1)
    left = residual(p_probs, probs.dense())
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p_probs)
    for whole in [True, False] if vocab == 500 else [True]:
        if not whole:
            monkeypatch.setattr(residual_kernel, "CHUNK", 256)
        got = residual_kernel.resample(p_stats, probs, active, u)
        assert same_tokens(got, wanted, left, u)
    with monkeypatch.context() as patch:
        patch.setenv("MMSPEC_KERNELS", "torch")
        assert torch.equal(residual_kernel.resample(p_stats, probs, active, u), wanted)


def test_an_invalid_q_takes_nothing_away(device: torch.device) -> None:
    logits = torch.randn(1, 2, 20, device=device)
    p, q = run_sampler(logits), run_sampler(logits.index_fill(1, torch.tensor([1], device=device), torch.nan))
    active, u = torch.ones(1, 2, dtype=torch.bool, device=device), torch.full((1, 2), 0.5, device=device)
    assert residual_kernel.resample(p.stats, q.stats, active, u)[0, 1] == p.tokens[0, 1]


@lru_cache
def tree_of_probs(device: torch.device, branching: tuple[int, ...], vocab: int) -> tuple[Tree, Tensor, Any]:
    """A tree for two rows, and the logits and the output of kernel 1 for its entries."""
    torch.manual_seed(1)
    shape = Tree.branching(branching, device)
    logits = torch.randn(2, 1 + shape.parents.shape[1], vocab).to(device)
    p = run_sampler(
        2 * logits, torch.randn(logits.shape).to(device), scale=1.2, temperature=0.8, top_k=max(vocab // 2, 2)
    ).stats
    torch.manual_seed(0)
    return shape, logits, p


@pytest.mark.parametrize("siblings", [tree.WITHOUT_REPLACEMENT, tree.INDEPENDENT, tree.CHOSEN])
@pytest.mark.parametrize(("vocab", "branching"), [(11, (3, 2, 1)), (200, (2, 2)), (2, (3, 1))])
def test_the_walk_down_a_tree_is_the_core_s(
    device: torch.device, siblings: int, vocab: int, branching: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, logits, p = tree_of_probs(device, branching, vocab)
    batch, m = 2, shape.parents.shape[1]
    probs = (logits + 0.7 * torch.randn_like(logits)).softmax(-1)
    tokens = torch.zeros(batch, m, dtype=torch.int64, device=device)
    for row in range(batch):
        for entry in range(1 + m):
            children = [child for child in shape.children[0, entry].tolist() if child]
            replacement = siblings != tree.WITHOUT_REPLACEMENT or len(children) > vocab
            drafts = torch.multinomial(probs[row, entry], max(len(children), 1), replacement=replacement).tolist()
            for child, token in zip(children, drafts, strict=False):
                tokens[row, child - 1] = token
    accept_u, resample_u = torch.rand(batch, m, device=device), numbers(batch, shape.height + 1).to(device)
    kinds: list[Siblings] = [WithoutReplacement(probs), Independent(probs), Chosen(vocab)]
    wanted = verify_tree(p.dense(), TreeDraft(shape, tokens, kinds[siblings]), ratio, accept_u, resample_u)
    branches = tree.Branches(tokens, shape.children, shape.height, siblings, None if siblings == tree.CHOSEN else probs)
    for mode in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", mode)
        monkeypatch.setattr(tree, "CHUNK", 128)  # two chunks of the largest vocabulary
        same_walk(tree.walk_tree(p, branches, accept_u, resample_u), wanted)


def same_walk(got: tree.Walked, wanted: TreeVerdict) -> None:
    """Whether a kernel's walk is that of the core, in all that the host and the device read of it."""
    host, height = got.found.cpu(), got.tokens.shape[1] - 1
    assert host[:, 0].tolist() == wanted.accepted.tolist() and host[:, 1].tolist() == wanted.tested.tolist()
    assert not host[:, 2].any() and torch.equal(host[:, 3 : 3 + height], got.entries[:, 1:].cpu().int())
    assert not got.entries[:, 0].any()
    for row, count in enumerate(wanted.accepted):
        assert got.tokens[row, : count + 1].tolist() == wanted.tokens[row, : count + 1].tolist()
        assert not got.tokens[row, count + 1 :].any()
        entries = got.entries[row, 1:].tolist()
        assert entries[:count] == wanted.path.host[row, :count].tolist()
        assert set(entries[count:]) <= {entries[count - 1] if count else 0}
    assert got.path.tolist() == wanted.path.host.tolist()
    assert torch.equal(host[:, 3 + 2 * height :], got.tokens.cpu().int())
    excess = torch.zeros(len(host), height) if wanted.excess is None else wanted.excess.cpu()
    assert torch.allclose(got.excess().cpu(), excess, atol=1e-5)


def rule_of(name: str, knobs: dict[str, Any], vocab: int, device: torch.device) -> tuple[Accept, KernelRule]:
    """A rule of the core and the form of it that the kernels read."""
    core: Any = RULES[name].build(knobs, Codebook(torch.rand(vocab, 3).to(device)))
    return core, KernelRule() if core is ratio else core.kernel_rule(device)


EVERYDAY = ["exact0-k-seq", "omega3-2", "gsd7-0", "typical8-1", "pcg10-k-seq"]  # the others are slow


@pytest.mark.parametrize(
    ("rule", "knobs", "siblings"),
    [
        pytest.param(rule, knobs, kind, id=name, marks=() if name in EVERYDAY else pytest.mark.slow)
        for i, (rule, knobs, _) in enumerate(RELAXED)
        for kind in (("k-seq",) if rule == "exact" else ((i + 2) % 3, "k-seq"))
        for name in (f"{rule}{i}-{kind}",)
    ],
)
def test_relaxed_walks_are_the_core_s(
    device: torch.device, rule: str, knobs: dict[str, Any], siblings: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rule on trees and on the drafts of SpecTr, against `verify_tree` and `verify_drafts` of the core."""
    batch, vocab = 3, 150
    branching = (3, 2) if siblings != "k-seq" else (3, 1)
    shape = Tree.branching(branching, device)
    m = shape.parents.shape[1]
    # Random numbers of the CPU, so that what is tested is the same on every device.
    logits = torch.randn(batch, 1 + m, vocab)
    q = (2.5 * logits + 0.7 * torch.randn_like(logits)).softmax(-1)
    q[0] = 1 / vocab  # drafts that are mostly rejected
    drafted = torch.zeros(batch, m, dtype=torch.int64)
    for row, entry in np.ndindex(batch, 1 + m):
        children = [child for child in shape.children[0, entry].tolist() if child]
        if children:
            repeated = siblings in (tree.INDEPENDENT, "k-seq")
            drafts = torch.multinomial(q[row, entry], len(children), replacement=repeated)
            drafted[row, torch.tensor(children) - 1] = drafts
    if siblings == "k-seq":
        drafted[0, 1] = drafted[0, 0]  # two drafts that begin alike
    probs, tokens = q.to(device), drafted.to(device)
    p = run_sampler(logits.to(device), temperature=0.4, top_k=60).stats
    near_ratio = (p.dense()[2, 0] / probs[2, 0])[tokens[2, :3]].clamp(max=1) * 0.9
    core, kernel_rule = rule_of(rule, knobs, vocab, device)
    accept_u = (torch.rand(batch, m) ** 0.5).to(device)
    resample_u = numbers(batch, shape.height + 1).to(device)
    accept_u[1] *= 0.1  # drafts that are mostly accepted
    accept_u[2, :3] = near_ratio  # drafts that SpecTr's smaller probabilities reject
    kinds: dict[int | str, Siblings] = {
        tree.WITHOUT_REPLACEMENT: WithoutReplacement(probs), tree.INDEPENDENT: Independent(probs),
        tree.CHOSEN: Chosen(vocab), "k-seq": Independent(probs),
    }  # fmt: skip
    draft = TreeDraft(shape, tokens, kinds[siblings])
    monkeypatch.setattr(tree, "CHUNK", 256)  # two chunks
    monkeypatch.setattr(k_seq, "CHUNK", 128)
    if siblings == "k-seq":
        wanted = verify_drafts(p.dense(), draft, core, accept_u, resample_u)
        same_walk(k_seq.verify_drafts(p, tokens, probs, 3, accept_u, resample_u, kernel_rule), wanted)
    else:
        assert isinstance(siblings, int)
        wanted = verify_tree(p.dense(), draft, core, accept_u, resample_u)
        branches = tree.Branches(
            tokens, shape.children, shape.height, siblings, probs if siblings != tree.CHOSEN else None
        )
        same_walk(tree.walk_tree(p, branches, accept_u, resample_u, kernel_rule), wanted)
        with monkeypatch.context() as patch:
            patch.setenv("MMSPEC_KERNELS", "torch")
            same_walk(tree.walk_tree(p, branches, accept_u, resample_u, kernel_rule), wanted)
    assert len(set(wanted.accepted.tolist())) > 1, "a weak test: all rows are equal"
    assert wanted.excess is None or bool(wanted.excess.any()), "a weak test: nothing is relaxed"


@pytest.mark.parametrize(("m", "cells", "vocab", "with_forced"), [(3, 2, 5, False), (2, 3, 60, True), (1, 1, 1, False)])
def test_columns_are_the_core_s(
    device: torch.device, m: int, cells: int, vocab: int, with_forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, seeds = 2, [100, 101]
    cond, uncond = torch.randn(2, batch, m + 1, cells, vocab, device=device)
    positions = np.arange(5, 6 + m)[None] + np.arange(batch)[:, None]
    rng = CounterRNG(seeds, device).window(positions, 3)
    forced, known, free = None, None, torch.ones(batch, m + 1, cells, dtype=torch.bool, device=device)
    if with_forced:
        table = np.full((20, cells), -1)
        table[6::2, 0] = 1
        forced = ForcedCells(table)
        known = forced.table(device)
        free = torch.from_numpy(table[positions] < 0).to(device)
    sampler = ColumnSampler([SamplingParams(0.8, max(vocab // 2, 1), guidance_scale=1.5)] * batch, forced, device)
    p = sampler(Logits(cond, uncond), Numbers(positions))
    drafted = (cond[:, :m] + 0.3 * torch.randn_like(cond[:, :m])).flatten(1, 2)
    found = run_sampler(drafted, u=torch.rand(batch, m * cells, device=device))
    x = found.tokens.unflatten(1, (m, cells))
    certain = torch.nn.functional.one_hot(torch.ones_like(x) % vocab, vocab).float()
    q = torch.where(free[:, :m, :, None], found.stats.dense().unflatten(1, (m, cells)), certain)
    wanted = sampler.verify(p, Draft(x, q), ratio, rng)
    flat = run_sampler(
        cond.flatten(1, 2), uncond.flatten(1, 2), scale=1.5, temperature=0.8, top_k=max(vocab // 2, 1)
    ).stats
    iteration = torch.full((batch, m + 1), 3, device=device)
    given = columns.ColumnNumbers(torch.tensor(seeds, device=device), torch.from_numpy(positions).to(device), iteration)
    for mode in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", mode)
        verified = columns.verify_columns(flat, found.stats, x, known, given, MAX_SAMPLES)
        assert verified.accepted.tolist() == wanted.accepted.tolist()
        assert torch.equal(verified.tokens, wanted.tokens)


@triton.jit
def _far_away(near, out, stride, BLOCK: tl.constexpr):
    lanes, line = tl.arange(0, BLOCK), tl.program_id(0) + 3
    # Row 3 of logits whose rows lie `stride` apart, and slot 3 of logits whose slots do: both are `near`.
    by_row = (near - 3 * stride, None, None, None, None, 1, BLOCK, stride, 0, 1)
    by_slot = (near - 3 * stride, None, None, None, None, 4, BLOCK, 0, stride, 1)
    tl.store(out + lanes, softmax_stats.logits(by_row, line, 0, 1.0, 1.0, lanes, False, False, True))
    tl.store(out + BLOCK + lanes, softmax_stats.logits(by_slot, line, 0, 1.0, 1.0, lanes, False, False, True))
    by_token = (near - 3 * stride, None, None, None, None, 1, BLOCK, 0, 0, stride)
    third = tl.full((1,), 3, tl.int32)
    tl.store(
        out + 2 * BLOCK + tl.arange(0, 1), softmax_stats.logits(by_token, line, 0, 1.0, 1.0, third, False, False, False)
    )


def test_addresses_beyond_int32(device: torch.device) -> None:
    """Strides of 2**31 numbers: the address arithmetic alone, without the memory."""
    near, out = torch.randn(8, device=device), torch.zeros(17, device=device)
    _far_away[(1,)](near, out, 2**31, BLOCK=8)
    assert torch.equal(out, torch.cat([near, near, near[:1]]))


def test_ops_are_registered_with_their_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    cond, u = torch.randn(2, 3, 11), numbers(2, 3)
    drafts, active = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
    settings = fused_sampler.Settings(torch.ones(2, 3), torch.ones(2), None, None, None, None)
    found = fused_sampler.fused_sample(cond, None, settings, u, drafts).stats
    x = drafts[:, :2, None]
    before = found[:, :2].source()
    source, shape = found.source(), Tree.branching((2,), torch.device("cpu"))
    plan = torch.zeros(3, 2, dtype=torch.int64), torch.tensor([0, 2])
    places = drafts[:, 0], drafts + 1, drafts
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (philox.uniforms, (drafts[:, 0], drafts, drafts, 1, 2)),
        (philox.uniforms, (drafts[:, 0], drafts, drafts, 0, 1, drafts[:1])),
        (draft_tree.draft_tree, (drafts, drafts[:, 0], drafts + 1, drafts.new_zeros(12, 11), None, *plan, 0)),
        (fused_sampler.fused_sample_op, (cond, None, *settings, u, drafts)),
        (
            accept.verify_window_op,
            (*source, *before, drafts[:, :2], u, drafts, u, u, 0, 0.0, 0.0, 0, None, None, None),
        ),
        (coupling.couple_maximally_op, (*source, *before, drafts[:, :2], drafts, drafts, drafts[:, 0], u, u)),
        (coupling.couple_by_noise_op, (*source, drafts[:, 0], drafts, 1, None)),
        (softmax_stats.log_probs, (*source, 2)),
        (
            token_init.draft_window_op,
            (drafts, drafts[:, 0], drafts + 1, u, 0, 0, 11, None, None, None, None, None, None),
        ),
        (commit.reread_window, (drafts[:, :1], drafts, drafts, drafts[:, 0], drafts)),
        (commit.begin_window, (drafts.clone(), drafts[:, 0], drafts, drafts[:, 0], drafts, drafts, drafts[:, 0], 4)),
        (residual_kernel.resample_op, (*source, *source, active, u)),
        (
            tree.walk_tree_op,
            (*source, drafts[:, :2], shape.children, None, u[:, :2], u[:, :2], 1, tree.CHOSEN, 0, 0.0, 0.0, 0)
            + (None,) * 3,
        ),
        (
            columns.verify_columns_op,
            (*source, *found[:, :2].source(), x, None, drafts[:, 0], drafts, drafts, 9),
        ),
        (
            columns.couple_columns_op,
            (*source, *found[:, :2].source(), x, None, drafts[:, 0], drafts, drafts, 9, drafts[:, 0]),
        ),
        (column_drafts.draft_columns_op, (drafts[..., None], drafts[:, 0], *places, 0, 11) + (None,) * 6),
    ]  # fmt: skip
    for op, arguments in calls:
        real = op(*arguments)
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments]
            fake = op(*fakes)
        for one, other in zip(*((t if isinstance(t, tuple) else (t,)) for t in (real, fake)), strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype


def test_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMSPEC_KERNELS", raising=False)
    assert {choose(device) for device in ("cpu", "mps", "xpu")} == {"torch"} and choose("cuda") == "triton"
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    assert choose("cuda") == "torch"
    monkeypatch.setenv("MMSPEC_KERNELS", "Triton")
    with pytest.raises(ArgumentError, match=r"MMSPEC_KERNELS='Triton' is not allowed \(did you mean 'triton'\?\)"):
        choose("cpu")
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ArgumentError, match="set TRITON_INTERPRET=1 as well"):
        choose("cpu")


def test_one_thread_at_a_time_is_in_the_interpreter() -> None:
    """Its program ids are those of the process: PEARL's draft model runs in a thread of its own."""
    entered = Event()

    def enter() -> None:
        with launchable(torch.zeros(1)):
            entered.set()

    thread = Thread(target=enter)
    with launchable(torch.zeros(1)), launchable(torch.zeros(1)):
        thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set()


@pytest.mark.slow
def test_all_kernels_compile_for_an_absent_device(root: Any) -> None:
    """Compilation to machine code of an H100 or H200 with Triton's assembler needs no device."""
    code = "import compiled_kernels; compiled_kernels.main()"
    names = {key: value for key, value in os.environ.items() if key not in ("TRITON_INTERPRET", "MMSPEC_KERNELS")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root / "tests" / "helpers", env=names | {"PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
