"""The draft runner of Kangaroo (Liu et al. 2024, arXiv 2404.18911): an early exit of the target, then an adapter.

The exit's layers run on the target's own KV cache, as in `mmspec.drafters.early_exit`; the adapter has a cache by slot.
Rollback is writing again. The paper also stops drafting where the adapter is unsure, as the recipe `draft-stop` does
with a draft model; here the window is fixed, or `window=auto`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.kv_cache import KVCache
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import EarlyExit, ExitFeatureTarget, read_window
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.drafters.head_attention import bias_of_window, written
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.errors import ArgumentError
from mmspec.methods.kangaroo.head import ExitAdapter
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import Numbers, upload
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class KangarooRunner:
    """Runs an adapter on the features of an early exit. R is B, or 2 B with guidance.

    Args:
        target: The target that is decoding.
        sampler: Makes the draft distributions.
        length: Positions per row.
        window: Tokens in one target call.

    Raises:
        ArgumentError: If the target has fewer layers than the adapter expects.
    """

    ROWS = ("_cache", "_sampler", "_read")
    COUNTS = ("calls",)

    def __init__(
        self, adapter: ExitAdapter, target: ExitFeatureTarget, sampler: TokenSampler, length: int, window: int
    ) -> None:
        self.calls = 0
        self._adapter = adapter
        self._target = target
        self._exit = EarlyExitTarget(target, EarlyExit(adapter.exit_layer, guided=True))
        self._sampler = HeadSampler(sampler, target)
        self._capacity = length + window
        self._cache: KVCache | None = None
        self._guided = False
        self._read: NDArray[np.int64] = np.zeros(self._sampler.rows, dtype=np.int64)  # committed tokens read, by row
        self._arrays: Sequence[Numbers] | None = None  # of the next root, see `root_arrays`

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        """Does nothing: `root` reads the new tokens from `state`."""

    def before_join(self, other: KangarooRunner, state: BatchState, other_state: BatchState) -> None:
        for runner in (self, other):
            runner._started()

    def root_arrays(self, state: BatchState) -> list[NDArray[np.int64]]:
        """What the root needs of the host.

        Returns:
            The positions that are read, host int64 [B, n]; the first of each row, [B]; and the place of the root among
            those of each row, [B, 1].
        """
        # All rows read the same number of tokens. Rows with fewer unread ones read some tokens twice, which does no
        # harm. Rows shorter than that number repeat their last token after the root, where no output is used.
        unread, last = int((state.length - self._read).max()), state.length - 1
        start = np.maximum(state.length - unread, 0)
        return [np.minimum(start[:, None] + np.arange(unread), last[:, None]), start, (last - start)[:, None]]

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        self._arrays = arrays

    def root(self, state: BatchState) -> Probs:
        arrays, self._arrays = self._arrays, None
        if arrays is None:
            arrays = upload(self.root_arrays(state), state.device)
        positions, start, root = arrays
        predicted = self._forward(state.read(positions), start)
        self._read = state.length
        index = self._with_uncond(root.on(self._adapter.device))[..., None].expand(-1, -1, predicted.shape[-1])
        return self._sampler.root(state, self._logits(predicted.gather(1, index)))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        assert tree.chain, "Kangaroo drafts chains"
        predicted = self._forward(tokens, state.positions_after(np.array([[first - 1]])).part(np.s_[:, 0]))
        return self._sampler.nodes(state, tokens, tree, first, self._logits(predicted))

    def _forward(self, tokens: Tensor, at: Numbers) -> Tensor:
        """The features [R, W, D] predicted after tokens int64 [B, W] at positions from `at`, [B], on."""
        cache, adapter = self._started(), self._adapter
        self.calls += 1
        read_window(self._exit, tokens, at)
        features = self._target.exit_features().to(adapter.device)
        width = tokens.shape[1]
        index = at.on(adapter.device)[:, None]
        if width > 1:
            index = index + torch.arange(width, device=adapter.device)
        q, (k, v) = adapter.project(features, self._with_uncond(index))
        bias = bias_of_window(at, 0, len(features), width, q.dtype, adapter.device)
        return adapter.finish(features, q, written(cache, 0, k, v, at), bias)

    def _started(self) -> KVCache:
        """The adapter's cache, which is allocated once the target has read the prompts."""
        if self._cache is None:
            rows, adapter = len(self._target.features()), self._adapter
            self._guided = rows > self._sampler.rows
            shape = (1, rows, adapter.heads, self._capacity, adapter.head_dim)
            self._cache = KVCache(*shape, adapter.dtype, adapter.device)
        return self._cache

    def _logits(self, predicted: Tensor) -> Logits:
        return split_cfg(self._target.head(predicted.to(self._target.exit_features())), self._guided)

    def _with_uncond(self, values: Tensor) -> Tensor:
        """Values [B, ...], repeated for the unconditional rows: [R, ...]."""
        return torch.cat([values, values]) if self._guided else values


def build_runner(head: ExitAdapter, context: DraftingContext, sampler: TokenSampler, depth: int) -> KangarooRunner:
    """The runner of the network for a recipe.

    Raises:
        ArgumentError: If the target does not provide the features of an early exit.
    """
    target = context.target
    if not isinstance(target, ExitFeatureTarget):
        raise ArgumentError(
            f"recipe {context.recipe.name!r} is not possible here: {type(target).__name__} does not provide the "
            "features of an early exit"
        )
    return KangarooRunner(head, target, sampler, context.layout.length, context.recipe.window)
