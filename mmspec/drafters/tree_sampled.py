"""A tree that grows one drawn node at a time, where it is worth most: DySpec's greedy expansion.

DySpec (Xiong et al. 2024, arXiv 2410.11744, algorithm 1). What an entry's next child is worth is the chance, as far as
the smaller model tells, that the walk comes to it: x drawn with probability R(x) from what is left of the law of an
entry worth v makes a child worth v R(x), whose own children are worth that at first, and leaves v (1 - R(x)) for the
next sibling. The next node always goes where most is to be had.

Whether a node is drawn depends on the tokens drawn before it, and on nothing else; then it is drawn from its entry's
law without the siblings before it, whatever comes up. So every sibling follows the law it is tested with, given all
that decided that it exists, and the recursive residual test is exact. Drawing more and verifying the best is not.
"""

from __future__ import annotations

import numpy as np
import torch

from mmspec.drafters.reader import Reader
from mmspec.noise import DRAFT
from mmspec.rows import Rows
from mmspec.tree import Tree, TreeDraft, WithoutReplacement
from mmspec.tree_verify import TreeVerdict
from mmspec.verify import sample


class TreeSampledDrafter:
    """Grows a tree for each row. The model is called when the next node needs a law it has not given yet.

    **Arguments:**

    - `reader`: the model or head, with the law that nodes are drawn from.
    - `nodes`: how many are verified; `depth`: the longest path.
    """

    def __init__(self, reader: Reader, nodes: int, depth: int) -> None:
        self._reader = reader
        self._nodes = nodes
        self._depth = depth

    @property
    def calls(self) -> int:
        return self._reader.calls

    def observe(self, verdict: TreeVerdict, rows: Rows) -> None:
        self._reader.observe(verdict, rows)

    def keep(self, rows: list[int]) -> None:
        self._reader.keep(rows)

    def propose(self, rows: Rows, iteration: int) -> TreeDraft:
        batch = len(rows.ids)
        every, row = np.arange(batch), torch.arange(batch, device=rows.device)
        nodes = self._nodes
        # As many numbers at each depth as there may be nodes: those of `Tree.uniforms`.
        u = rows.noise.uniforms(rows.positions(self._depth)[..., None], iteration, np.arange(nodes))[DRAFT]
        worth = np.full((batch, 1 + nodes), -1.0)
        worth[:, 0] = 1.0
        depth = np.zeros((batch, 1 + nodes), dtype=np.int64)
        made = np.zeros((batch, self._depth), dtype=np.int64)  # nodes of each depth so far
        parents = np.zeros((batch, nodes), dtype=np.int64)
        tokens = torch.zeros(batch, nodes, dtype=torch.int64, device=rows.device)
        laws = self._reader.root(rows)
        left = laws.clone()
        for j in range(nodes):
            entry = worth[:, : 1 + j].argmax(1)
            if (read := laws.shape[1]) <= entry.max():
                shape = Tree(parents[:, :j], rows.device)
                new = self._reader.nodes(rows, tokens[:, read - 1 : j], shape, read)
                laws, left = torch.cat([laws, new], dim=1), torch.cat([left, new], dim=1)
            below = depth[every, entry]
            place = made[every, below]
            made[every, below] += 1
            at = torch.from_numpy(entry).to(rows.device)
            rest = left[row, at]
            # Where nothing is left the draw repeats an earlier one, and counts for nothing.
            x = sample(rest, u[row, torch.from_numpy(below), torch.from_numpy(place)], fallback=laws[row, at])
            share = (rest[row, x] / rest.sum(-1).clamp(min=torch.finfo(rest.dtype).tiny)).double().cpu().numpy()
            left[row, at, x] = 0.0
            value = worth[every, entry]
            worth[every, entry] = value * (1 - share).clip(0)
            worth[:, 1 + j] = np.where(below + 1 < self._depth, value * share, -1.0)
            depth[:, 1 + j], parents[:, j], tokens[:, j] = below + 1, entry, x
        return TreeDraft(Tree(parents, rows.device), tokens, WithoutReplacement(laws))
