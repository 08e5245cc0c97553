"""The draft runner of a draft model: a smaller model of the same vocabulary, or the target's first layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import Target, TreeTarget, read_window
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers, upload
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class ModelRunner:
    """Runs a draft model on the root and the nodes of a growing tree.

    After verification the accepted tokens are read once more, in the call that reads the root. That rolls back the KV
    cache of the model; the slots in which the nodes were read do not matter.

    Args:
        model: The draft model, wrapped as a target, with the same prompts; a `TreeTarget` if the tree has branches.
        sampler: Makes the draft distributions of its logits.
    """

    ROWS = ("_model", "_sampler", "_read")
    COUNTS = ("calls",)

    def __init__(self, model: Target, sampler: TokenSampler) -> None:
        self.calls = 0
        self._model = model
        self._sampler = sampler
        # Host int64 [B], the length of each row that was read as committed tokens; None before the prefill.
        self._read: NDArray[np.int64] | None = None
        self._arrays: Sequence[Numbers] | None = None  # of the next root, see `root_arrays`

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        """Does nothing: `root` reads the new tokens from `state`."""

    def before_join(self, other: ModelRunner, state: BatchState, other_state: BatchState) -> None:
        for runner, its_state in ((self, state), (other, other_state)):
            if runner._read is None:
                runner.root(its_state)

    def root_arrays(self, state: BatchState) -> list[NDArray[np.int64]]:
        """What the root needs of the host.

        Returns:
            The positions that are read, host int64 [B, n]; the first of each row, [B]; and the place of the root among
            those of each row, [B].
        """
        if self._read is None:
            # An early exit has read the prompts already: its prefill returns no logits and does not count as a call.
            self.calls += self._model.prefill().cond.shape[1]
            self._read = np.zeros_like(state.length)
        # All rows read the same number of tokens. Rows with fewer unread ones read some tokens twice, which does no
        # harm, as does the last token where none is unread, after a join. Rows shorter than that number repeat their
        # last token after the root, where no output is used.
        unread = max(int((state.length - self._read).max()), 1)
        start = np.maximum(state.length - unread, 0)
        last = state.length - 1
        return [np.minimum(start[:, None] + np.arange(unread), last[:, None]), start, last - start]

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        self._arrays = arrays

    def root(self, state: BatchState) -> Probs:
        """Starts a new tree; returns the distribution after the last token of each row, float32 [B, 1, V]."""
        arrays, self._arrays = self._arrays, None
        if arrays is None:
            arrays = upload(self.root_arrays(state), state.device)
        positions, start, root = arrays
        logits = read_window(self._model, state.read(positions), start)
        self.calls += 1
        self._read = state.length
        newest = at_slot(logits, root)
        return self._sampler(newest, state.positions_after(np.zeros((1, 1), dtype=np.int64)))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        """Reads nodes; returns the distribution after each, float32 [B, W, V]."""
        if tree.chain:
            at = state.positions_after(np.array([[first - 1]]))
            logits = read_window(self._model, tokens, at.part(np.s_[:, 0]))
        else:
            assert isinstance(self._model, TreeTarget)
            logits = self._model.forward_tree(tokens, state.before.host, tree, first)
        self.calls += 1
        return self._sampler(logits, state.positions_after_nodes(tree, first, first + tokens.shape[1]))


def at_slot(logits: Logits, slot: Numbers) -> Logits:
    """The logits [B, 1, V] at one slot of each row, [B]."""
    cond, uncond = logits
    first = int(slot.host[0])
    if (slot.host == first).all():
        same = slice(first, first + 1)
        return Logits(cond[:, same], None if uncond is None else uncond[:, same])
    there = slot.on(cond.device)
    row = torch.arange(len(there), device=there.device)
    return Logits(cond[row, there][:, None], None if uncond is None else uncond[row, there][:, None])
