"""How good a drafter is: what the target would keep of its drafts, position by position, on prompts it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.loop import Drafter, FixedWindow, decode
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.stats import Meter
from mmspec.engine import build_drafter
from mmspec.recipes import Recipe
from mmspec.sampling.rejection import Draft, Verdict, exact
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import TokenSampler
from mmspec.training.prepared import Prepared


@dataclass(frozen=True)
class Acceptance:
    """What a drafter is worth under the exact rule.

    Attributes:
        by_position: For each draft of a window, the mean probability that it is kept once it is tested, the sum of
            min(p, q); None where none was tested.
        tokens_per_call: What comes of it.
    """

    by_position: list[float | None]
    tokens_per_call: float


class AcceptanceProbe:
    """Watches a drafter at work."""

    def __init__(self, drafter: Drafter, depth: int) -> None:
        self._drafter = drafter
        self.kept = torch.zeros(depth, dtype=torch.float64)
        self.tested = torch.zeros(depth, dtype=torch.float64)

    @property
    def calls(self) -> int:
        return self._drafter.calls

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        return self._drafter.propose(state, count, draws)

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        if (m := verdict.p.shape[1] - 1) > 0:
            overlap = torch.minimum(verdict.p[:, :m], verdict.draft.q).sum(-1).double().cpu()
            # Slots past the end are tested too, and mean nothing.
            inside = torch.from_numpy(state.positions(m) < state.layout.length)
            tested = (torch.arange(m) < torch.from_numpy(verdict.tested)[:, None]) & inside
            self.kept[:m] += (overlap * tested).sum(0)
            self.tested[:m] += tested.sum(0)
        self._drafter.observe(verdict, state, draws)

    def select_rows(self, row_ids: list[int]) -> None:
        self._drafter.select_rows(row_ids)


def measure(prepared: Prepared, recipe: Recipe, seeds: Sequence[int]) -> Acceptance:
    """Decodes prompts, one seed each, by a recipe whose drafts do not branch."""
    layout, settings = prepared.layout, prepared.samplings
    target = prepared.make()
    rows, meter = BatchState(seeds, layout, recipe.window, target.device), Meter(target.device, len(seeds))
    with torch.inference_mode():
        sampler = TokenSampler(settings, layout.constraint, target.device)
        context = DraftingContext(recipe, layout, target, settings, prepared.resources, sampler, len(seeds))
        probe = AcceptanceProbe(build_drafter(context), recipe.window - 1)
        decode(target, probe, exact(), sampler, rows, FixedWindow(recipe.window), meter, None)
    return Acceptance(shares(probe.kept, probe.tested), meter.stats(probe.calls).tokens_per_call)


def shares(part: Tensor, whole: Tensor) -> list[float | None]:
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]
