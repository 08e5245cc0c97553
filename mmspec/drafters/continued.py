"""Drafts behind drafts that stay, from the laws of any reader: Jacobi's start by a model or a head."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.drafters.reader import Reader
from mmspec.noise import DRAFT, Draws
from mmspec.rows import Rows
from mmspec.tree import Tree
from mmspec.verify import Draft, Verdict, sample


class Continued:
    """Goes on from leftovers as from tokens that were accepted; see `mmspec.drafters.jacobi.Extender`.

    **Arguments:**

    - `reader`: gives the laws; it reads the leftovers in one call, what it draws one by one.
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

    def extend(self, rows: Rows, draft: Draft, carried: NDArray[np.int64], draws: Draws) -> Draft:
        count, first = draft.tokens.shape[1], int(carried.min())
        chain, u = self._chain(count), draws[DRAFT]
        q = self._reader.root(rows)
        if first:
            q = self._reader.nodes(rows, draft.tokens[:, :first], chain, 1)[:, -1:]
        tokens, laws = [draft.tokens[:, :first]], [draft.q[:, :first]]
        for i in range(first, count):
            if i > first:
                q = self._reader.nodes(rows, tokens[-1], chain, i)
            x, law = sample(q, u[:, i : i + 1]), q
            if (stays := carried > i).any():
                # Rows of which more is left: what they have is read like what is drawn.
                stay = torch.from_numpy(stays[:, None]).to(x.device)
                x = torch.where(stay, draft.tokens[:, i : i + 1], x)
                law = torch.where(stay[..., None], draft.q[:, i : i + 1], q)
            tokens.append(x)
            laws.append(law)
        return Draft(torch.cat(tokens, dim=1), torch.cat(laws, dim=1))
