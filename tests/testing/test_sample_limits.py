"""The limits of the exactness check: no more false alarms than stated, and not many fewer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.sampling.params import SamplingParams
from mmspec.testing.exactness import exact_joint, largest_z, score_of_drafts, score_of_repeats
from mmspec.testing.limits import mean_limits, tv_limit
from mmspec.testing.toys import ToyTarget


def binomial(n: int, p: float) -> Tensor:
    """Probabilities float64 [n + 1]."""
    k = torch.arange(n + 1, dtype=torch.float64)
    log = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return (log + k * math.log(p) + (n - k) * math.log(1 - p)).exp()


@pytest.mark.parametrize("false_alarm", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize(("n", "p"), [(200, 0.3), (2000, 0.5), (2000, 0.004)])
def test_false_alarms_of_two_sequences(n: int, p: float, false_alarm: float) -> None:
    """Exact for two sequences, where the normal approximation of |count - mean| is worst."""
    joint, chance = torch.tensor([p, 1 - p], dtype=torch.float64), binomial(n, p)
    error = torch.arange(n + 1) / n - p
    alarms = float(chance[error.abs() > tv_limit(joint, n, false_alarm)].sum())
    assert alarms <= false_alarm and (alarms > false_alarm / 1000 or p < 0.3)
    above, below = mean_limits(joint, torch.tensor([1.0, 0.0], dtype=torch.float64), n, false_alarm)
    for side, limit in ((error, above), (-error, below)):
        assert false_alarm / 30 < float(chance[side > limit].sum()) <= false_alarm or limit > float(side.max())


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_k=2)])
def test_false_alarms_of_many_sequences(sampling: SamplingParams) -> None:
    """At a level that can be simulated: 20,000 samples of 5,000 rows, of which 1 % may exceed each limit."""
    joint = exact_joint(ToyTarget(1, 3, 4, 1), sampling, Layout(4, width=2))
    score = joint.clamp(min=1e-300).log()
    counts = torch.from_numpy(np.random.default_rng(0).multinomial(5000, (joint / joint.sum()).numpy(), size=20_000))
    tv = (counts / 5000 - joint).abs().sum(1) / 2
    mean = (counts / 5000 - joint) @ score
    above, below = mean_limits(joint, score, 5000, 0.01)
    for exceeded in (tv > tv_limit(joint, 5000, 0.01), mean > above, -mean > below):
        assert 0 < int(exceeded.sum()) <= 200


def test_power() -> None:
    """At once-in-a-million limits: which biases 20,000 samples of 243 sequences show, in at least 90 of 100 runs."""
    joint, drafts = (exact_joint(ToyTarget(1, 3, 5, s), SamplingParams(), Layout(5, width=2)) for s in (1, 1001))
    scores = score_of_drafts(joint, drafts), score_of_repeats(3, 5)
    rng, limit = np.random.default_rng(0), tv_limit(joint, 20_000, 5e-7)

    def found(biased: Tensor) -> tuple[float, int, int]:
        """Total variation of the bias, and in how many of 100 runs distance and scores find it."""
        counts = torch.from_numpy(rng.multinomial(20_000, (biased / biased.sum()).numpy(), size=100))
        by_tv = int(((counts / 20_000 - joint).abs().sum(1) / 2 > limit).sum())
        by_z = sum(abs(z) > bound for z, bound in (largest_z(joint, c, scores, 5e-7) for c in counts))
        return float((biased / biased.sum() - joint).abs().sum() / 2), by_tv, by_z

    distance = float((drafts - joint).abs().sum() / 2)
    tv, by_tv, by_z = found(joint + (drafts - joint) * 0.02 / distance)
    assert tv == pytest.approx(0.02, abs=1e-3) and by_tv < 20 and by_z > 90
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], len(joint)))
    tv, by_tv, by_z = found(joint * (1 + 0.08 * signs))
    assert tv == pytest.approx(0.04, abs=2e-3) and by_tv > 90


def test_scores() -> None:
    joint = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    assert score_of_repeats(2, 2).tolist() == [1, 0, 0, 1]
    assert score_of_repeats(3, 3)[[0, 1, 4, 5]].tolist() == [2, 1, 1, 0]
    drafts = torch.tensor([0.25, 0.25, 0.5, 0.0], dtype=torch.float64)
    assert score_of_drafts(joint, drafts)[:3].tolist() == pytest.approx([-math.log(2), 0, math.log(2)])
    # Impossible sequences do not count, and a score that is the same for all possible ones says nothing.
    counts = torch.tensor([500, 250, 250, 7])
    assert largest_z(joint, counts, [torch.tensor([1.0, 1.0, 1.0, 9.0]).double()], 1e-6) == (0.0, 0.0)
    z, limit = largest_z(joint, torch.tensor([800, 100, 100, 0]), [score_of_repeats(2, 2)], 1e-6)
    assert z == pytest.approx(0.3 / 0.5 * 1000**0.5) and 4.9 < limit < 6
