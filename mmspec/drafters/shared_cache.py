"""A part of the target as the draft model, which writes to the target's own KV cache.

Keys and values that drafts write are those of the part; the target writes all of them again when it verifies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import EarlyExit, SupportsEarlyExit, Target, read_window
from mmspec.drafters.draft_model import draft_sampling
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import Sampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class SharedCacheRunner:
    """A `mmspec.drafters.draft_runner.DraftRunner` for chains, on a part of the target that shares its KV cache.

    It reads the last token and drafts only, which the target reads after it: what it writes to the cache would be wrong
    for any token before them.

    Args:
        model: The part of the target.
        sampler: Makes the draft distributions.
    """

    ROWS = ("_sampler",)
    COUNTS = ("calls",)

    def __init__(self, model: Target, sampler: Sampler) -> None:
        self.calls = 0
        self._model = model
        self._sampler = sampler

    def root(self, state: BatchState) -> Probs:
        self.calls += 1
        logits = read_window(self._model, state.last(), state.before)
        return self._sampler(logits, state.positions_after(np.zeros((1, 1), dtype=np.int64)))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        self.calls += 1
        logits = self._model.forward(tokens, state.before.host + first)
        return self._sampler(logits, state.positions_after(first + np.arange(tokens.shape[1])[None]))

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        """Does nothing: the target has written the cache that both share."""


def part_of_target(context: DraftingContext) -> tuple[Target, Sequence[SamplingParams]]:
    """The part of the target that the knobs `recent` and `layers` choose, and the sampling parameters of its drafts.

    Raises:
        ArgumentError: If the knobs choose the whole target, or it cannot run in part.
    """
    knobs, target = context.recipe.knobs, context.target
    layers, recent = int(knobs.get("layers", 0)), int(knobs["recent"])
    if not layers and not recent:
        raise ArgumentError(f"recipe '{context.recipe}' drafts with the whole model; set recent or layers")
    if not layers:
        layers = target.layers if isinstance(target, SupportsEarlyExit) else 1
    scale = float(knobs["guidance"])
    part = EarlyExitTarget(target, EarlyExit(layers, guided=scale != 1, recent=recent))
    return part, draft_sampling(context, scale)
