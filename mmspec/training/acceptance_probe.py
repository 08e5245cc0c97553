"""Acceptance of a drafter by the target under the exact rule, per draft position, on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.decoding.assembly import build_drafter, windows_of
from mmspec.decoding.batch import BatchState
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.stats import Meter
from mmspec.decoding.to_end import step_to_end
from mmspec.decoding.trees import TreeVerification
from mmspec.decoding.window_policy import FixedWindow
from mmspec.recipes import Recipe
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import exact
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import WithoutReplacement
from mmspec.sampling.tree_rejection import Outcome, TreeVerdict
from mmspec.training.prepared import PreparedPrompts


@dataclass(frozen=True)
class DrafterAcceptance:
    """Acceptance of a drafter under the exact rule.

    Attributes:
        by_position: For each draft of a window, the mean acceptance probability, sum of min(p, q), of the drafts that
            were tested; None if none was tested.
        tokens_per_call: Tokens per target call.
    """

    by_position: list[float | None]
    tokens_per_call: float


class AcceptanceProbe:
    """A drafter of chains, or of trees that are chains, that forwards to another one and accumulates the acceptance
    probability of its drafts.

    The sum of min(p, q) is the probability that the test accepts; it has less variance than a count of accepted drafts.

    Args:
        drafter: The drafter to measure.
        depth: Largest number of drafts in a window.

    Attributes:
        accepted: Sum of acceptance probabilities per position, float64 [depth].
        tested: Number of tested drafts per position, float64 [depth].
    """

    ROWS = ("_drafter",)

    def __init__(self, drafter: Any, depth: int) -> None:
        self._drafter = drafter
        self._q: Tensor | None = None  # of a tree, float32 [B, depth, V]
        self.accepted = torch.zeros(depth, dtype=torch.float64)
        self.tested = torch.zeros(depth, dtype=torch.float64)

    @property
    def calls(self) -> int:
        return int(self._drafter.calls)

    @property
    def verify(self) -> TreeVerification:
        verification: TreeVerification = self._drafter.verify
        return verification

    @property
    def by_position(self) -> list[float | None]:
        """Mean acceptance probability per position; None where no draft was tested."""
        return [float(a / n) if n else None for a, n in zip(self.accepted, self.tested, strict=True)]

    def propose(self, state: BatchState, *arguments: Any) -> Any:
        draft = self._drafter.propose(state, *arguments)
        siblings = getattr(draft, "siblings", None)
        self._q = siblings.probs if isinstance(siblings, WithoutReplacement) else None
        return draft

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        if (m := verdict.p.shape[1] - 1) > 0:
            q = self._q if isinstance(verdict, TreeVerdict) else verdict.draft.q
            assert q is not None, "trees are sampled without replacement"
            overlap = torch.minimum(dense(verdict.p[:, :m]), dense(q)).sum(-1).double().cpu()
            # Slots past the end of a row are tested too, but their result is not used.
            inside = torch.from_numpy(state.positions(m) < state.layout.length)
            inside &= torch.from_numpy(state.is_running)[:, None]
            tested = (torch.arange(m) < torch.from_numpy(verdict.tested)[:, None]) & inside
            self.accepted[:m] += (overlap * tested).sum(0)
            self.tested[:m] += tested.sum(0)
        self._drafter.observe(verdict, state, draws)


def measure_acceptance(prepared: PreparedPrompts, recipe: Recipe, seeds: Sequence[int]) -> DrafterAcceptance:
    """Decodes prompts, one seed each, and measures the acceptance of the recipe's drafter.

    Args:
        prepared: The prompts.
        recipe: A recipe with a fixed window, whose drafts are not a tree, or one that is a chain.
        seeds: One per prompt.
    """
    layout, settings = prepared.layout, prepared.samplings
    target = prepared.make()
    state, meter = BatchState(seeds, layout, recipe.window, target.device), Meter(target.device, len(seeds))
    with torch.inference_mode():
        sampler = TokenSampler(settings, layout.constraint, target.device)
        drafter = build_drafter(recipe, layout, target, settings, prepared.resources, sampler, len(seeds))
        probe, policy = AcceptanceProbe(drafter, recipe.depth), FixedWindow(recipe.window)
        step_to_end(RunningBatch(target, probe, exact(), sampler, state, policy, meter, windows=windows_of(recipe)))
    return DrafterAcceptance(probe.by_position, meter.stats(probe.calls).tokens_per_call)
