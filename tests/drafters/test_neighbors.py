"""Drafts that repeat neighbors in time, row and column: which one is taken, and that recipes with them stay exact."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.neighbors import NeighborDrafter
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Draft
from mmspec.testing.exactness import ExactnessResult, check
from mmspec.testing.toys import toy_resources

WIDTH, HEIGHT = 3, 2
FRAME = WIDTH * HEIGHT


def drafts(given: list[int], so_far: list[int], count: int, frame: int | None = FRAME, kept: int = 0) -> list[int]:
    """The drafts after `so_far`; the first `kept` of them are reused, and are 9."""
    state = BatchState([0], Layout(length=24, width=WIDTH), count + 1, torch.device("cpu"))
    state._tokens[0, : len(so_far)] = torch.tensor(so_far)
    state._lengths[:] = len(so_far)
    drafter = NeighborDrafter(torch.tensor([given], dtype=torch.int64), WIDTH, frame)
    draft = Draft(torch.full((1, count), 9), torch.zeros(1, count, 10))
    found = drafter.extend(state, draft, Numbers(np.array([kept])), None)  # type: ignore[arg-type]
    assert dense(found.q)[0, kept:].argmax(-1).tolist() == found.tokens[0, kept:].tolist()
    return list(found.tokens[0].tolist())


def test_what_stands_still_is_repeated_from_the_frame_before() -> None:
    frame = [1, 2, 3, 4, 5, 6]
    assert drafts(frame, [], 6) == frame
    assert drafts([7, 7, 7, 7, 7, 7, *frame], frame[:4], 4) == [5, 6, 1, 2]
    assert drafts(frame, frame[:4], 4, kept=1)[0] == 9


def test_even_regions_continue_rows_and_columns() -> None:
    # The scene has changed to rows of one token, then to columns.
    assert drafts([1, 2, 3, 4, 5, 6], [8, 8, 8, 7, 7], 1) == [7]
    assert drafts([1, 2, 3, 4, 5, 6], [7, 8, 0, 7, 8], 1) == [0]
    assert drafts([], [7, 8, 0, 7, 8], 1, frame=None) == [0]
    assert drafts([], [], 2, frame=None) == [0, 0]  # nothing is known


def exactness(monkeypatch: pytest.MonkeyPatch, recipe: str, seed: int) -> ExactnessResult:
    """A toy whose frames of 2 x 2 continue a given one, in batches whose rows drop out at different times."""
    layout = Layout(length=5, width=2, eos=frozenset({2}))

    def with_neighbors(rows: int, *arguments: Any) -> DraftResources:
        given = torch.randint(3, (rows, 4), generator=torch.Generator().manual_seed(seed))
        own = partial(NeighborDrafter, given, 2, 4)
        return replace(toy_resources(rows, *arguments), table=None, continuation=own)

    monkeypatch.setattr("mmspec.testing.exactness.toy_resources", with_neighbors)
    return check(recipe, SamplingParams(0.8, top_p=0.9), samples=20_000, layout=layout, vocab_size=3, seed=seed)


@pytest.mark.parametrize("recipe", ["scd:window=3", "sjd:window=4", "table:window=3"])
def test_recipes_with_neighbors_are_exact(monkeypatch: pytest.MonkeyPatch, recipe: str) -> None:
    result = exactness(monkeypatch, recipe, seed=4)
    assert result.ok and result.tokens_per_call > 1, result


def test_a_q_that_is_not_one_hot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: drafts that repeat a neighbor, as if they had been sampled evenly."""

    def even(ops: Any, q: Tensor, tokens: Tensor, first: int, is_new: Any, inplace: bool) -> Tensor:
        return torch.full_like(q, 1 / q.shape[-1])

    monkeypatch.setattr("mmspec.sampling.ops.TorchOps.point_mass", even)
    assert not exactness(monkeypatch, "table:window=3", seed=4).ok
