"""Drafts of videos and images from their neighbors: a token repeats the one before it in time, above it or to its left.

Which of the three is decided at each position: the one that would have been right at the neighbors to the left and
above. Where a scene stands still, that is the frame before; along an edge or in an even region, the row or the column.
The drafts are no samples, so that their q is one-hot; they are exact under any rule that is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG


class NeighborDrafter:
    """A `mmspec.decoding.drafter.ContinuationDrafter` that repeats neighbors.

    Args:
        given: Tokens before the sequence, int64 [B, G]: the frames that a video continues. G may be 0.
        width: Tokens per row of a frame.
        frame: Tokens per frame; None for single images.
    """

    ROWS = ("_given",)

    calls = 0

    def __init__(self, given: Tensor, width: int, frame: int | None) -> None:
        self._given = given
        self._offsets = (width, 1) if frame is None else (frame, width, 1)
        self._width = width

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Does nothing: neighbors are read from the committed tokens."""

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        count, first = draft.tokens.shape[1], int(reused.host.min())
        is_new = np.arange(first, count) >= reused.host[:, None]
        fixed = torch.from_numpy(~is_new).to(state.device)
        # The tokens that neighbors and their neighbors can be, then the window: [B, before + count].
        before = self._offsets[0] + self._width
        tokens = torch.cat([self._before(state, before), draft.tokens], dim=1)
        for j in range(first, count):
            at = before + j
            tokens[:, at] = torch.where(fixed[:, j - first], tokens[:, at], self._best(tokens, at))
        found = tokens[:, before:]
        return Draft(found, state.ops.point_mass(draft.q, found, first, is_new, inplace=True))

    def _best(self, tokens: Tensor, at: int) -> Tensor:
        """The neighbor of column `at` that was right most often near it, int64 [B]; 0 where there is none."""
        candidates = torch.stack([tokens[:, at - offset] for offset in self._offsets], dim=1)
        right = torch.zeros_like(candidates)
        for n, offset in enumerate(self._offsets):
            for near in (1, self._width):
                neighbor = tokens[:, at - near]
                right[:, n] += (neighbor == tokens[:, at - near - offset]) & (neighbor >= 0)
        # Of equally good ones the first: time before rows, rows before columns.
        order = torch.arange(len(self._offsets), 0, -1, device=tokens.device)
        score = (right * (len(self._offsets) + 1) + order).masked_fill(candidates < 0, -1)
        return candidates.gather(1, score.argmax(1, keepdim=True))[:, 0].clamp(min=0)

    def _before(self, state: BatchState, count: int) -> Tensor:
        """The last `count` tokens before the window, int64 [B, count]; -1 where there is none."""
        positions = state.length[:, None] - count + np.arange(count)
        tokens, length = state.at(positions), self._given.shape[1]
        if not length or (positions >= 0).all():
            return tokens
        index = torch.from_numpy(positions + length).to(state.device)
        given = self._given.gather(1, index.clamp(0, length - 1)).masked_fill(index < 0, -1)
        return torch.where(torch.from_numpy(positions < 0).to(state.device), given, tokens)
