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
        # Rows that accepted less read tokens twice, which is harmless.
        unread = min(self._unread, int(rows.length.min()))
        logits = self._model.forward(rows.last(unread), rows.length - unread)
        self.calls += 1
        newest = Logits(logits.cond[:, -1:], None if logits.uncond is None else logits.uncond[:, -1:])
        return self._law(newest, rows.positions(1))

    def nodes(self, rows: Rows, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        """The laws behind nodes `first` and following, float32 [B, W, V], whose tokens are int64 [B, W]."""
        logits = self._model.forward_tree(tokens, rows.length - 1, tree, first)
        self.calls += 1
        depth = tree.depth[:, first : first + tokens.shape[1]]
        return self._law(logits, rows.length[:, None] + np.broadcast_to(depth, tokens.shape))
