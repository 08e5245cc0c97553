"""The draft runner of a block head (DFlash, arXiv 2602.06036): one pass predicts all tokens of a window."""

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
from mmspec.decoding.target import FeatureTarget, LayerFeatureTarget, prompt_padding
from mmspec.drafters.head_attention import written
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.errors import ArgumentError
from mmspec.heads.draft_vocabulary import expand
from mmspec.methods.block.head import BlockHead
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import Numbers, on_device, upload
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome, along_path


class BlockRunner:
    """Runs a block head once per window; the sequential head then corrects each distribution by the token before.

    The keys and values of the target's features are cached by slot; those of a block are not kept. R is B, or 2 B with
    guidance: the head then runs on the features of conditional and unconditional rows.

    Args:
        target: Provides the features, and the LM head; a `LayerFeatureTarget`, before its prefill, if the head fuses
            several layers.
        sampler: Makes the draft distributions.
        length: Positions per row.
        window: Entries in one target call.
        depth: Tokens ahead that a pass predicts, unless `reveal` sets another number for it.
    """

    ROWS = ("_features", "_cache", "_empty", "_sampler")
    COUNTS = ("calls",)

    def __init__(
        self, head: BlockHead, target: FeatureTarget, sampler: TokenSampler, length: int, window: int, depth: int
    ) -> None:
        self.calls = 0
        self._head = head
        self._target = target
        self._sampler = HeadSampler(sampler, target)
        self._depth = depth
        self._capacity = head.prefix + 1 + length + window
        self._started = self._guided = False
        self._empty = np.zeros(0, dtype=np.int64)  # host [R], slots of the prompt that are missing, from the first one
        self._arrays: Sequence[Numbers] | None = None  # of the next root, see `root_arrays`
        self._unread = 0  # slots before the anchor whose keys and values some row has not computed yet
        self._features = torch.empty(0)  # by slot, [R, capacity, layers * D]
        self._cache = KVCache(1, 0, head.kv_heads, 0, head.head_dim, head.dtype, head.device)
        self._revealed: tuple[Tensor, Numbers] | None = None
        # Of the last pass: hidden states [R, depth, D], logits of drafted tokens, and the states of the sequential head
        # after the entries read so far, [R, entries, r].
        self._hidden = self._logits = self._states = torch.empty(0)
        if head.layer_ids:
            assert isinstance(target, LayerFeatureTarget)
            target.collect_layers(head.layer_ids)

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        if not self._started:
            self._start()
            return
        new = along_path(self._read_features(), verdict, self._guided).to(self._features)
        slots = self._with_uncond(state.positions_after(np.arange(new.shape[1])[None])) + self._head.prefix
        self._features.scatter_(1, self._feature_index(slots), new)
        self._unread += int(verdict.accepted.max()) + 1

    def before_join(self, other: BlockRunner, state: BatchState, other_state: BatchState) -> None:
        for runner in (self, other):
            if not runner._started:
                runner._start()
        other._read_context(other_state)  # the running rows read only what is new since their last pass

    def root_arrays(self, state: BatchState) -> list[NDArray[np.int64]]:
        """What the root needs of the host.

        Returns:
            The slots of the features that are new since the last pass, host int64 [B, n].
        """
        if not self._started:
            self._start()
        # All rows read the same number of slots. Rows that accepted less read some slots twice, which does no harm.
        last = self._head.prefix + state.length - 1
        return [np.maximum(last + 1 - self._unread, 0)[:, None] + np.arange(self._unread)]

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        self._arrays = arrays

    def reveal(self, tokens: Tensor, reused: Numbers) -> None:
        """Sets the window of the next pass; see `mmspec.drafters.draft_runner.BlockwiseRunner`."""
        self._revealed = tokens, reused

    def root(self, state: BatchState) -> Probs:
        if not self._started:
            self._start()
        self._read_context(state)
        self._run(state)
        self._states = self._hidden.new_zeros(len(self._hidden), 0, self._rank)
        depth = np.zeros((len(state.ids), 1), dtype=np.int64)
        return self._sampler.root(state, self._corrected(state.last(), depth, depth - 1))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        entries = np.arange(first, first + tokens.shape[1])
        depth = np.broadcast_to(tree.depth[:, entries], tokens.shape)
        parents = np.broadcast_to(tree.parents[:, entries - 1], tokens.shape)
        # A recurrent sequential head needs the state after the parent of an entry.
        step = 1 if self._recurrent else tokens.shape[1]
        found = []
        for i in range(0, tokens.shape[1], step):
            here = slice(i, i + step)
            logits = self._corrected(tokens[:, here], depth[:, here], parents[:, here])
            found.append(self._sampler.nodes(state, tokens[:, here], tree, first + i, logits))
        return found[0] if len(found) == 1 else state.ops.cat(found)

    @property
    def _recurrent(self) -> bool:
        return self._head.markov_head is not None and self._head.markov_head.head_type == "rnn"

    @property
    def _rank(self) -> int:
        return 0 if self._head.markov_head is None else self._head.markov_head.rank

    def _read_features(self) -> Tensor:
        """The features of the target's last call that the head reads, [R, W, layers * D]."""
        if not self._head.layer_ids:
            return self._target.features()
        assert isinstance(self._target, LayerFeatureTarget)
        return self._target.layer_features()

    def _start(self) -> None:
        """Allocates the cache and takes the prompt's features from the target."""
        features, head = self._read_features(), self._head
        self._started, self._guided = True, len(features) > self._sampler.rows
        self._unread = head.prefix + 1
        layers = len(head.block_layers)
        shape = (layers, len(features), head.kv_heads, self._capacity, head.head_dim)
        self._cache = KVCache(*shape, head.dtype, head.device)
        prompt = features[:, -self._unread :].to(head.device, head.dtype)
        empty, cut = self._unread - prompt.shape[1], features.shape[1] - prompt.shape[1]
        self._empty = empty + np.maximum(prompt_padding(self._target, len(features)) - cut, 0)
        self._features = F.pad(prompt, (0, 0, empty, self._capacity - self._unread))

    def _read_context(self, state: BatchState) -> None:
        """Computes keys and values of the features that are new since the last pass."""
        arrays, self._arrays = self._arrays, None
        (slots,) = upload(self.root_arrays(state), state.device) if arrays is None else arrays
        self._unread = 0
        if not slots.host.size:
            return
        index = self._with_uncond(slots)
        features = self._features.gather(1, self._feature_index(index))
        for layer, (k, v) in enumerate(self._head.context(features, index)):
            written(self._cache, layer, k, v, slots.part(np.s_[:, 0]))

    def _run(self, state: BatchState) -> None:
        """The pass over a block: sets the hidden states and logits of all of its predictions."""
        self.calls += 1
        head, depth = self._head, self._depth
        anchor, revealed = state.last(), self._revealed
        known: Tensor | int = 0
        own: Tensor | None = None
        if revealed is not None:
            depth, self._revealed = revealed[0].shape[1], None
            anchor = torch.cat([anchor, revealed[0]], dim=1)
        # A block is at least as long as in training.
        width = max(depth, head.count) + (not head.sample_from_anchor)
        block = F.pad(anchor, (0, max(width - anchor.shape[1], 0)))[:, :width]
        at = torch.arange(width, device=block.device)
        if revealed is not None and (depth > head.count or revealed[1].host.any()):
            # A row near its end has fewer drafts than the window, and sees no more of it than its own.
            drafts = state.own_slots(state.positions_after(np.arange(depth + 1)[None]))[:, 1:].sum(1, keepdim=True)
            known = revealed[1].on(block.device)[:, None].minimum(drafts)
            seen = at < drafts.clamp(min=head.count) + (not head.sample_from_anchor)
            own = seen.to(head.device).repeat(1 + self._guided, 1)[:, None]
        block = block.masked_fill(at > known, head.mask_token_id).to(head.device)
        first = self._with_uncond(state.positions_after(np.zeros((1, 1), dtype=np.int64))) + head.prefix
        slots = first + at.to(head.device)
        end = head.prefix + int(state.length.max())
        keys, values = self._cache.keys, self._cache.values
        assert isinstance(keys, Tensor) and isinstance(values, Tensor), "only caches of targets are quantized"
        keys, values = keys[:, :, :, :end], values[:, :, :, :end]
        at = torch.arange(end, device=head.device)
        visible = at < first
        if self._empty.any():
            visible = visible & (at >= on_device(self._empty[:, None], head.device))
        context = list(zip(keys.unbind(0), values.unbind(0), strict=True))
        both = block.repeat(1 + self._guided, 1)
        hidden = head(both[:, None], slots[:, None], context, visible[:, None], own)[:, 0]
        hidden = hidden[:, int(not head.sample_from_anchor) :][:, :depth]
        self._hidden = hidden
        if head.lm_head is None:
            self._logits = self._target.head(hidden.to(self._target.features()))
        else:
            self._logits = head.lm_head(hidden)

    def _corrected(self, tokens: Tensor, depth: NDArray[np.int64], parents: NDArray[np.int64]) -> Logits:
        """Logits [B, W, V] after entries, with the sequential head's bias; arguments [B, W], parent -1 the root."""
        first = int(depth[0, 0])
        if (depth == first).all():  # a level of a tree
            logits = self._logits[:, first : first + 1].expand(-1, depth.shape[1], -1).float()
            hidden = self._hidden[:, first : first + 1].expand(-1, depth.shape[1], -1)
        else:
            at = self._with_uncond(Numbers(np.ascontiguousarray(depth)))[..., None]
            logits = self._logits.gather(1, at.to(self._logits.device).expand(-1, -1, self._logits.shape[-1])).float()
            hidden = self._hidden.gather(1, at.expand(-1, -1, self._hidden.shape[-1]))
        if self._head.markov_head is not None:
            both = tokens.to(self._head.device).repeat(1 + self._guided, 1)
            before = self._hidden.new_zeros(*both.shape, self._rank)
            if self._recurrent and parents.min() >= 0:
                index = self._with_uncond(Numbers(parents))[..., None]
                before = self._states.gather(1, index.expand(-1, -1, self._rank))
            bias, after = self._head.markov_head(both, hidden, before)
            self._states = torch.cat([self._states, after], dim=1)
            logits = logits + bias.to(logits)
        logits = expand(logits, self._head.d2t, self._head.vocab_size).to(self._target.device)
        return split_cfg(logits, self._guided)

    def _with_uncond(self, values: Numbers) -> Tensor:
        """Values [B, ...], repeated for the unconditional rows: int64 [R, ...]."""
        there = values.on(self._head.device)
        return torch.cat([there, there]) if self._guided else there

    def _feature_index(self, slots: Tensor) -> Tensor:
        """Slots int64 [R, W] as an index for `gather` on features, [R, W, layers * D]."""
        return slots[..., None].expand(-1, -1, self._features.shape[-1])


def build_runner(head: BlockHead, context: DraftingContext, sampler: TokenSampler, depth: int) -> BlockRunner:
    """The runner of the network for a recipe.

    Raises:
        ArgumentError: If the head reads features that the target does not provide.
    """
    target = context.target
    if head.layer_ids and not isinstance(target, LayerFeatureTarget):
        raise ArgumentError(
            f"recipe {context.recipe.name!r} is not possible here: the drafter reads layers {list(head.layer_ids)}, "
            f"and {type(target).__name__} provides the features of the last one only"
        )
    assert isinstance(target, FeatureTarget)
    return BlockRunner(head, target, sampler, context.layout.length, context.recipe.window, depth)
