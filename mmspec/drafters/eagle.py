"""The draft runner of EAGLE heads (Li et al. 2024, arXiv 2401.15077; EAGLE-3: arXiv 2503.01840) and MTP modules.

At committed tokens the head reads the target's features, at draft tokens its own outputs: the features that it predicts
(EAGLE), or the output of its layer in place of the target's fused features (EAGLE-3). Its KV cache is indexed by slot.
Rollback is writing again: accepted tokens are read once more, with the target's features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.kv_cache import KVCache
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FeatureTarget, LayerFeatureTarget
from mmspec.drafters.head_attention import bias_of_nodes, bias_of_window, written
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.errors import ArgumentError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.heads.mtp import MTPHead
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import Numbers, upload
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome, along_path


class EagleRunner:
    """Runs an EAGLE head or an MTP module on pairs of a token and the feature that it was sampled from.

    R is B, or 2 B with guidance: the head then runs on the features of conditional and unconditional rows.

    Args:
        head: The head; an EAGLE-3 head needs a `LayerFeatureTarget`.
        target: Provides the features and, for an EAGLE head, the LM head that maps predicted features to logits.
        sampler: Makes the draft distributions of those logits.
        length: Positions per row.
        window: Entries in one target call.
    """

    ROWS = ("_features", "_cache", "_sampler")
    COUNTS = ("calls",)

    def __init__(
        self,
        head: EagleHead | Eagle3Head | MTPHead,
        target: FeatureTarget,
        sampler: TokenSampler,
        length: int,
        window: int,
    ) -> None:
        self.calls = 0
        self._head = head
        self._target = target
        if isinstance(head, Eagle3Head):
            assert isinstance(target, LayerFeatureTarget)
            target.collect_layers(head.layers_of(target.layers, max((target.layers, *target.fused_layers))))
        self._sampler = HeadSampler(sampler, target)
        self._sliding_window = head.sliding_window if isinstance(head, Eagle3Head) else None
        self._capacity = head.prefix + length + window
        self._started = self._guided = False
        self._unread = 0  # slots before the root that some row has not read with the target's features yet
        # By slot: the target's feature that the token there was sampled from, [R, capacity, D], and the KV cache.
        self._features = torch.empty(0)
        self._cache = KVCache(1, 0, head.heads, 0, head.head_dim, head.dtype, head.device)
        self._arrays: Sequence[Numbers] | None = None  # of the next root, see `root_arrays`
        self._predicted = torch.empty(0)  # [R, entries, D], the features predicted after the entries read so far

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        if not self._started:
            self._start()
            return
        new = along_path(self._target_features(), verdict, self._guided).to(self._features)
        first, count = state.length + self._head.prefix, new.shape[1]
        if (first == first[0]).all():
            self._features[:, first[0] : first[0] + count] = new
        else:
            slots = state.positions_after(np.arange(count)[None]).plus(self._head.prefix)
            self._features.scatter_(1, self._feature_index(slots), new)
        self._unread += int(verdict.accepted.max()) + 1

    def before_join(self, other: EagleRunner, state: BatchState, other_state: BatchState) -> None:
        if not self._started:
            self._start()
        # The new rows read what they have not read yet on their own: the others have read that many slots long ago.
        other.root(other_state)

    def after_join(self, other: EagleRunner) -> None:
        self._unread = max(self._unread, 1)

    def root_arrays(self, state: BatchState) -> list[NDArray[np.int64]]:
        """What the root needs of the host.

        Returns:
            The positions of the tokens that are read, host int64 [B, n]; their slots, [B, n]; and the place of the root
            among those of each row, [B, 1].
        """
        if not self._started:
            self._start()
        prefix = self._head.prefix
        last = prefix + state.length - 1
        # All rows read the same number of slots. Rows that accepted less read some pairs twice, which does no harm.
        # Rows with fewer slots repeat their last token after the root, where no output is used.
        start = np.maximum(last + 1 - self._unread, 0)
        slots = start[:, None] + np.arange(self._unread)
        return [np.minimum(slots, last[:, None]) - prefix, slots, (last - start)[:, None]]

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        self._arrays = arrays

    def root(self, state: BatchState) -> Probs:
        arrays, self._arrays = self._arrays, None
        if arrays is None:
            arrays = upload(self.root_arrays(state), state.device)
        positions, slots, place = arrays
        tokens, features = state.read(positions), self._at(self._features, slots)
        if (positions.host < 0).any():
            tokens = tokens.clamp(min=0)
        self._unread = 0
        predicted = self._forward(tokens, features, slots, slots.part(np.s_[:, 0]), 0)
        self._predicted = self._at(predicted, place)
        return self._sampler.root(state, self._logits(self._predicted))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        if not tree.has_known_parents:  # such trees are read level by level
            return self._level(state, tokens, tree, first)
        probs, end, begin = list[Probs](), first + tokens.shape[1], first
        while first < end:
            # A node is read with its parent's predicted feature, so that its children need a later call.
            stop = first + 1
            while stop < end and tree.parents[:, stop - 1].max() < first:
                stop += 1
            probs.append(self._level(state, tokens[:, first - begin : stop - begin], tree, first))
            first = stop
        return probs[0] if len(probs) == 1 else state.ops.cat(probs)

    def _level(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        """As `nodes`, for nodes whose parents have all been read."""
        last, prefix = first + tokens.shape[1], self._head.prefix
        entries = np.arange(first, last)
        # Without a prefix the slot of a token is its position; the position after it is one more.
        depth = np.broadcast_to(tree.depth[:, entries], tokens.shape) - int(prefix == 0)
        positions = state.positions_after(depth).plus(max(prefix - 1, 0))
        features, sees = self._predicted, None  # of a chain only the latest ones are kept
        if not tree.chain:
            features, sees = self._of_parents(tree, first, last, tokens.shape), tree.sees[:, first:last, 1:last]
        predicted = self._forward(tokens, features, positions, state.before, prefix + first, sees)
        self._predicted = predicted if tree.chain else torch.cat([self._predicted, predicted], dim=1)
        return self._sampler.nodes(state, tokens, tree, first, self._logits(predicted))

    def _of_parents(self, tree: Tree, first: int, last: int, shape: torch.Size) -> Tensor:
        """The features [R, W, D] predicted after the parents of the entries `first` to `last - 1`."""
        there = tree.device_parents[:, first - 1 : last - 1].expand(shape)
        if not tree.has_known_parents:
            return self._predicted.gather(1, self._index(there))
        return self._at(self._predicted, Numbers(np.broadcast_to(tree.parents[:, first - 1 : last - 1], shape), there))

    def _start(self) -> None:
        """Allocates the cache and takes the prompt's features from the target."""
        features, head = self._target_features(), self._head
        self._started, self._guided = True, len(features) > self._sampler.rows
        self._unread = head.prefix + 1
        self._cache = KVCache(1, len(features), head.heads, self._capacity, head.head_dim, head.dtype, head.device)
        prompt = features[:, -self._unread :].to(head.device, head.dtype)
        # If the prompt is shorter than the prefix of the head, the first slots stay empty.
        missing = self._unread - prompt.shape[1]
        self._features = F.pad(prompt, (0, 0, missing, self._capacity - self._unread))

    def _forward(
        self,
        tokens: Tensor,
        features: Tensor,
        positions: Numbers,
        start: Numbers,
        shift: int,
        sees: Tensor | None = None,
    ) -> Tensor:
        """Predicted features [R, W, D] of tokens int64 [B, W] and the features that they were sampled from."""
        # Keys and values are written from slot `start + shift` on, `start` [B]. `sees`, bool [B or 1, W, n], has the
        # nodes of a tree that the tokens attend to besides the slots up to its root, `start + prefix`; None is all
        # slots up to their own.
        self.calls += 1
        if self._guided:
            tokens = tokens.repeat(2, 1)
        x, q, (k, v) = self._head.project(tokens.to(features.device), features, self._with_uncond(positions))
        seen, (rows, _, width, _), device = written(self._cache, 0, k, v, start, shift), q.shape, q.device
        prefix, recent = self._head.prefix, self._sliding_window
        if sees is None:
            # The window is that of the root: a draft of a chain attends to the drafts before it besides.
            recent = None if recent is None else recent + max(shift - prefix, 0)
            bias = bias_of_window(start, shift, rows, width, q.dtype, device, recent)
        else:
            bias = bias_of_nodes(start, prefix, sees, rows, seen[0].shape[2], q.dtype, device, recent)
        return self._head.finish(x, q, seen, bias)

    def _target_features(self) -> Tensor:
        """The features of the target's last call that the head reads, [R, W, D]."""
        if not isinstance(self._head, Eagle3Head):
            return self._target.features()
        assert isinstance(self._target, LayerFeatureTarget)
        return self._head.fuse(self._target.layer_features().to(self._head.device))

    def _logits(self, outputs: Tensor) -> Logits:
        """The logits [B, W, V] of the head's outputs [R, W, D]."""
        if isinstance(self._head, Eagle3Head):
            return split_cfg(self._head.logits(outputs).to(self._target.device), self._guided)
        return split_cfg(self._target.head(outputs.to(self._target.features())), self._guided)

    def _with_uncond(self, slots: Numbers) -> Tensor:
        """Slots [B, W], repeated for the unconditional rows: int64 [R, W]."""
        there = slots.on(self._features.device)
        return there.repeat(2, 1) if self._guided else there

    def _at(self, features: Tensor, slots: Numbers) -> Tensor:
        """The features [R, W, D] at slots [B, W]."""
        first, count = int(slots.host[0, 0]), slots.host.shape[1]
        if features.device.type != "cpu" and (slots.host == first + np.arange(count)).all():
            return features[:, first : first + count]
        return features.gather(1, self._feature_index(slots))

    def _feature_index(self, slots: Numbers) -> Tensor:
        """Slots [B, W] as an index for `gather` on features, [R, W, D]."""
        return self._index(slots.on(self._features.device))

    def _index(self, slots: Tensor) -> Tensor:
        """As `_feature_index`, of slots on the device."""
        both = slots.repeat(2, 1) if self._guided else slots
        return both[..., None].expand(-1, -1, self._head.hidden_size)


def build_runner(
    head: EagleHead | Eagle3Head | MTPHead, context: DraftingContext, sampler: TokenSampler, depth: int
) -> EagleRunner:
    """The runner of a head for a recipe.

    Raises:
        ArgumentError: If the head reads features that the target does not provide.
    """
    target = context.target
    if isinstance(head, Eagle3Head) and not isinstance(target, LayerFeatureTarget):
        raise ArgumentError(
            f"recipe {context.recipe.name!r} is not possible here: an EAGLE-3 head reads features of several layers, "
            f"and {type(target).__name__} provides those of the last one only"
        )
    assert isinstance(target, FeatureTarget)
    return EagleRunner(head, target, sampler, context.layout.length, context.recipe.window)
