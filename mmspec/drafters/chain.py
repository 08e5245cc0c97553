"""Drafts without branches, drawn token by token from the laws of a reader."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.drafters.reader import Reader
from mmspec.noise import DRAFT, Draws
from mmspec.rows import Rows
from mmspec.tree import Tree
from mmspec.verify import Draft, Verdict, sample


class ChainDrafter:
    """Draws a chain; q is the law each token was drawn from. It also goes on behind drafts of others that stay.

    **Arguments:**

    - `reader`: gives the laws; it reads drafts that stay in one call, what is drawn one by one.
    - `device`: of the tokens.
    """

    def __init__(self, reader: Reader, device: torch.device) -> None:
        self._reader = reader
        self._chain = cache(lambda count: Tree.branching([1] * count, device))

    @property
    def calls(self) -> int:
        return self._reader.calls

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        self._reader.observe(verdict, rows)

    def keep(self, rows: list[int]) -> None:
        self._reader.keep(rows)

    def propose(self, rows: Rows, count: int, draws: Draws) -> Draft:
        return self._draw(rows, None, np.zeros(len(rows.ids), dtype=np.int64), count, draws)

    def extend(self, rows: Rows, draft: Draft, carried: NDArray[np.int64], draws: Draws) -> Draft:
        """See `mmspec.drafters.jacobi.Extender`."""
        return self._draw(rows, draft, carried, draft.tokens.shape[1], draws)

    def _draw(self, rows: Rows, draft: Draft | None, carried: NDArray[np.int64], count: int, draws: Draws) -> Draft:
        """`count` drafts per row, the first `carried` of which are those of `draft`."""
        chain, u, first = self._chain(count), draws[DRAFT], int(carried.min())
        tokens, laws = list[Tensor](), list[Tensor]()
        q = self._reader.root(rows)
        if draft is not None and first:
            tokens, laws = [draft.tokens[:, :first]], [draft.q[:, :first]]
            q = self._reader.nodes(rows, tokens[0], chain, 1)[:, -1:]
        for i in range(first, count):
            if i > first:
                q = self._reader.nodes(rows, tokens[-1], chain, i)
            x, law = sample(q, u[:, i : i + 1]), q
            if draft is not None and (stays := carried > i).any():
                # Rows of which more is left: what they have is read like what is drawn.
                stay = torch.from_numpy(stays[:, None]).to(x.device)
                x = torch.where(stay, draft.tokens[:, i : i + 1], x)
                law = torch.where(stay[..., None], draft.q[:, i : i + 1], q)
            tokens.append(x)
            laws.append(law)
        return Draft(torch.cat(tokens, dim=1), torch.cat(laws, dim=1))
