"""The draft distributions of a head: logits processors of the target, then the sampler.

A drafter that does not see a penalty of the target loses most of its acceptance. The prefix of a draft is the committed
tokens and the drafts before it, so that logits are processed node by node.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.processed_target import ProcessedTarget, ancestors
from mmspec.sampling.logits import Logits
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree


class HeadSampler:
    """Turns the logits of a head into draft distributions.

    Args:
        sampler: The sampler of the drafts.
        target: The target; the logits processors of a `ProcessedTarget` apply to drafts too.
    """

    ROWS = ("_sampler",)

    def __init__(self, sampler: TokenSampler, target: object) -> None:
        self._sampler = sampler
        self._processed = target if isinstance(target, ProcessedTarget) else None
        self._entries: Tensor | None = None  # int64 [B, entries], the tokens of the tree, the root first

    @property
    def rows(self) -> int:
        """Number of running rows, B."""
        return len(self._sampler.temperature)

    def root(self, state: BatchState, logits: Logits) -> Probs:
        """The distribution after the last token of each row, float32 [B, 1, V], of logits [B, 1, V]."""
        if self._processed is not None:
            self._entries = state.last()
            logits = self._processed.process(logits, *self._prefixes(state, None, 0))
        return self._sampler(logits, state.positions_after(np.zeros((1, 1), dtype=np.int64)))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int, logits: Logits) -> Probs:
        """The distribution after each of the nodes `first` and following, float32 [B, W, V].

        Args:
            state: The batch; it ends with the root.
            tokens: The tokens of the nodes, int64 [B, W].
            tree: Contains at least these nodes.
            first: The first of them; the root is entry 0.
            logits: [B, W, V].
        """
        if self._processed is not None:
            assert self._entries is not None, "the root comes before its nodes"
            self._entries = torch.cat([self._entries[:, :first], tokens], dim=1)
            logits = self._processed.process(logits, *self._prefixes(state, tree, first))
        return self._sampler(logits, state.positions_after_nodes(tree, first, first + tokens.shape[1]))

    def _prefixes(self, state: BatchState, tree: Tree | None, first: int) -> tuple[Tensor, NDArray[np.int64]]:
        """Committed tokens and entries, int64 [B, n], and each prefix's slots, host int64 [B, W, L] or negative."""
        assert self._entries is not None
        count, room = self._entries.shape[1], int(state.length.max())
        committed = state.at(np.arange(room)[None].repeat(len(state.ids), axis=0))
        known = torch.cat([committed, self._entries], dim=1)
        root = state.length - 1
        if tree is None:
            step = np.arange(1 - room, 1)[None, None]
            return known, root[:, None, None] + step
        path = ancestors(tree, count)[:, first:]
        depth = np.broadcast_to(tree.depth[:, first:count], (len(root), count - first))
        back = int((root[:, None] + depth).max()) + 1
        step = depth[..., None] + np.arange(1 - back, 1)
        on_path = np.take_along_axis(
            np.broadcast_to(path, (len(root), *path.shape[1:])), step.clip(0, path.shape[2] - 1), axis=2
        )
        return known, np.where(step > 0, room + on_path, root[:, None, None] + step)
