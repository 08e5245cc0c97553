"""The sampler's distributions against the definition, one row at a time."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.logits import Logits
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
]


def by_hand(cond: Tensor, uncond: Tensor, allowed: Tensor, s: SamplingParams) -> Tensor:
    """One row, one position, in float64 and with sets instead of sorts."""
    z = (uncond + s.guidance_scale * (cond - uncond)).double()
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
    kinds = torch.tensor([0, 1, 1, 0, 2, 0])
    allowed = torch.ones(3, vocab, dtype=torch.bool)
    allowed[1, ::2] = False
    allowed[2] = torch.arange(vocab) == 4
    positions = np.array([[i, i + 1, i + 2, i + 3] for i in range(rows)]).clip(max=5)
    sampler = TokenSampler(SETTINGS, Constraint(kinds, allowed), CPU)
    p = sampler(Logits(cond, uncond), positions)
    for b, settings in enumerate(SETTINGS):
        for i in range(width):
            expected = by_hand(cond[b, i], uncond[b, i], allowed[kinds[positions[b, i]]], settings)
            assert torch.allclose(p[b, i].double(), expected, atol=1e-6), (settings, i)
    sampler.select_rows(torch.tensor([3, 1]))
    again = sampler(Logits(cond[[3, 1]], uncond[[3, 1]]), positions[[3, 1]])
    assert torch.allclose(again, p[[3, 1]], atol=1e-7)


def test_forced_tokens_of_a_constraint() -> None:
    allowed = torch.tensor([[True, True, False], [False, False, True]])
    constraint = Constraint(torch.tensor([0, 1, 0]), allowed)
    assert constraint.forced.tokens.tolist() == [-1, 2, -1]
    with pytest.raises(ArgumentError, match="without a single token"):
        Constraint(torch.tensor([0]), torch.tensor([[False, False]]))


def test_guidance_between_two_forbidden_logits_is_forbidden() -> None:
    cond = torch.tensor([[[0.0, -torch.inf, 1.0]]])
    p = TokenSampler([SamplingParams(guidance_scale=3.0)], None, CPU)(
        Logits(cond, cond - 1), np.zeros((1, 1), dtype=np.int64)
    )
    assert p.isfinite().all() and p[0, 0, 1] == 0


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
        sample(sampler(Logits(cond, None), positions), torch.zeros(2, 1))
    cond[1, 0, 2] = 0.0
    assert sampler(Logits(cond, None), positions)[1, 0].tolist() == [0.0, 0.0, 1.0]


def test_the_most_likely_token_survives_any_top_p() -> None:
    p = TokenSampler([SamplingParams(top_p=1e-50)], None, CPU)(
        Logits(torch.tensor([[[0.0, 2.0]]]), None), np.zeros((1, 1), np.int64)
    )
    assert p.tolist() == [[[0.0, 1.0]]]


def test_bfloat16_logits_are_mixed_in_float32() -> None:
    cond = torch.randn(1, 1, 50).bfloat16()
    uncond = torch.randn(1, 1, 50).bfloat16()
    position = np.zeros((1, 1), dtype=np.int64)
    p = TokenSampler([SamplingParams(guidance_scale=5.0)], None, CPU)(Logits(cond, uncond), position)
    expected = (uncond.float() + 5.0 * (cond.float() - uncond.float())).softmax(-1)
    assert p.dtype == torch.float32 and torch.allclose(p, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "it must be 0 (greedy) or at least 0.0001"),
        ("temperature", 1e-9, "it must be 0 (greedy) or at least 0.0001"),
        ("temperature", "1", "it must be 0 (greedy) or at least 0.0001"),
        ("temperature", float("nan"), "it must be 0 (greedy) or at least 0.0001"),
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
