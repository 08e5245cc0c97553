"""A smaller model of the same vocabulary, read for the laws that a tree is grown from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.law import Law, Logits
from mmspec.rows import Rows
from mmspec.tree import Tree, TreeTarget
from mmspec.tree_verify import TreeVerdict


class TreeReader:
    """Gives the laws behind the root and behind nodes of a tree that grows.

    Its own roll-back is to read the accepted tokens once more, in the call that reads the root: which of them it has
    read as nodes, and where, does not matter then.

    **Arguments:**

    - `model`: wrapped as a target, with the same prompts.
    - `law`: what its logits become.
    """

    def __init__(self, model: TreeTarget, law: Law) -> None:
        self.calls = 0
        self._model = model
        self._law = law
        self._unread = 1

    def observe(self, verdict: TreeVerdict) -> None:
        """Takes note of how many tokens are new."""
        self._unread = int(verdict.accepted.max()) + 1

    def keep(self, rows: list[int]) -> None:
        """Drops all rows but these."""
        self._model.keep(rows)
        self._law.keep(torch.tensor(rows, device=self._model.device))

    def root(self, rows: Rows) -> Tensor:
        """The law behind the last token of each row, float32 [B, 1, V]."""
        if self.calls == 0:
            self._model.prefill()
            self.calls = 1
        # Rows that accepted less read tokens twice, which is harmless. One that has fewer repeats its last token behind
        # the root, where nobody looks.
        start = np.maximum(rows.length - self._unread, 0)
        last = rows.length - 1
        tokens = rows.at(np.minimum(start[:, None] + np.arange(self._unread), last[:, None]))
        logits = self._model.forward(tokens, start)
        self.calls += 1
        root = torch.from_numpy(last - start).to(tokens.device)
        row = torch.arange(len(root), device=root.device)
        cond, uncond = logits
        newest = Logits(cond[row, root][:, None], None if uncond is None else uncond[row, root][:, None])
        return self._law(newest, rows.positions(1))

    def nodes(self, rows: Rows, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        """The laws behind nodes `first` and following, float32 [B, W, V], whose tokens are int64 [B, W]."""
        logits = self._model.forward_tree(tokens, rows.length - 1, tree, first)
        self.calls += 1
        depth = tree.depth[:, first : first + tokens.shape[1]]
        return self._law(logits, rows.length[:, None] + np.broadcast_to(depth, tokens.shape))
