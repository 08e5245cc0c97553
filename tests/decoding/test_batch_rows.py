"""Tokens of rows whose order in the batch is not that of the request."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.rows import join_rows, select_rows
from mmspec.decoding.to_end import decode_to_end
from mmspec.decoding.window_policy import FixedWindow
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget, toy_resources

CPU = torch.device("cpu")


@pytest.mark.parametrize("append", [True, False])
def test_rows_write_to_their_own_places(append: bool) -> None:
    """Row 0 has left, and a row that joins has its number: the batch has rows 1 and 0, with a token each."""
    state, other = BatchState([0, 1], Layout(6), 2, CPU), BatchState([5], Layout(6), 2, CPU)
    state.append(torch.tensor([[1], [2]]))
    select_rows(state, [1], 2)
    other.append(torch.tensor([[7]]))
    join_rows(state, other, state.places(1), state, other)
    assert state.ids.tolist() == [1, 0] and state.length.tolist() == [1, 1]
    assert state.last().tolist() == [[2], [7]]
    if append:
        state.append(torch.tensor([[20], [70]]))
    else:
        state.commit(torch.tensor([[20, 21], [70, 71]]), np.array([0, 0]))
    assert [state.tokens(row).tolist() for row in (1, 0)] == [[2, 20], [7, 70]]


class Together(FixedWindow):
    """A policy by which the rows advance together."""

    def together(self) -> bool:
        return True


def test_rows_of_trees_advance_at_their_own_pace_under_any_policy() -> None:
    layout, seeds, samplings = Layout(8), [0, 1, 2], [SamplingParams()] * 3
    recipe = parse("tree:branch=2/1")
    found = []
    for policy in (FixedWindow(recipe.window), Together(recipe.window)):
        rows = PreparedRows(ToyTarget(3, 3, 8, 0), layout, samplings, toy_resources(3, 3, layout, 0, samplings))
        batch = rows.batch(recipe, seeds)
        batch.use(policy)
        found.append(decode_to_end(batch).tokens)
    assert torch.equal(*found)
