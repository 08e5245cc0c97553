"""The draft runner of a grid head: features of the row above, and the token to the left."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import FeatureTarget
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.heads.grid import GridHead
from mmspec.sampling.logits import Logits, cfg_rows, split_cfg
from mmspec.sampling.mirrored import on_device
from mmspec.sampling.rows import put_rows
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome, along_path


class GridRunner:
    """Runs a grid head on the features of committed tokens. R is B, or 2 B with guidance.

    Args:
        head: The head.
        target: Provides the features, and the LM head.
        sampler: Makes the draft distributions.
        length: Positions per row.
        window: Entries in one target call.
    """

    def __init__(self, head: GridHead, target: FeatureTarget, sampler: TokenSampler, length: int, window: int) -> None:
        self.calls = 0
        self._head = head
        self._target = target
        self._sampler = HeadSampler(sampler, target)
        self._capacity = 1 + length + window
        self._features: Tensor | None = None  # by position: what the token there was sampled from, [R, capacity, D]

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        known = self._known()
        if state.length.max() == 0:
            return  # the prefill
        new = along_path(self._target.features(), verdict, self._guided).to(known)
        at = self._with_uncond(state.positions_after(np.arange(new.shape[1])[None]))
        known.scatter_(1, at[..., None].expand(-1, -1, known.shape[-1]), new)

    def select_rows(self, row_ids: list[int]) -> None:
        if self._features is not None:
            index = cfg_rows(row_ids, self._sampler.rows, self._guided, self._features.device)
            self._features = self._features[index]
        self._sampler.select_rows(row_ids)

    def join(self, other: GridRunner, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """See `mmspec.decoding.loop.JoinableDrafter`."""
        own, new = self._known(), other._known()
        self._features = put_rows(own, new, row_ids, cfg_factor=1 + self._guided)
        self._sampler.join(other._sampler, row_ids)
        self.calls += other.calls

    def root(self, state: BatchState) -> Tensor:
        self._known()
        depth = np.zeros((len(state.ids), 1), dtype=np.int64)
        return self._sampler.root(state, self._logits(state, state.last(), depth))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        depth = np.broadcast_to(tree.depth[:, first : first + tokens.shape[1]], tokens.shape)
        return self._sampler.nodes(state, tokens, tree, first, self._logits(state, tokens, depth))

    @property
    def _guided(self) -> bool:
        return self._features is not None and len(self._features) > self._sampler.rows

    def _known(self) -> Tensor:
        """The features, which begin with that of the prompt's last slot."""
        if self._features is None:
            prompt = self._target.features()[:, -1:].to(self._head.device, self._head.dtype)
            self._features = F.pad(prompt, (0, 0, 0, self._capacity - 1))
        return self._features

    def _logits(self, state: BatchState, left: Tensor, depth: NDArray[np.int64]) -> Logits:
        """Logits [B, W, V] of the positions `depth` (host int64 [B, W]) after the next one, after tokens `left`."""
        self.calls += 1
        known, head = self._known(), self._head
        # On a device all positions follow from those of the open window, which are there.
        last, new = self._with_uncond(state.before)[:, None], self._with_uncond(state.positions_after(depth))
        above = new - (head.grid_width - 1)
        index = torch.cat([last.expand_as(new), above, above + 1], dim=1)
        inside = ((index >= 1) & (index <= last)) | (index == last)
        at = index.clamp(0, known.shape[1] - 1)[..., None].expand(-1, -1, known.shape[-1])
        features = (known.gather(1, at) * inside[..., None]).chunk(3, dim=1)
        left = left.to(head.device).repeat(1 + self._guided, 1)
        predicted = head(*features, left, new - last - 1)
        return split_cfg(self._target.head(predicted.to(self._target.features())), self._guided)

    def _with_uncond(self, values: NDArray[np.int64]) -> Tensor:
        """Host values [B, ...], repeated for the unconditional rows: [R, ...]."""
        there = on_device(values, self._head.device)
        return torch.cat([there, there]) if self._guided else there
