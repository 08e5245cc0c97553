"""A drafter without a model: token initialization from neighboring tokens, slot by slot."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.recycle import Recycle
from mmspec.drafters.token_init import TokenInit, random_token, repeat_left, repeat_up
from mmspec.errors import ArgumentError
from mmspec.sampling.rejection import Draft, Verdict, point_mass
from mmspec.sampling.rng import INIT, WindowRNG


class InitDrafter:
    """A `mmspec.drafters.jacobi.ContinuationDrafter` that fills slots by token initialization.

    The drafts are not sampled from a distribution, so that their q is one-hot; any initialization is exact.

    Args:
        init: The initialization; a `Recycle` is updated after every target call.
    """

    calls = 0

    def __init__(self, init: TokenInit | Recycle) -> None:
        self._init = init
        self._recycle = init if isinstance(init, Recycle) else None

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        if self._recycle is not None:
            self._recycle.update(verdict, state)

    def select_rows(self, row_ids: list[int]) -> None:
        if self._recycle is not None:
            self._recycle.select_rows(row_ids)

    def extend(self, state: BatchState, draft: Draft, reused: NDArray[np.int64], draws: WindowRNG) -> Draft:
        """See `mmspec.drafters.jacobi.ContinuationDrafter`."""
        tokens, q, u = draft.tokens, draft.q, draws[INIT]
        count, first, width = tokens.shape[1], int(reused.min()), state.layout.width
        aligned = bool((reused == first).all())  # all rows reuse the same number of drafts
        is_new = np.arange(first, count) >= reused[:, None]
        new = torch.from_numpy(is_new).to(state.device)
        positions = state.positions(count)
        above = state.at(positions - width).unbind(1) if width else ()
        line_starts = positions % width == 0 if width else np.zeros_like(positions, dtype=bool)
        constraint = state.layout.constraint
        columns = list(tokens[:, :first].unbind(1))
        before, left = [*state.last(2).unbind(1), *columns][-2:]
        for j in range(first, count):
            up = before  # in a stream
            if width:
                # The token above may be in this window, and not committed yet.
                up = columns[j - width] if j >= width else above[j]
                if line_starts[:, j].any():
                    # The first token of a line has no left neighbor; the token above replaces it.
                    left = torch.where(torch.from_numpy(line_starts[:, j]).to(up.device) & (up >= 0), up, left)
            before, left = left, self._init(left, up, u[:, j])
            if constraint is not None:
                forced = constraint.forced[positions[:, j].clip(max=len(constraint.forced) - 1)]
                if (forced >= 0).any():
                    must = torch.from_numpy(forced).to(left.device)
                    left = torch.where(must >= 0, must, left)
            if not aligned:
                left = torch.where(new[:, j - first], left, tokens[:, j])
            columns.append(left)
        tokens = torch.stack(columns, dim=1)
        return Draft(tokens, point_mass(q, tokens, first, is_new))


def token_init(context: DraftingContext, name: str) -> TokenInit | Recycle:
    """A token initialization by name: "left", "up", "random", "table" or "recycle".

    Raises:
        ArgumentError: If the model has no n-gram table.
    """
    layout, target, table = context.layout, context.target, context.resources.table
    above = repeat_up if layout.width else repeat_left
    if name == "recycle":
        return Recycle(context.batch_size, target.vocab_size, above, target.device)
    if name == "table":
        if table is None:
            raise ArgumentError(f"recipe '{context.recipe}' needs an n-gram table, and this model has none")
        return table
    return {"left": repeat_left, "up": above, "random": random_token(target.vocab_size)}[name]
