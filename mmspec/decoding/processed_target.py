"""A target whose logits pass through logits processors, each slot of a window or tree with its own prefix.

A processor that keeps state is wrong at drafted positions: it has processed one sequence, while every slot of a window
continues another. Here a processor is a function of the prefix of the slot. That holds for the target and for a draft
model, so that p and q are the same as in token-by-token decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import ref

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.target import (
    EarlyExit,
    ExitFeatureTarget,
    FeatureTarget,
    LayerFeatureTarget,
    PaddedTarget,
    RereadsWindows,
    SupportsTreeEarlyExit,
    Target,
    TreeTarget,
    cache_bytes,
    reads_short_cache,
    reuses_updates,
    skips_layers,
)
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.rows import PerRow
from mmspec.sampling.tree import Tree

# (prefix, logits) -> logits. `prefix` int64 [n, L] holds the tokens before each slot, the latest one last, -1 where
# there is none; `logits` is float32 [n, V]. Called before temperature, top-k, top-p and the constraint of
# `mmspec.sampling.sampler`. A padding token x is given as -2 - x: it occupies a position but does not count as a token.
LogitsProcessor = Callable[[Tensor, Tensor], Tensor]

# (conditional, unconditional) -> guided logits, float32 [..., V] each.
GuidanceFn = Callable[[Tensor, Tensor], Tensor]


class ProcessedTarget:
    """A target whose logits pass through logits processors.

    Guidance precedes the processors and is therefore applied here; `SamplingParams.guidance_scale` must be 1.

    Args:
        target: The model.
        processors: Logits processors, in order.
        prompt: int64 [B, T], the tokens that precede position 0 in every prefix; T may be 0.
        room: Positions of the sequence plus those of the widest window.
        guide: Combines conditional and unconditional logits; required if `target` has both.
    """

    ROWS = (PerRow("_tokens", fill=-1), "_entries", "_before", "_target")
    SAME = ("_processors", "_guide")

    def __init__(
        self,
        target: Target,
        processors: Sequence[LogitsProcessor],
        prompt: Tensor,
        room: int,
        guide: GuidanceFn | None = None,
    ) -> None:
        self.vocab_size = target.vocab_size
        self.device = target.device
        self._target = target
        if isinstance(target, SupportsTreeEarlyExit):
            self.layers = target.layers
        self.short_cache = reads_short_cache(target)
        self.can_skip_layers = skips_layers(target)
        self.can_reuse_updates = reuses_updates(target)
        if isinstance(target, FeatureTarget):
            self.features, self.head = target.features, target.head
        if isinstance(target, ExitFeatureTarget):
            self.exit_features = target.exit_features
        if isinstance(target, LayerFeatureTarget):
            self.fused_layers = target.fused_layers
            self.collect_layers, self.layer_features = target.collect_layers, target.layer_features
        if isinstance(target, RereadsWindows):
            self.reread = partial(_reread, ref(self), target)  # a cycle would keep graphs from being given back
        if isinstance(target, PaddedTarget):
            self.prompt_padding = target.prompt_padding
        self._processors = tuple(processors)
        self._guide = guide
        self._before = np.full(len(prompt), prompt.shape[1])  # host int64 [B]
        self._tokens = F.pad(prompt.to(self.device, torch.int64), (0, room), value=-1)
        self._entries = self._tokens[:, :0]  # the tokens of a tree, its root at 0
        self._as_chain = True  # whether the entries so far were read by `forward`, as a window

    def after_join(self, other: ProcessedTarget) -> None:
        self._entries = self._tokens[:, :0]

    def prefill(self) -> Logits:
        return self._apply(self._target.prefill(), self._tokens[:, None, : int(self._before[0])], committed=1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        self._as_chain = True
        logits = (
            self._target.forward(tokens, at)
            if early_exit is None
            else self._early_exit().forward(tokens, at, early_exit)
        )
        return self._apply(logits, self._prefixes(tokens, at), committed=1)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        last = first + tokens.shape[1]
        root = self._before + at
        if first == 0:
            self._tokens.scatter_(1, self._index(root[:, None]), tokens[:, :1])
        root_token = self._tokens.gather(1, self._index(root[:, None]))
        # Entries of a tree that has been a chain so far were read as a window; their tokens follow the root's.
        before = self._entries[:, 1:first]
        if self._as_chain:
            before = self._tokens.gather(1, self._index(root[:, None] + np.arange(1, max(first, 1))))
        self._entries = torch.cat([root_token, before, tokens[:, int(first == 0) :]], dim=1)
        self._as_chain = False
        # A prefix, from right to left: the path up to the root, then the committed tokens before it.
        path = ancestors(tree, last)[:, first:]
        depth = tree.depth[:, first:last]
        back = int((root[:, None] + depth).max()) + 1
        step = depth[..., None] + np.arange(1 - back, 1)
        on_path = np.take_along_axis(path, step.clip(0, path.shape[2] - 1), axis=2)
        room = self._tokens.shape[1]
        prefix = np.where(step > 0, room + on_path, root[:, None, None] + step)
        both = torch.cat([self._tokens, self._entries], dim=1)
        if early_exit is None:
            logits = self._tree_target().forward_tree(tokens, at, tree, first)
        else:
            logits = self._early_exit().forward_tree(tokens, at, tree, first, early_exit)
        return self._apply(logits, self._gather(both, prefix), committed=int(first == 0))

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        slots = (self._before + at)[:, None] + np.arange(1, 1 + path.shape[1])
        self._tokens.scatter_(1, self._index(slots), self._entries.gather(1, self._index(path)))
        self._tree_target().settle(at, path)

    def process(self, logits: Logits, tokens: Tensor, slots: NDArray[np.int64]) -> Logits:
        """Guidance and processors on the logits of drafts, such as those of a head on the target's features.

        Args:
            logits: [B, W, V].
            tokens: int64 [B, n], tokens after the prompt: committed ones and drafts.
            slots: Host int64 [B, W, L], the prefix of each draft among `tokens`, the latest token last; negative
                where there is none. The prompt precedes it.
        """
        # The tokens before slot 0 are those of the prompt, from its end; -1 stands before shorter ones.
        longest = int(self._before.max())
        prompt = self._gather(self._tokens, (self._before[:, None] + np.arange(-longest, 0))[:, None])[:, 0]
        slots = np.concatenate([slots[..., :1] + np.arange(-longest, 0), slots], axis=-1)
        known = torch.cat([prompt, tokens], dim=1)
        return self._apply(logits, self._gather(known, slots + longest), committed=0)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def _prefixes(self, tokens: Tensor, at: NDArray[np.int64]) -> Tensor:
        """The prefix of each slot of a window, int64 [B, W, L], whose tokens are kept for later ones."""
        slots = (self._before + at)[:, None] + np.arange(tokens.shape[1])
        self._tokens.scatter_(1, self._index(slots), tokens)
        longest = int(slots.max()) + 1
        # The prefix of the logits after a token ends with that token.
        prefix = slots[..., None] + np.arange(1 - longest, 1)
        return self._gather(self._tokens, prefix)

    def _tree_target(self) -> TreeTarget:
        if not isinstance(self._target, TreeTarget):
            name = type(self._target).__name__
            raise ArgumentError(f"recipes with a tree are not possible here: {name} reads windows only")
        return self._target

    def _early_exit(self) -> SupportsTreeEarlyExit:
        assert isinstance(self._target, SupportsTreeEarlyExit), "early exits need a target with `layers`"
        return self._target

    def _index(self, slots: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(slots).to(self.device)

    def _gather(self, tokens: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """Tokens [B, W, L] at slots of each row's `tokens` [B, n]; -1 at negative ones."""
        index = self._index(slots).expand(len(tokens), -1, -1)
        found = tokens.gather(1, index.clamp(min=0).flatten(1)).view_as(index)
        return found.masked_fill_(index < 0, -1)

    def _apply(self, logits: Logits, prefix: Tensor, committed: int) -> Logits:
        """Guidance, then the processors, on logits [B, W, V] with the prefix of each slot, int64 [B, W, L]."""
        # In the first `committed` slots the prefix contains no draft.
        z = logits.cond.float()
        if logits.uncond is not None:
            assert self._guide is not None, "a target with unconditional logits needs `guide`"
            # For a token that the model itself forbids both logits are -inf, and their difference would be NaN.
            z = self._guide(z, logits.uncond.float()).masked_fill_(z.isneginf(), -torch.inf)
        shape, z, prefix = z.shape, z.flatten(0, 1), prefix.flatten(0, 1)
        for processor in self._processors:
            z = processor(prefix, z)
        z = z.view(shape)
        # After a draft that the processors exclude, they may exclude every token. Such a draft is rejected, so that any
        # distribution will do.
        z[:, committed:].masked_fill_(z[:, committed:].isneginf().all(-1, keepdim=True), 0.0)
        return Logits(z, None)


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance.

    Attributes:
        scale: The scale s of `uncond + s * (cond - uncond)`.
        normalized: Whether log-probabilities are combined, and not raw logits.
    """

    scale: float
    normalized: bool

    def __call__(self, cond: Tensor, uncond: Tensor) -> Tensor:
        if self.normalized:
            cond, uncond = cond.log_softmax(-1), uncond.log_softmax(-1)
        return torch.lerp(uncond, cond, self.scale)


def guidance(scale: float) -> GuidanceFn:
    """Classifier-free guidance of raw logits."""
    return Guidance(scale, normalized=False)


def normalised_guidance(scale: float) -> GuidanceFn:
    """Classifier-free guidance of log-probabilities, as in transformers.

    Without logits processors the distribution is the same as with `guidance`. A repetition penalty treats positive and
    negative logits differently, so that with one it is not.
    """
    return Guidance(scale, normalized=True)


def ancestors(tree: Tree, count: int) -> NDArray[np.int64]:
    """The path to each of the first `count` entries of a tree: the entry at every depth, int64 [R, count, depths].

    Values past an entry's own depth have no meaning.
    """
    rows = np.arange(len(tree.parents))
    path = np.zeros((len(rows), count, int(tree.depth[:, :count].max()) + 1), dtype=np.int64)
    for entry in range(1, count):
        path[:, entry] = path[rows, tree.parents[:, entry - 1]]
        path[rows, entry, tree.depth[:, entry]] = entry
    return path


def _reread(
    own: ref[ProcessedTarget],
    target: RereadsWindows,
    tokens: Tensor,
    at: NDArray[np.int64],
    states: Tensor,
    early_exit: EarlyExit,
) -> Logits:
    processed = own()
    assert processed is not None, "it is the caller's"
    logits = target.reread(tokens, at, states, early_exit)
    return processed._apply(logits, processed._prefixes(tokens, at), committed=1)
