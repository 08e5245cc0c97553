"""The acceptance test and the resampling at their edges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.sampling.rejection import Draft, point_mass, ratio, sample, verify

LAST = 1 - 2.0**-24  # the largest random number


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def rows(*weights: list[float]) -> Tensor:
    return torch.tensor(weights)[None]


def u(*values: float) -> Tensor:
    return torch.tensor([values])


def test_equal_distributions_accept_whatever_the_random_number() -> None:
    p = torch.randn(4, 3, 1000).softmax(-1)
    tokens = torch.randint(1000, (4, 2))
    verdict = verify(p, Draft(tokens, p[:, :2].clone()), ratio, torch.full((4, 3), LAST), torch.rand(4, 3))
    assert verdict.accepted.tolist() == [2] * 4 and torch.equal(verdict.tokens[:, :2], tokens)


def test_an_impossible_draft_is_rejected_even_by_a_zero() -> None:
    p = rows([0.0, 0.4, 0.6], [1.0, 0.0, 0.0])
    draft = Draft(torch.tensor([[0]]), rows([1.0, 0.0, 0.0]))
    verdict = verify(p, draft, ratio, u(0.0, 0.0), u(0.0, 0.0))
    assert verdict.accepted.tolist() == [0] and verdict.tokens[0, 0] == 1


def test_resampling_never_gives_a_token_that_q_covers() -> None:
    p, q = rows([0.5, 0.3, 0.2], [1.0, 0.0, 0.0]), rows([0.2, 0.3, 0.5])
    for number in (0.0, 0.5, LAST):
        verdict = verify(p, Draft(torch.tensor([[2]]), q), ratio, u(0.9, 0.9), u(number, number))
        assert verdict.accepted.tolist() == [0] and verdict.tokens[0, 0] == 0


def test_drafts_after_the_first_rejection_do_not_count() -> None:
    p = torch.full((1, 4, 2), 0.5)
    q = torch.tensor([[[0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]])
    verdict = verify(p, Draft(torch.tensor([[0, 1, 1]]), q), ratio, u(0.9, 0.9, 0.9, 0.9), u(0, 0, 0, 0))
    assert verdict.accepted.tolist() == [1] and verdict.tokens[0, :2].tolist() == [0, 0]


@pytest.mark.parametrize("inplace", [False, True])
def test_point_masses_leave_the_slots_of_reused_drafts(inplace: bool) -> None:
    q, tokens = torch.rand(2, 4, 3).softmax(-1), torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])
    expected = q.clone()
    expected[0, 3] = expected[1, 3] = torch.tensor([1.0, 0.0, 0.0])
    expected[1, 2] = torch.tensor([0.0, 1.0, 0.0])
    assert torch.equal(point_mass(q, tokens, 2, np.array([[False, True], [True, True]]), inplace), expected)


@pytest.mark.parametrize("number", [0.0, 0.25, 0.5, LAST])
def test_a_sample_always_has_mass(number: float) -> None:
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 3e-30]])
    token = sample(weights, torch.full((2,), number))
    assert (weights.gather(1, token[:, None]) > 0).all()
    assert token[0] == (1 if number < 0.5 else 3)


def test_samples_follow_their_weights() -> None:
    weights = torch.tensor([0.1, 0.0, 2.0, 0.9]).expand(20_000, -1)
    counts = torch.bincount(sample(weights, torch.arange(20_000) / 20_000), minlength=4) / 20_000
    assert torch.allclose(counts, weights[0] / 3, atol=1e-3)


def test_a_residual_without_mass_falls_back() -> None:
    fallback = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    weights = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    assert sample(weights, torch.zeros(2), fallback).tolist() == [1, 1]


@pytest.mark.parametrize("bad", [float("nan"), 0.0])
def test_weights_without_mass_are_an_error(bad: float) -> None:
    weights = torch.ones(3, 4)
    weights[1] = bad
    with pytest.raises(ModelError, match="not numbers"):
        sample(weights, torch.zeros(3))
    with pytest.raises(ModelError, match="not numbers"):
        sample(weights, torch.zeros(3), fallback=torch.full((3, 4), bad))


def test_a_large_vocabulary_is_sampled_group_by_group() -> None:
    """Equal to the definition in float64, at numbers before and after the ends of groups."""
    weights = torch.rand(3, 5000).pow(8)
    weights[0, :2000], weights[1, 130:], weights[2, 4999] = 0.0, 0.0, 50.0
    cdf = weights.double().cumsum(-1)
    ends = (cdf / cdf[:, -1:])[:, 127::128].float()
    u = torch.cat([ends - 1e-4, ends + 1e-4, torch.zeros(3, 1)], dim=1).clamp(0, 1 - 1e-5)
    tokens = sample(weights[:, None].expand(-1, u.shape[1], -1), u)
    assert torch.equal(tokens, torch.searchsorted(cdf, u * cdf[:, -1:], right=True))


def test_rounding_in_a_group_never_leads_past_its_last_token() -> None:
    """The sum of a group in float32 may exceed its running sum in float64, so that a number lies between the two."""
    weights = torch.zeros(4000, 4224)
    weights[:, 4096:4200] = torch.rand(4000, 104)  # the last group, which ends with tokens without mass
    total = weights.unflatten(-1, (-1, 128)).sum(-1).double().sum(-1)
    between = total * LAST >= weights.double().sum(-1)
    assert between.sum() > 20
    assert (sample(weights, torch.full((4000,), LAST)) == 4199).sum() >= between.sum()
    assert (weights.gather(1, sample(weights, torch.full((4000,), LAST))[:, None]) > 0).all()
