"""A tree of one shape whose siblings are the guesses of an n-gram table: chosen, not drawn, so tested target-only."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from mmspec.drafters.start import NGramTable
from mmspec.rows import Rows
from mmspec.tree import Chosen, Tree, TreeDraft
from mmspec.tree_verify import TreeVerdict


class TreeTableDrafter:
    """Grows a tree from the tokens to the left and above, without a model.

    **Arguments:**

    - `table`: the guesses.
    - `branch`: for each depth, how many children an entry of it has.
    - `vocab_size`: V.
    - `device`: of the tokens.
    """

    calls = 0

    def __init__(self, table: NGramTable, branch: Sequence[int], vocab_size: int, device: torch.device) -> None:
        self._table = table
        self._branch = branch
        self._tree = Tree.branching(branch, device)
        self._siblings = Chosen(vocab_size)

    def observe(self, verdict: TreeVerdict, rows: Rows) -> None:
        pass

    def keep(self, rows: list[int]) -> None:
        pass

    def propose(self, rows: Rows, iteration: int) -> TreeDraft:
        width, constraint = rows.layout.width, rows.layout.constraint
        positions = rows.positions(len(self._branch))
        above = rows.at(positions - width) if width else torch.full(positions.shape, -1, device=rows.device)
        levels = [rows.last()]
        for depth, count in enumerate(self._branch):
            left, position = levels[-1], positions[:, depth]
            up = above[:, depth : depth + 1].expand_as(left)
            if width and depth >= width:
                # The line above lies within the tree.
                up = levels[depth + 1 - width].repeat_interleave(prod(self._branch[depth + 1 - width : depth]), dim=1)
            if width and (position % width == 0).any():
                # The token before the first of a line is no neighbour; the one above stands in.
                line_start = torch.from_numpy(position % width == 0).to(up.device)[:, None]
                left = torch.where(line_start & (up >= 0), up, left)
            found = guesses(self._table, left, up, count).flatten(1)
            if constraint is not None:
                forced = torch.from_numpy(constraint.forced[position.clip(max=len(constraint.forced) - 1)])
                must = forced.to(found.device)[:, None]
                found = torch.where(must >= 0, must, found)
            levels.append(found)
        return TreeDraft(self._tree, torch.cat(levels[1:], dim=1), self._siblings)


def guesses(table: NGramTable, left: Tensor, up: Tensor, count: int) -> Tensor:
    """The first `count` guesses of what follows `left` and stands below `up` (-1: none), int64 [..., count].

    What the pair is followed by, what the left token is, the one above, the one before, and what the one above is
    followed by: different ones first, and repetitions of the first where there are no more.
    """
    upper = torch.where(up >= 0, up, left)
    several = [table.best[up, left], table.best[-1][left], upper, left, table.best[-1][upper]]
    found = torch.stack([guess.long() for guess in several], dim=-1)
    repeated = (found[..., :, None] == found[..., None, :]).tril(-1).any(-1)
    found = torch.where(repeated, found[..., :1], found)
    found = found.gather(-1, repeated.int().argsort(dim=-1, stable=True))
    return torch.cat([found, found[..., :1].expand(*found.shape[:-1], max(count - 5, 0))], dim=-1)[..., :count]
