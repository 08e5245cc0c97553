"""The sampler's distributions against the definition, one row at a time."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.rows import select_rows
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import sample
from mmspec.sampling.sampler import TokenSampler

CPU = torch.device("cpu")
SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.5, guidance_scale=3.0),
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.7, temperature=1.3),
    SamplingParams(temperature=0.8, top_k=5, top_p=0.6, guidance_scale=0.0),
    SamplingParams(temperature=0, guidance_scale=2.0),
    SamplingParams(guidance_scale=3.0, guidance_end=7),
    SamplingParams(temperature=0, guidance_scale=4.0, guidance_end=8),
]


def by_hand(cond: Tensor, uncond: Tensor, allowed: Tensor, s: SamplingParams, position: int = 0) -> Tensor:
    """One row, one position, in float64 and with sets instead of sorts."""
    guided = s.guidance_end is None or position < s.guidance_end
    z = (uncond + (s.guidance_scale if guided else 1.0) * (cond - uncond)).double()
    z[~allowed] = -torch.inf
    order = sorted(range(len(z)), key=lambda i: -z[i].item())
    if s.temperature == 0:
        return torch.nn.functional.one_hot(torch.tensor(order[0]), len(z)).double()
    z = z / s.temperature
    if s.top_k:
        z[order[s.top_k :]] = -torch.inf
    p = z.softmax(-1)
    kept, mass = [], 0.0
    for i in order:
        if mass >= s.top_p:
            break
        kept.append(i)
        mass += p[i].item()
    out = torch.zeros_like(p)
    out[kept] = p[kept]
    return out / out.sum()


def test_each_row_follows_its_own_params() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, width, vocab = len(SETTINGS), 4, 11
    cond, uncond = torch.randn(2, rows, width, vocab, generator=generator) * 2
    kinds = torch.tensor([0, 1, 1, 0, 2, 0, 1, 0, 1, 0, 0])
    allowed = torch.ones(3, vocab, dtype=torch.bool)
    allowed[1, ::2] = False
    allowed[2] = torch.arange(vocab) == 4
    positions = np.array([[i, i + 1, i + 2, i + 3] for i in range(rows)])
    sampler = TokenSampler(SETTINGS, Constraint(kinds, allowed), CPU)
    p = sampler.probs(Logits(cond, uncond), positions)
    for b, settings in enumerate(SETTINGS):
        for i in range(width):
            position = int(positions[b, i])
            expected = by_hand(cond[b, i], uncond[b, i], allowed[kinds[position]], settings, position)
            assert torch.allclose(p[b, i].double(), expected, atol=1e-6), (settings, i)
    for row_ids in ([7, 3, 6, 1], [2, 0]):  # rows leave twice; the second indices are among the four
        select_rows(sampler, row_ids, 8 if len(row_ids) == 4 else 4)
        left = row_ids if len(row_ids) == 4 else [6, 7]
        again = sampler.probs(Logits(cond[left], uncond[left]), positions[left])
        assert torch.allclose(again, p[left], atol=1e-7)


def probs_of(z: list[float], **settings: float) -> list[float]:
    """The distribution of one position with these logits."""
    sampler = TokenSampler([SamplingParams(**settings)], None, CPU)  # type: ignore[arg-type]
    return sampler.probs(Logits(torch.tensor([[z]]), None), np.zeros((1, 1), np.int64))[0, 0].tolist()


def test_tokens_as_likely_as_the_kth_stay() -> None:
    assert probs_of([1.0, 0.0, 1.0, 1.0, -1.0], top_k=2) == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3, 0])
    assert probs_of([0.0, 2.0, 0.0, 0.0], top_k=2)[1] < 1 and 0.0 not in probs_of([0.0, 2.0, 0.0, 0.0], top_k=2)
    assert probs_of([0.0, 2.0, 1.0, 0.0], top_k=2)[0::3] == [0, 0]


def test_top_p_that_is_hit_exactly_keeps_no_further_token() -> None:
    """The smallest set with at least this mass; of equally likely tokens those with the lowest ids."""
    assert probs_of([0.0] * 4, top_p=0.5) == [0.5, 0.5, 0, 0]
    assert probs_of([0.0] * 4, top_p=0.25) == [1, 0, 0, 0]
    assert probs_of([0.0] * 4, top_p=0.51) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert probs_of([-torch.inf, 0.0, 0.0, -torch.inf, 0.0, 0.0], top_p=0.75) == pytest.approx(
        [0, 1 / 3, 1 / 3, 0, 1 / 3, 0]
    )


def test_forced_tokens_of_a_constraint() -> None:
    allowed = torch.tensor([[True, True, False], [False, False, True]])
    constraint = Constraint(torch.tensor([0, 1, 0]), allowed)
    assert constraint.forced.tokens.tolist() == [-1, 2, -1]
    with pytest.raises(ArgumentError, match="without a single token"):
        Constraint(torch.tensor([0]), torch.tensor([[False, False]]))


def test_guidance_between_two_forbidden_logits_is_forbidden() -> None:
    cond = torch.tensor([[[0.0, -torch.inf, 1.0]]])
    p = TokenSampler([SamplingParams(guidance_scale=3.0)], None, CPU).probs(
        Logits(cond, cond - 1), np.zeros((1, 1), dtype=np.int64)
    )
    assert p.isfinite().all() and p[0, 0, 1] == 0


@pytest.mark.parametrize("temperature", [1.0, 0.0], ids=["sampled", "greedy"])
def test_a_token_that_only_the_unconditional_logits_forbid(temperature: float) -> None:
    """It is allowed where there is no guidance, and an error where there is."""
    cond, uncond = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.0, -torch.inf, 0.0]])
    logits = Logits(cond.repeat(3, 1)[:, None], uncond.repeat(3, 1)[:, None])
    settings = [SamplingParams(temperature, guidance_scale=s, guidance_end=end) for s, end in ((1.0, None), (2.0, 3))]
    sampler = TokenSampler([*settings, settings[1]], None, CPU)
    p = sampler.probs(logits, np.array([[3], [3], [2]]))
    expected = cond[0].softmax(-1) if temperature else torch.tensor([0.0, 0.0, 1.0])
    assert torch.allclose(p[:2, 0], expected.expand(2, -1)) and bool(p[2].isnan().any())
    with pytest.raises(ModelError, match="not numbers"):
        sample(p, torch.zeros(3, 1))


@pytest.mark.parametrize("temperature", [1.0, 0.0], ids=["sampled", "greedy"])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_position_without_an_allowed_token_is_an_error(temperature: float, mixed: bool) -> None:
    """The model forbids the token that the constraint allows; the other row is not affected."""
    cond = torch.tensor([[0.0, 0.0, -torch.inf]]).repeat(2, 1)[:, None]
    constraint = Constraint(torch.zeros(1, dtype=torch.int64), torch.tensor([[False, False, True]]))
    sampler = TokenSampler(
        [SamplingParams(temperature), SamplingParams(0.5 if mixed else temperature)], constraint, CPU
    )
    positions = np.zeros((2, 1), dtype=np.int64)
    with pytest.raises(ModelError, match="forbade every token"):
        sample(sampler.probs(Logits(cond, None), positions), torch.zeros(2, 1))
    cond[1, 0, 2] = 0.0
    assert sampler.probs(Logits(cond, None), positions)[1, 0].tolist() == [0.0, 0.0, 1.0]


def test_the_most_likely_token_survives_any_top_p() -> None:
    p = TokenSampler([SamplingParams(top_p=1e-50)], None, CPU).probs(
        Logits(torch.tensor([[[0.0, 2.0]]]), None), np.zeros((1, 1), np.int64)
    )
    assert p.tolist() == [[[0.0, 1.0]]]


def test_bfloat16_logits_are_mixed_in_float32() -> None:
    cond = torch.randn(1, 1, 50).bfloat16()
    uncond = torch.randn(1, 1, 50).bfloat16()
    position = np.zeros((1, 1), dtype=np.int64)
    p = TokenSampler([SamplingParams(guidance_scale=5.0)], None, CPU).probs(Logits(cond, uncond), position)
    expected = (uncond.float() + 5.0 * (cond.float() - uncond.float())).softmax(-1)
    assert p.dtype == torch.float32 and torch.allclose(p, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "it must be 0 (greedy), or from 0.0001 to 10000"),
        ("temperature", 1e-9, "it must be 0 (greedy), or from 0.0001 to 10000"),
        ("temperature", "1", "it must be 0 (greedy), or from 0.0001 to 10000"),
        ("temperature", float("nan"), "it must be 0 (greedy), or from 0.0001 to 10000"),
        ("top_k", -1, "it must be an integer, 0 (off) or more"),
        ("top_k", 2.5, "it must be an integer, 0 (off) or more"),
        ("top_k", 10**22, "it must be an integer, 0 (off) or more"),
        ("top_k", True, "it must be an integer, 0 (off) or more"),
        ("top_p", 0.0, "it must be above 0 and at most 1 (off)"),
        ("top_p", 1.5, "it must be above 0 and at most 1 (off)"),
        ("guidance_scale", -2.0, "it must be from 0 to 10000 (1 is off)"),
        ("guidance_scale", 1e38, "it must be from 0 to 10000 (1 is off)"),
    ],
)
def test_params_out_of_range(name: str, value: float, allowed: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"{name}={value!r} is not allowed; {allowed}")):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_the_kinds_of_positions_do_not_depend_on_other_threads() -> None:
    """A drafter that runs beside the target reads the same constraint, here just after each write of its cache."""
    every = np.arange(3)[None]
    ours, theirs = (Numbers(every, torch.from_numpy(every)) for _ in range(2))

    class Shared(Constraint):
        found: Any = None

        @property
        def _latest(self) -> Any:
            return self.found

        @_latest.setter
        def _latest(self, value: Any) -> None:
            self.found = None if value is None else (theirs, torch.full((1, 3), 9, dtype=torch.int32))

    constraint = Shared(torch.tensor([0, 1, 0]), torch.tensor([[True, True], [True, False]]))
    assert constraint.device_kinds(ours).tolist() == [[0, 1, 0]]
