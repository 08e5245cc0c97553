"""A smaller model of the same vocabulary, read for the distributions that a tree is grown from."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import Target, TreeTarget
from mmspec.sampling.logits import Logits
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class ModelRunner:
    """Gives the distributions after the root and after nodes of a tree that grows.

    Its own roll-back is to read the accepted tokens once more, in the call that reads the root: which of them it has
    read as nodes, and where, does not matter then.

    Args:
        model: Wrapped as a target, with the same prompts; for trees with branches a `TreeTarget`.
        sampler: What its logits become.
    """

    def __init__(self, model: Target, sampler: TokenSampler) -> None:
        self.calls = 0
        self._model = model
        self._sampler = sampler
        self._read: NDArray[np.int64] | None = None  # committed tokens of each row that it has read as such

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        """There is nothing to learn: what is new stands in `state`."""

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        self._model.select_rows(row_ids)
        self._sampler.select_rows(torch.tensor(row_ids, device=self._model.device))
        if self._read is not None:
            self._read = self._read[row_ids]

    def root(self, state: BatchState) -> Tensor:
        """The distribution after the last token of each row, float32 [B, 1, V]."""
        if self._read is None:
            # A model that has read its prompts already says nothing, and that is no call.
            self.calls += self._model.prefill().cond.shape[1]
            self._read = np.zeros_like(state.length)
        # Rows that have read more read it twice, which is harmless. One that is shorter than what others have unread
        # repeats its last token after the root, where nobody looks.
        unread = int((state.length - self._read).max())
        start = np.maximum(state.length - unread, 0)
        last = state.length - 1
        tokens = state.at(np.minimum(start[:, None] + np.arange(unread), last[:, None]))
        logits = self._model.forward(tokens, start)
        self.calls += 1
        self._read = state.length
        root = torch.from_numpy(last - start).to(tokens.device)
        row = torch.arange(len(root), device=root.device)
        cond, uncond = logits
        newest = Logits(cond[row, root][:, None], None if uncond is None else uncond[row, root][:, None])
        return self._sampler(newest, state.positions(1))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        """The distributions after nodes `first` and following, float32 [B, W, V], whose tokens are int64 [B, W]."""
        root = state.length - 1
        if tree.chain:
            logits = self._model.forward(tokens, root + first)
        else:
            assert isinstance(self._model, TreeTarget)
            logits = self._model.forward_tree(tokens, root, tree, first)
        self.calls += 1
        depth = tree.depth[:, first : first + tokens.shape[1]]
        return self._sampler(logits, state.length[:, None] + np.broadcast_to(depth, tokens.shape))
