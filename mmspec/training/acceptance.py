"""How good a drafter is: what the target would keep of its drafts, position by position, on prompts it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.engine import build_drafter
from mmspec.law import Law
from mmspec.loop import Drafter, decode
from mmspec.noise import Draws
from mmspec.recipes import Recipe
from mmspec.rows import Rows
from mmspec.stats import Meter
from mmspec.training.prepared import Prepared
from mmspec.verify import Draft, Verdict, exact


@dataclass(frozen=True)
class Acceptance:
    """What a drafter is worth under the exact rule.

    - `by_position`: for each draft of a window, the mean probability that it is kept once it is tested, the sum of
      min(p, q); None where none was tested.
    - `tokens_per_call`: what comes of it.
    """

    by_position: list[float | None]
    tokens_per_call: float


class Gauge:
    """Watches a drafter at work."""

    def __init__(self, drafter: Drafter, depth: int) -> None:
        self._drafter = drafter
        self.kept = torch.zeros(depth, dtype=torch.float64)
        self.tested = torch.zeros(depth, dtype=torch.float64)

    @property
    def calls(self) -> int:
        return self._drafter.calls

    def propose(self, rows: Rows, count: int, draws: Draws) -> Draft:
        return self._drafter.propose(rows, count, draws)

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        if (m := verdict.p.shape[1] - 1) > 0:
            overlap = torch.minimum(verdict.p[:, :m], verdict.draft.q).sum(-1).double().cpu()
            # Slots past the end are tested too, and mean nothing.
            inside = torch.from_numpy(rows.positions(m) < rows.layout.length)
            tested = (torch.arange(m) < torch.from_numpy(verdict.tested)[:, None]) & inside
            self.kept[:m] += (overlap * tested).sum(0)
            self.tested[:m] += tested.sum(0)
        self._drafter.observe(verdict, rows, draws)

    def keep(self, rows: list[int]) -> None:
        self._drafter.keep(rows)


def measure(prepared: Prepared, recipe: Recipe, seeds: Sequence[int]) -> Acceptance:
    """Decodes prompts, one seed each, by a recipe whose drafts do not branch."""
    layout, settings = prepared.layout, prepared.samplings
    target = prepared.make()
    rows, meter = Rows(seeds, layout, recipe.window, target.device), Meter(target.device, len(seeds))
    with torch.inference_mode():
        drafter = build_drafter(recipe, layout, target, settings, prepared.aids)
        assert drafter is not None
        gauge = Gauge(drafter, recipe.window - 1)
        law = Law(settings, layout.constraint, target.device)
        decode(target, gauge, exact(), law, rows, recipe.window, meter, None)
    return Acceptance(shares(gauge.kept, gauge.tested), meter.stats(gauge.calls).tokens_per_call)


def shares(part: Tensor, whole: Tensor) -> list[float | None]:
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]
