"""A smaller model of the same vocabulary, read for the laws that a tree is grown from."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.drafters.reader import Outcome
from mmspec.law import Law, Logits
from mmspec.rows import Rows
from mmspec.target import Target
from mmspec.tree import Tree, TreeTarget


class TreeReader:
    """Gives the laws behind the root and behind nodes of a tree that grows.

    Its own roll-back is to read the accepted tokens once more, in the call that reads the root: which of them it has
    read as nodes, and where, does not matter then.

    **Arguments:**

    - `model`: wrapped as a target, with the same prompts; for trees with branches a `TreeTarget`.
    - `law`: what its logits become.
    """

    def __init__(self, model: Target, law: Law) -> None:
        self.calls = 0
        self._model = model
        self._law = law
        self._read: NDArray[np.int64] | None = None  # committed tokens of each row that it has read as such

    def observe(self, verdict: Outcome, rows: Rows) -> None:
        """There is nothing to learn: what is new stands in `rows`."""

    def keep(self, rows: list[int]) -> None:
        """Drops all rows but these."""
        self._model.keep(rows)
        self._law.keep(torch.tensor(rows, device=self._model.device))
        if self._read is not None:
            self._read = self._read[rows]

    def root(self, rows: Rows) -> Tensor:
        """The law behind the last token of each row, float32 [B, 1, V]."""
        if self._read is None:
            # A model that has read its prompts already says nothing, and that is no call.
            self.calls += self._model.prefill().cond.shape[1]
            self._read = np.zeros_like(rows.length)
        # Rows that have read more read it twice, which is harmless. One that is shorter than what others have unread
        # repeats its last token behind the root, where nobody looks.
        unread = int((rows.length - self._read).max())
        start = np.maximum(rows.length - unread, 0)
        last = rows.length - 1
        tokens = rows.at(np.minimum(start[:, None] + np.arange(unread), last[:, None]))
        logits = self._model.forward(tokens, start)
        self.calls += 1
        self._read = rows.length
        root = torch.from_numpy(last - start).to(tokens.device)
        row = torch.arange(len(root), device=root.device)
        cond, uncond = logits
        newest = Logits(cond[row, root][:, None], None if uncond is None else uncond[row, root][:, None])
        return self._law(newest, rows.positions(1))

    def nodes(self, rows: Rows, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        """The laws behind nodes `first` and following, float32 [B, W, V], whose tokens are int64 [B, W]."""
        root = rows.length - 1
        if tree.chain:
            logits = self._model.forward(tokens, root + first)
        else:
            assert isinstance(self._model, TreeTarget)
            logits = self._model.forward_tree(tokens, root, tree, first)
        self.calls += 1
        depth = tree.depth[:, first : first + tokens.shape[1]]
        return self._law(logits, rows.length[:, None] + np.broadcast_to(depth, tokens.shape))
