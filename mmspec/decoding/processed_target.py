"""Distributions that look back: logits processors as functions of the tokens before a position.

A processor that keeps a state of its own is wrong at drafted positions: it has seen one sequence, while each slot of a
window continues another. Here the same processor is handed the prefix of the slot it is asked about, for the target's
distributions and for those of a model that drafts, so that p and q are what they would be one token at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.target import EarlyExit, SupportsTreeEarlyExit, Target, TreeTarget
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.tree import Tree

# Tokens before a slot, int64 [n, L], the latest at the right end and -1 where there is none, and its logits, float32
# [n, V] -> logits. Called before temperature, top-k, top-p and the constraint of `mmspec.sampling.sampler`. A token x of padding,
# which counts as a place but not as a token, is -2 - x.
LogitsProcessor = Callable[[Tensor, Tensor], Tensor]

# Conditional and unconditional logits, float32 [..., V] both -> guided ones.
GuidanceFn = Callable[[Tensor, Tensor], Tensor]


class ProcessedTarget:
    """A target whose logits go through prefix rules.

    Guidance comes before them and therefore is applied here; the rows' own `SamplingParams.guidance_scale` must be 1.

    Args:
        target: The model.
        rules: In order.
        prompt: int64 [B, T], what comes before position 0 in every prefix, as the rules count it; T may be 0.
        room: Positions of the sequence and of the longest window together.
        guide: How the two sides are mixed; needed where `target` has two.
    """

    def __init__(
        self,
        target: Target,
        rules: Sequence[LogitsProcessor],
        prompt: Tensor,
        room: int,
        guide: GuidanceFn | None = None,
    ) -> None:
        self.vocab_size = target.vocab_size
        self.device = target.device
        self._target = target
        if isinstance(target, SupportsTreeEarlyExit):
            self.layers = target.layers
        self._rules = rules
        self._guide = guide
        self._before = prompt.shape[1]
        self._tokens = F.pad(prompt.to(self.device, torch.int64), (0, room), value=-1)
        self._entries = self._tokens[:, :0]  # the tokens of a tree, its root at 0
        self._as_chain = True  # whether the entries read so far were read as a window

    def prefill(self) -> Logits:
        return self._apply(self._target.prefill(), self._tokens[:, None, : self._before], certain=1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], part: EarlyExit | None = None) -> Logits:
        slots = self._before + at[:, None] + np.arange(tokens.shape[1])
        self._tokens.scatter_(1, self._index(slots), tokens)
        self._as_chain = True
        longest = int(slots.max()) + 1
        # The slot after a token has it, and everything before, in its prefix.
        wanted = slots[..., None] + np.arange(1 - longest, 1)
        asked = self._target.forward(tokens, at) if part is None else self._layered().forward(tokens, at, part)
        return self._apply(asked, self._gather(self._tokens, wanted), certain=1)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, part: EarlyExit | None = None
    ) -> Logits:
        last = first + tokens.shape[1]
        root = self._before + at
        if first == 0:
            self._tokens.scatter_(1, self._index(root[:, None]), tokens[:, :1])
        known = self._tokens.gather(1, self._index(root[:, None]))
        # A tree that has grown as a chain so far was read as a window, whose tokens follow the root's.
        before = self._entries[:, 1:first]
        if self._as_chain:
            before = self._tokens.gather(1, self._index(root[:, None] + np.arange(1, max(first, 1))))
        self._entries = torch.cat([known, before, tokens[:, int(first == 0) :]], dim=1)
        self._as_chain = False
        # From the right: the path up to the root, then what was committed before it.
        path = ancestors(tree, last)[:, first:]
        depth = tree.depth[:, first:last]
        back = int((root[:, None] + depth).max()) + 1
        step = depth[..., None] + np.arange(1 - back, 1)
        on_path = np.take_along_axis(path, step.clip(0, path.shape[2] - 1), axis=2)
        room = self._tokens.shape[1]
        wanted = np.where(step > 0, room + on_path, root[:, None, None] + step)
        both = torch.cat([self._tokens, self._entries], dim=1)
        if part is None:
            logits = self._trees().forward_tree(tokens, at, tree, first)
        else:
            logits = self._layered().forward_tree(tokens, at, tree, first, part)
        return self._apply(logits, self._gather(both, wanted), certain=int(first == 0))

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        behind = self._before + at[:, None] + np.arange(1, 1 + path.shape[1])
        self._tokens.scatter_(1, self._index(behind), self._entries.gather(1, self._index(path)))
        self._trees().settle(at, path)

    def select_rows(self, row_ids: list[int]) -> None:
        self._tokens, self._entries = self._tokens[row_ids], self._entries[row_ids]
        self._target.select_rows(row_ids)

    def _trees(self) -> TreeTarget:
        if not isinstance(self._target, TreeTarget):
            name = type(self._target).__name__
            raise ArgumentError(f"recipes with a tree are not possible here: {name} reads windows only")
        return self._target

    def _layered(self) -> SupportsTreeEarlyExit:
        assert isinstance(self._target, SupportsTreeEarlyExit), "without `layers`, nobody asks for a part"
        return self._target

    def _index(self, slots: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(slots).to(self.device)

    def _gather(self, tokens: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """Tokens [B, W, L] at slots of each row's `tokens` [B, n]; -1 at negative ones."""
        index = self._index(slots).expand(len(tokens), -1, -1)
        found = tokens.gather(1, index.clamp(min=0).flatten(1)).view_as(index)
        return found.masked_fill_(index < 0, -1)

    def _apply(self, logits: Logits, prefix: Tensor, certain: int) -> Logits:
        """The rules on logits [B, W, V], given the prefix [B, W, L] of each slot; the first `certain` are decided."""
        z = logits.cond.float()
        if logits.uncond is not None:
            assert self._guide is not None, "a target with two sides needs a guide"
            # Where a model itself forbids a token both sides are -inf, and their difference would be NaN.
            z = self._guide(z, logits.uncond.float()).masked_fill_(z.isneginf(), -torch.inf)
        shape, z, prefix = z.shape, z.flatten(0, 1), prefix.flatten(0, 1)
        for rule in self._rules:
            z = rule(prefix, z)
        z = z.view(shape)
        # After a draft that the rules do not allow they may allow nothing at all. It is not taken, so any distribution will do.
        z[:, certain:].masked_fill_(z[:, certain:].isneginf().all(-1, keepdim=True), 0.0)
        return Logits(z, None)


def guidance(scale: float) -> GuidanceFn:
    """Classifier-free guidance of the logits as they are."""
    return lambda cond, uncond: torch.lerp(uncond, cond, scale)


def normalised_guidance(scale: float) -> GuidanceFn:
    """Guidance of log-probabilities, as transformers does it.

    Without a rule after it that is the same distribution. A repetition penalty tells positive logits from negative ones, and
    there it is not.
    """
    return lambda cond, uncond: torch.lerp(uncond.log_softmax(-1), cond.log_softmax(-1), scale)


def ancestors(tree: Tree, count: int) -> NDArray[np.int64]:
    """For the first `count` entries of a tree, the entry at each depth of the path to it: int64 [R, count, depths].

    After an entry's own depth there is nothing to read.
    """
    rows = np.arange(len(tree.parents))
    path = np.zeros((len(rows), count, int(tree.depth[:, :count].max()) + 1), dtype=np.int64)
    for entry in range(1, count):
        path[:, entry] = path[rows, tree.parents[:, entry - 1]]
        path[rows, entry, tree.depth[:, entry]] = entry
    return path
