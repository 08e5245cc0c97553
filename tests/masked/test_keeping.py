"""Which tokens of a masked model stay beyond its schedule: what each method decides, and what it costs on a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from masked_table import LIMIT, ROWS, N, TableProcess, V, decode, distance
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.masked.filter import FEATURES, LearnedFilter, Watch, features_of, load_filter, train_filter
from mmspec.masked.keeping import Credit, Keeper, NearSure, Sampled
from mmspec.masked.loop import Ints
from mmspec.sampling.rng import CounterRNG


class KeepingProcess(TableProcess):
    """Fills one place per step of a 2 x 2 grid, and what a keeper adds."""

    def __init__(self, keep: Keeper, rows: int = ROWS) -> None:
        super().__init__(range(rows), N)
        self._keep = keep.start(rows)

    def advance(self, rows: Ints, states: Tensor, logits: Tensor, steps: Ints) -> Tensor:
        rng = CounterRNG([self.seeds[int(row)] for row in rows], torch.device("cpu"))
        token = (logits + rng.gumbel(steps[:, None] * N + np.arange(N), V)).argmax(-1)
        known = self._order[rows].argsort(1).argsort(1) < torch.from_numpy(steps + 1)[:, None]
        missing = states == V
        known |= self._keep.keep(Sampled(rows, steps, missing, token, logits.softmax(-1), (2, 2)))
        return torch.where(missing & known, token, states)


def sampled(confidence: list[float], step: int = 0) -> Sampled:
    """One row of 3 x 3 places with two tokens; token 0 is sampled with the given probabilities."""
    p = torch.tensor(confidence)
    both = torch.stack([p, 1 - p], dim=-1)[None]
    return Sampled(np.zeros(1, dtype=np.int64), np.array([step]), torch.ones(1, 9, dtype=torch.bool),
                   torch.zeros(1, 9, dtype=torch.int64), both, (3, 3))  # fmt: skip


def test_less_sure_tokens_stay_next_to_sure_ones() -> None:
    found = NearSure(0.9, 0.6).keep(sampled([0.95, 0.7, 0.7, 0.5, 0.7, 0.7, 0.7, 0.7, 0.7]))
    assert found[0].tolist() == [True, True, False, False, True, False, False, False, False]


def test_credit_grows_where_the_model_prefers_the_same_token() -> None:
    keep = Credit(0.8, weight=1.0, decay=0.5).start(1)
    first = keep.keep(sampled([0.7] * 9))
    # The credit is 0.7, so that the confidence is 0.7 * 1.7 / (0.7 * 1.7 + 0.3) = 0.799; then the credit is 1.05.
    assert not first.any()
    assert keep.keep(sampled([0.7] * 9, 1)).all()
    assert not Credit(0.8, weight=0.0).start(1).keep(sampled([0.7] * 9)).any()
    heavy = Credit(0.8, weight=100.0, decay=1.0).start(1)
    assert all(heavy.keep(sampled([0.7] * 9, step)).all() for step in range(4)), "the largest weight keeps at once"


@pytest.mark.parametrize(("keep", "calls", "measured"), [(NearSure(0.8, 0.5), 2.82, 0.112), (Credit(0.8), 2.63, 0.149)])
def test_cost_in_total_variation(keep: Keeper, calls: float, measured: float) -> None:
    process = KeepingProcess(keep)
    tokens, stats = decode(process)
    assert abs(distance(tokens, process) - measured) < LIMIT
    assert sum(row.target_calls for row in stats.rows) / ROWS == pytest.approx(calls, abs=0.05)


def test_a_row_does_not_depend_on_its_batch() -> None:
    whole = decode(KeepingProcess(Credit(0.8), 8))[0]
    assert torch.equal(decode(KeepingProcess(Credit(0.8), 3))[0], whole[:3])


def test_a_filter_learns_which_tokens_are_final(tmp_path: Path) -> None:
    watch = Watch()
    decode(KeepingProcess(watch, 20))  # pairs are those of the last call
    final, _ = decode(KeepingProcess(watch, 500))
    features, right = watch.pairs(final)
    assert len(right) == 500 * (4 + 3 + 2 + 1)
    assert features.shape == (len(right), FEATURES)
    found = train_filter(features, right, steps=100)
    with torch.no_grad():
        p = found(features).sigmoid()
    assert abs(float(p.mean() - right.mean())) < 0.1
    assert float(p[right == 1].mean() - p[right == 0].mean()) > 0.2
    found.save(tmp_path / "filter.safetensors")
    again = load_filter(tmp_path / "filter.safetensors", sure=0.6)
    given = sampled([0.1, 0.9, 0.95] * 3)
    found.sure = 0.6
    assert torch.equal(again.keep(given), found.keep(given))
    assert features_of(given).shape == (1, 9, FEATURES)
    with pytest.raises(ModelError, match="is not a filter"):
        load_filter(tmp_path / "none.safetensors")


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="sure=2 is not allowed"):
        NearSure(sure=2)
    with pytest.raises(ArgumentError, match="decay=-1 is not allowed"):
        Credit(decay=-1)
    with pytest.raises(ArgumentError, match="sure=1.5 is not allowed"):
        LearnedFilter(1.5)
