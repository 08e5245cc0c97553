"""Rows drop their reused drafts where guesses have given more, and decode exactly whatever is chosen.

A bias of 0.02 in total variation is found as in `tests/testing/test_exactness.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
import torch
from batch_runs import run
from torch import Tensor

import mmspec.drafters.jacobi as jacobi
import mmspec.drafters.restarts as restarts
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.drafters.restarts import Restarts
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Verdict, ratio
from mmspec.sampling.rng import ACCEPT, WindowRNG
from mmspec.testing.columns import check_columns
from mmspec.testing.exactness import ExactnessResult, check
from mmspec.testing.toys import ToyTarget

V, LENGTH, ROWS = 64, 128, 4


class Repeating(ToyTarget):
    """Repeats its last token with a probability of two thirds; what else comes is likely after this token alone."""

    def forward(self, tokens: Tensor, at: np.ndarray, early_exit: EarlyExit | None = None) -> Logits:
        table = 4 * torch.randn(V, V, generator=torch.Generator().manual_seed(1))
        table = (0.33 * table.fill_diagonal_(-torch.inf).softmax(-1)).log()
        return Logits(table.fill_diagonal_(float(np.log(0.67)))[tokens], None)


def calls(recipe: str) -> float:
    settings = [SamplingParams()] * ROWS
    drafts = DraftResources(draft_model=lambda: Repeating(ROWS, V, 3, 0))
    stats = run(Repeating(ROWS, V, 3, 0), parse(recipe), Layout(LENGTH), settings, range(ROWS), drafts).stats
    return LENGTH / stats.tokens_per_call


@pytest.mark.parametrize(
    "recipe", ["scd", "sjd", "scd:window=4", "scd:coupling=gumbel", "scd:start=random", "scd:refresh=model,weight=0"]
)
def test_a_target_that_repeats_its_last_token(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    restarted = calls(recipe)
    monkeypatch.setattr(restarts, "_MARGIN", np.inf)
    reusing = calls(recipe)
    assert reusing > 100
    if "random" in recipe:
        assert restarted == reusing
    else:
        assert restarted < 0.67 * reusing, (restarted, reusing)


def decoded(rows: Sequence[int], recipe: str = "scd:window=8", length: int = 40) -> Tensor:
    settings = [SamplingParams()] * len(rows)
    return run(Repeating(len(rows), V, 3, 0), parse(recipe), Layout(length), settings, rows).tokens


def test_a_row_chooses_as_it_would_alone() -> None:
    """The last windows of a row are wider where others need it."""
    rows = [12, 17, 26, 31, 0, 1]
    for row, tokens in zip(rows, decoded(rows), strict=True):
        assert torch.equal(tokens, decoded([row])[0])


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off")
def test_rows_choose_alike_where_kernels_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    wanted = decoded([0], "sjd:window=4", 22)
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    assert torch.equal(decoded([0], "sjd:window=4", 22), wanted)


class OneSlot:
    """Repeats the token before, and takes one slot of each row at a time, as the drafter does."""

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        assert left.ndim == up.ndim == u.ndim == 1
        return left


def test_an_initialization_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = decoded([0, 1])
    monkeypatch.setattr(jacobi, "token_init", lambda context, name: OneSlot())
    assert torch.equal(decoded([0, 1]), wanted)


# --- Exactness: choices that change from window to window ------------------------------------------------------------

HOT = SamplingParams(1.4)
SETTINGS = [
    ("scd:window=4,start=left", SamplingParams(temperature=0.8, top_p=0.9, guidance_scale=1.5)),
    ("scd:window=3,coupling=gumbel,start=left", HOT),
    ("sjd:window=4", SamplingParams(temperature=1.4, top_p=0.8)),
    ("scd:window=4,start=left,refresh=model", HOT),
    ("scd:window=4,start=left,refresh=outer", HOT),
]


def eager(monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    """Makes both choices likely within a few windows; returns the choices for rows that have drafts to reuse."""
    for name, value in {"_FIRST_GAIN": 1.4, "_MEMORY": 0.3, "_MARGIN": 1.0}.items():
        monkeypatch.setattr(restarts, name, value)
    seen, after = set[bool](), Restarts.after

    def watched(self: Restarts, accepted: Numbers, width: int) -> Numbers:
        found = after(self, accepted, width)
        seen.update((found.host > accepted.host)[accepted.host < width - 1].tolist())
        return found

    monkeypatch.setattr(Restarts, "after", watched)
    return seen


@pytest.mark.parametrize(("recipe", "sampling"), SETTINGS, ids=[recipe for recipe, _ in SETTINGS])
def test_choices_keep_the_distribution(recipe: str, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = eager(monkeypatch)
    result = check(recipe, sampling, samples=20_000, layout=Layout(6, width=3), seed=1)
    assert result.ok and seen == {True, False}, result


def test_choices_keep_the_distribution_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = eager(monkeypatch)
    result = check_columns("scd:window=3", HOT, samples=10_000, layout=Layout(4, cell=(2,)), seed=5)
    assert result.ok and seen == {True, False}, result


def know_the_tests_of_kept_drafts(self: Restarts, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
    """The twin: rows drop the drafts that have passed their tests."""
    m, row = verdict.tokens.shape[1] - 1, np.arange(len(verdict.accepted))
    self._restarts = self._reused = np.zeros(len(row), dtype=np.bool_)
    if m > 1:
        chance = ratio(dense(verdict.p)[:, :m], dense(verdict.draft.q), verdict.draft.tokens)
        passed = (draws[ACCEPT][:, :m] < chance).numpy()
        self._restarts = passed[row, np.minimum(verdict.accepted + 1, m - 1)] & (verdict.accepted + 1 < m)


@lru_cache
def unbroken() -> ExactnessResult:
    return check("scd:window=4,start=left", HOT, samples=20_000, layout=Layout(5, width=2), seed=1)


def test_a_choice_by_the_kept_drafts_would_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unbroken().ok
    monkeypatch.setattr(Restarts, "observe", know_the_tests_of_kept_drafts)
    result = check("scd:window=4,start=left", HOT, samples=20_000, layout=Layout(5, width=2), seed=1)
    assert not result.ok, result
