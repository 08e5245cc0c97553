"""Drafts without branches, drawn token by token from the laws of a reader."""

from __future__ import annotations

from functools import cache

import torch

from mmspec.drafters.reader import Reader
from mmspec.noise import DRAFT, Draws
from mmspec.rows import Rows
from mmspec.tree import Tree
from mmspec.verify import Draft, Verdict, sample


class ChainDrafter:
    """Draws a chain; q is the law each token was drawn from.

    **Arguments:**

    - `reader`: gives the laws.
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
        chain, u = self._chain(count), draws[DRAFT]
        laws = [self._reader.root(rows)]
        tokens = [sample(laws[0], u[:, :1])]
        for i in range(1, count):
            laws.append(self._reader.nodes(rows, tokens[-1], chain, i))
            tokens.append(sample(laws[-1], u[:, i : i + 1]))
        return Draft(torch.cat(tokens, dim=1), torch.cat(laws, dim=1))
