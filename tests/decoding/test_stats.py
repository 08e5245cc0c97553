"""Statistics of a run, row by row, against the enumerated distribution of a toy model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from batch_runs import run

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter
from mmspec.decoding.to_end import Decoded
from mmspec.drafters.ngram import NGramTable
from mmspec.recipes import parse
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.testing.exactness import exact_joint
from mmspec.testing.toys import ToyTarget

V, N, ROWS = 3, 5, 300
SAMPLING = SamplingParams(temperature=0.8, guidance_scale=1.5)


def decode(
    recipe: str, batch_size: int = ROWS, sampling: SamplingParams = SAMPLING, layout: Layout | None = None
) -> Decoded:
    table = NGramTable(torch.arange(V).repeat(V + 1, 1))
    resources = DraftResources(table, lambda: ToyTarget(batch_size, V, N, 7), [SamplingParams()] * batch_size)
    target = ToyTarget(batch_size, V, N, 0, guided=True)
    layout = layout or Layout(length=N, width=2)
    return run(
        target, parse(recipe), layout, [sampling] * batch_size, range(batch_size), resources, measure_entropy=True
    )


@pytest.mark.parametrize("recipe", ["plain", "scd:window=3", "draft+beta:beta=0.3", "tree:branch=2/1", "top-m:m=2"])
def test_nll_of_each_row_agrees_with_the_joint_distribution(recipe: str) -> None:
    decoded = decode(recipe)
    joint = exact_joint(ToyTarget(1, V, N, 0, True), SAMPLING, Layout(length=N))
    number = (decoded.tokens * V ** torch.arange(N - 1, -1, -1)).sum(1)
    expected = -joint[number].log2() / N
    stats = decoded.stats
    assert [row.nll for row in stats.rows] == pytest.approx(expected.tolist(), abs=1e-5)
    assert stats.nll == pytest.approx(float(expected.mean()), abs=1e-5)
    assert stats.entropy == pytest.approx(np.mean([row.entropy for row in stats.rows]))
    assert sum(row.target_calls for row in stats.rows) == pytest.approx(stats.tokens / stats.tokens_per_call)
    assert stats.tv_bound == pytest.approx(np.mean([row.tv_bound for row in stats.rows]))


def test_nll_of_rows_that_end_early_counts_their_tokens_only() -> None:
    decoded = decode("scd:window=3", layout=Layout(length=N, eos=frozenset({1}), pad=0))
    lengths = [int((row == 1).nonzero()[0]) + 1 if (row == 1).any() else N for row in decoded.tokens]
    assert [row.tokens for row in decoded.stats.rows] == lengths
    assert all(row.nll is not None and 0 < row.nll < 20 for row in decoded.stats.rows)


def test_a_token_that_top_k_excludes_counts_as_40_bits() -> None:
    decoded = decode("draft+beta:beta=0.3", batch_size=200, sampling=SamplingParams(temperature=0.8, top_k=1))
    assert decoded.stats.nll is not None and 0 < decoded.stats.nll <= 40
    greedy = decode("plain", batch_size=4, sampling=SamplingParams(temperature=0.0))
    assert greedy.stats.nll == greedy.stats.entropy == 0


def test_the_bound_sums_the_tested_drafts_of_each_row() -> None:
    """Not those after the first rejected one, nor those after the end of a row."""
    meter = Meter(torch.device("cpu"), 3)
    p, excess = torch.full((3, 4, 2), 0.5), torch.tensor([[0.1, 0.2, 0.4], [0.01, 0.02, 0.04], [1.0, 1.0, 1.0]])
    draft = Draft(torch.zeros(3, 3, dtype=torch.int64), p[:, :3])
    tokens = torch.zeros(3, 4, dtype=torch.int64)
    accepted, gained = np.array([1, 3, 0]), np.array([2, 1, 1])
    meter.count(Verdict(tokens, Numbers(accepted), p, draft, excess), gained, np.arange(3))
    stats = meter.stats(0)
    assert [row.tv_bound for row in stats.rows] == pytest.approx([0.3 / 2, 0.01, 1.0])
    assert stats.tv_bound == pytest.approx((0.3 + 0.01 + 1.0) / 4)
    assert stats.acceptance == [pytest.approx(2 / 3), 0.0, None]


@pytest.mark.parametrize("recipe", ["draft+{},window=4", "scd+{},window=4", "tree+{},branch=2/1", "spectr+{},drafts=2"])
@pytest.mark.parametrize("rule", ["ensemble:draft=0.3", "beta:beta=0.2"])
def test_the_bound_is_no_larger_than_the_drafts_that_were_tested(recipe: str, rule: str) -> None:
    """One test adds at most what the rule may add: 0.3 or 0.2. Each emitted token has at most one, in a window."""
    stats = decode(recipe.format(rule), batch_size=2000).stats
    per_token = float(rule.partition("=")[2]) * (1 if recipe[0] in "ds" and "spectr" not in recipe else 2)
    assert 0 < stats.tv_bound < per_token * (N - 1) / N
