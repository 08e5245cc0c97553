"""The draft runner of a grid head: features of the row above, and the token to the left."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FeatureTarget
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.errors import ModelError
from mmspec.methods.grid.head import GridHead
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome, along_path


class GridRunner:
    """Runs a grid head on the features of committed tokens. R is B, or 2 B with guidance.

    Args:
        target: Provides the features, and the LM head.
        sampler: Makes the draft distributions.
        length: Positions per row.
        window: Entries in one target call.
        drafts: The largest number of drafts of a window.
    """

    ROWS = ("_features", "_sampler")
    COUNTS = ("calls",)

    def __init__(
        self, head: GridHead, target: FeatureTarget, sampler: TokenSampler, length: int, window: int, drafts: int
    ) -> None:
        self.calls = 0
        self._head = head
        self._target = target
        self._sampler = HeadSampler(sampler, target)
        self._capacity = 1 + length + window
        self._steps = torch.arange(drafts, device=head.device)
        # The features that a draft reads follow the last token, and those above the draft and to the right of that one,
        # at these distances from the last token; the least position of which there is one, the prompt's being 0.
        above = self._steps + 2 - head.grid_width
        self._offsets = torch.cat([torch.zeros_like(above), above, above + 1])
        self._least = torch.where(self._offsets > 0, 2**62, (self._offsets < 0).long())
        self._gathered = torch.empty(0)  # [R, 3, drafts, D]
        self._features: Tensor | None = None  # by position: what the token there was sampled from, [R, capacity, D]

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        known = self._known()
        if state.length.max() == 0:
            return  # the prefill
        new = along_path(self._target.features(), verdict, self._guided).to(known)
        at = self._with_uncond(state.positions_after(np.arange(new.shape[1])[None]))
        known.scatter_(1, at[..., None].expand(-1, -1, known.shape[-1]), new)

    def before_join(self, other: GridRunner, state: BatchState, other_state: BatchState) -> None:
        self._features, other._features = self._known(), other._known()

    def root(self, state: BatchState) -> Probs:
        self._read(state)
        depth = np.zeros((len(state.ids), 1), dtype=np.int64)
        return self._sampler.root(state, self._logits(state.last(), depth))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        depth = np.broadcast_to(tree.depth[:, first : first + tokens.shape[1]], tokens.shape)
        return self._sampler.nodes(state, tokens, tree, first, self._logits(tokens, depth))

    @property
    def _guided(self) -> bool:
        return self._features is not None and len(self._features) > self._sampler.rows

    def _known(self) -> Tensor:
        """The features, which begin with that of the prompt's last slot."""
        if self._features is None:
            prompt = self._target.features()[:, -1:].to(self._head.device, self._head.dtype)
            self._features = F.pad(prompt, (0, 0, 0, self._capacity - 1))
        return self._features

    def _read(self, state: BatchState) -> None:
        """Gathers the features for all drafts of a window: they are features of committed tokens."""
        known, factor = self._known(), 1 + self._guided
        index = state.before.on(self._head.device)[:, None] + self._offsets
        inside = (index >= self._least)[None, ..., None]
        at = index.clamp(0, known.shape[1] - 1).repeat(factor, 1)[..., None].expand(-1, -1, known.shape[-1])
        gathered = known.gather(1, at).unflatten(0, (factor, -1)) * inside
        self._gathered = gathered.flatten(0, 1).unflatten(1, (3, -1))

    def _logits(self, left: Tensor, depth: NDArray[np.int64]) -> Logits:
        """Logits [B, W, V] of the positions `depth` (host int64 [B, W]) after the next one, after tokens `left`."""
        self.calls += 1
        first, count = int(depth[0, 0]), depth.shape[1]
        assert (depth == first + np.arange(count)).all(), "grid heads draft chains"
        here = slice(first, first + count)
        left = left.to(self._head.device).repeat(1 + self._guided, 1)
        predicted = self._head(*self._gathered[:, :, here].unbind(1), left, self._steps[here].expand_as(left))
        return split_cfg(self._target.head(predicted.to(self._target.features())), self._guided)

    def _with_uncond(self, values: Numbers) -> Tensor:
        """Values [B, ...], repeated for the unconditional rows: int64 [R, ...]."""
        there = values.on(self._head.device)
        return torch.cat([there, there]) if self._guided else there


def build_runner(head: GridHead, context: DraftingContext, sampler: TokenSampler, depth: int) -> GridRunner:
    """The runner of the network for a recipe.

    Raises:
        ModelError: If the head is for images of another width.
    """
    target, layout, window = context.target, context.layout, context.recipe.window
    assert isinstance(target, FeatureTarget)
    if layout.width != head.grid_width:
        raise ModelError(f"drafter is for lines of {head.grid_width} tokens, and this model's have {layout.width}")
    return GridRunner(head, target, sampler, layout.length, window, max(depth, window - 1))
