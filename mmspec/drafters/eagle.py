"""An EAGLE head (Li et al. 2024, arXiv 2401.15077) read for the distributions of a draft.

Where the target has read, the head reads the target's features; from there on, its own guesses of them. It keeps keys
and values by slot, so that going back is writing again: what the target has accepted is read anew, with real features.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.attention_masks import tree_mask
from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import FeatureTarget
from mmspec.heads.eagle import EagleHead
from mmspec.sampling.logits import cfg_rows, split_cfg
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class EagleRunner:
    """Reads pairs of a token and the feature it was drawn from. With guidance it does so on both sides.

    Args:
        head: The network.
        target: Whose features it starts from, and whose head makes logits of its guesses.
        sampler: What those become.
        length: Positions per row.
        window: Entries in one target call.
    """

    def __init__(self, head: EagleHead, target: FeatureTarget, sampler: TokenSampler, length: int, window: int) -> None:
        self.calls = 0
        self._head = head
        self._target = target
        self._sampler = sampler
        self._capacity = head.prefix + length + window
        self._started = self._guided = False
        self._unread = 0  # slots after the longest part that has been read with real features in all rows
        # By slot: the feature that the token there was drawn from, [R, capacity, D], and keys and values.
        self._features = torch.empty(0)
        self._k = self._v = torch.empty(0)
        self._guesses = torch.empty(0)  # [R, entries, D], after the entries read so far

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        if not self._started:
            self._start()
            return
        entries = np.pad(verdict.path, ((0, 0), (1, 0)))
        found = self._target.features()
        row = torch.arange(len(found), device=found.device)[:, None]
        slots = self._head.prefix + state.length[:, None] + np.arange(entries.shape[1])
        new = found[row, self._sides(entries).to(found.device)].to(self._features)
        self._features.scatter_(1, self._wide(slots), new)
        self._unread += int(verdict.accepted.max()) + 1

    def select_rows(self, row_ids: list[int]) -> None:
        if self._started:
            count = len(self._sampler.temperature)
            index = cfg_rows(row_ids, count, self._guided, self._features.device)
            self._features, self._k, self._v = self._features[index], self._k[index], self._v[index]
        self._sampler.select_rows(torch.tensor(row_ids, device=self._target.device))

    def root(self, state: BatchState) -> Tensor:
        if not self._started:
            self._start()
        prefix = self._head.prefix
        last = prefix + state.length - 1
        # Rows that accepted less read pairs twice, which is harmless. One that has fewer repeats its last token after
        # the root, where nobody looks.
        start = np.maximum(last + 1 - self._unread, 0)
        slots = start[:, None] + np.arange(self._unread)
        tokens = state.at(np.minimum(slots, last[:, None]) - prefix).clamp(min=0)
        features = self._features.gather(1, self._wide(slots))
        seen = None
        if self._unread > 1 or (slots != slots[0]).any():
            seen = torch.from_numpy(slots[..., None] >= np.arange(int(slots.max()) + 1)).to(features.device)
        self._unread = 0
        guesses = self._read(tokens, features, slots, slots, seen)
        self._guesses = guesses.gather(1, self._wide((last - start)[:, None]))
        return self._probs(self._guesses, state.positions(1))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        found, end, begin = list[Tensor](), first + tokens.shape[1], first
        while first < end:
            # A node is read with its parent's feature, so the children of a node come in a later call than the node.
            known, stop = self._guesses.shape[1], first + 1
            while stop < end and tree.parents[:, stop - 1].max() < known:
                stop += 1
            found.append(self._level(state, tokens[:, first - begin : stop - begin], tree, first))
            first = stop
        return torch.cat(found, dim=1)

    def _level(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        """`nodes`, for nodes whose parents have all been read."""
        entries = np.arange(first, first + tokens.shape[1])
        root = self._head.prefix + state.length[:, None] - 1
        depth = np.broadcast_to(tree.depth[:, entries], tokens.shape)
        parents = np.broadcast_to(tree.parents[:, entries - 1], tokens.shape)
        features = self._guesses.gather(1, self._wide(parents))
        seen = None
        if not tree.chain or (root != root[0]).any():
            roots, last = torch.from_numpy(root[:, 0]).to(tree.sees.device), first + tokens.shape[1]
            seen = tree_mask(roots, tree.sees[:, first:last, 1:last], int(root.max()) + last)
        guesses = self._read(tokens, features, root + depth, root + entries, seen)
        self._guesses = torch.cat([self._guesses, guesses], dim=1)
        return self._probs(guesses, state.length[:, None] + depth)

    def _start(self) -> None:
        """Takes the prompt's features."""
        found, head = self._target.features(), self._head
        self._started, self._guided = True, len(found) > len(self._sampler.temperature)
        self._unread = head.prefix + 1
        shape = (len(found), head.heads, self._capacity, head.hidden_size // head.heads)
        self._k = torch.zeros(shape, dtype=head.dtype, device=head.device)
        self._v = torch.zeros_like(self._k)
        prompt = found[:, -self._unread :].to(self._k)
        # A prompt of fewer slots leaves the first ones empty.
        missing = self._unread - prompt.shape[1]
        self._features = F.pad(prompt, (0, 0, missing, self._capacity - self._unread))

    def _read(
        self, tokens: Tensor, features: Tensor, places: NDArray[np.int64], slots: NDArray[np.int64], seen: Tensor | None
    ) -> Tensor:
        """The guesses [R, W, D] after tokens int64 [B, W] that count as slots `places` and are kept in `slots`.

        `seen` bool [B, W, end] tells which slots each looks at; None: all up to its own, in one line of all rows.
        """
        self.calls += 1
        if self._guided:
            tokens = tokens.repeat(2, 1)
        x, q, (k, v) = self._head.project(tokens.to(features.device), features, self._sides(places))
        first, end = int(slots[0, 0]), int(slots.max()) + 1
        if (slots == slots[0]).all():
            self._k[:, :, first:end], self._v[:, :, first:end] = k, v
        else:
            rows, to = torch.arange(len(x), device=x.device)[:, None], self._sides(slots)
            self._k[rows, :, to], self._v[rows, :, to] = k.transpose(1, 2), v.transpose(1, 2)
        bias = None
        if seen is not None:
            bias = torch.zeros(seen.shape, dtype=q.dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
            bias = bias.to(q.device).repeat(1 + self._guided, 1, 1)[:, None]
        return self._head.finish(x, q, (self._k[:, :, :end], self._v[:, :, :end]), bias)

    def _probs(self, guesses: Tensor, positions: NDArray[np.int64]) -> Tensor:
        logits = self._target.head(guesses.to(self._target.features()))
        return self._sampler(split_cfg(logits, self._guided), positions)

    def _sides(self, slots: NDArray[np.int64]) -> Tensor:
        """The same slots int64 [B, ...] on both sides."""
        return torch.from_numpy(np.concatenate([slots] * (1 + self._guided))).to(self._features.device)

    def _wide(self, slots: NDArray[np.int64]) -> Tensor:
        """Slots int64 [B, W] as an index into features, [R, W, D]."""
        return self._sides(slots)[..., None].expand(-1, -1, self._head.hidden_size)
