"""The published decoding of MAR, several latents per pass, and lossy ways to speed it up.

After pass s of S, floor(N * cos(pi / 2 * (s + 1) / S)) latents are missing; with S = N each pass samples one. Fewer
passes, shorter chains in later passes, and reused unconditional conditions follow another distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmspec.arguments import check_integer
from mmspec.decoding.closed_batch import ClosedBatch
from mmspec.decoding.layout import Layout
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.vision.mar.denoising import MARHead
from mmspec.vision.mar.transformer import MARTransformer


@dataclass(frozen=True)
class Shortcuts:
    """Lossy shortcuts of a call; the defaults are lossless.

    Args:
        last_head_steps: Steps of the head's chain in the last pass; the number falls linearly from `head_steps` in the
            first (DiSA, arXiv 2505.20297, goes from 50 to 5). None keeps it constant.
        refresh: Passes per computation of the unconditional conditions. In between, the last difference to the
            conditional ones is reused (condition cache of LazyMAR, arXiv 2503.12450). 1 computes them in every pass.

    Raises:
        ArgumentError: If a value is not an integer, or out of range.
    """

    last_head_steps: int | None = None
    refresh: int = 1

    def __post_init__(self) -> None:
        check_integer("refresh", self.refresh, 1, 2**31)
        if self.last_head_steps is not None:
            check_integer("last_head_steps", self.last_head_steps, 2, 1000)

    @property
    def lossy(self) -> bool:
        return self.last_head_steps is not None or self.refresh > 1


def missing(places: int, passes: int) -> list[int]:
    """The number of latents that are missing after each pass.

    Args:
        places: N.

    Raises:
        ArgumentError: If `passes` is not in 1..places.
    """
    if not 1 <= passes <= places:
        raise ArgumentError(f"steps={passes} is not allowed; it must be from 1 to {places}, the number of latents")
    left, counts = places, []
    for s in range(passes):
        left = max(1, min(left - 1, math.floor(places * math.cos(math.pi / 2 * (s + 1) / passes))))
        counts.append(left)
    counts[-1] = 0
    return counts


class PassBatch(ClosedBatch):
    """Rows that are sampled by the published schedule. A step is one pass.

    Args:
        model: The backbone.
        head: Makes the diffusion head, from the number of steps of its chain.
        head_steps: Steps of the chain in the first pass.
        labels: Class ids int64 [B].
        order: int64 [B, N], the places of each row in generation order.
        guided: Whether to compute unconditional conditions as well.
        shortcuts: Lossy shortcuts.
        seeds: One per row.
        watch: What to show; the latents of a `Step` are in generation order.
    """

    def __init__(
        self,
        model: MARTransformer,
        head: Callable[[int], MARHead],
        head_steps: int,
        labels: Tensor,
        order: Tensor,
        guided: bool,
        passes: int,
        shortcuts: Shortcuts,
        seeds: Sequence[int],
        watch: Watch = UNWATCHED,
    ) -> None:
        rows, places = order.shape
        layout = Layout(places, cell=(model.config.token_dim,), dtype=torch.float32)
        super().__init__(seeds, layout, model.device, watch)
        self._model, self._head, self._head_steps, self._shortcuts = model, head, head_steps, shortcuts
        self._order = order.to(model.device)
        self._rank = self._order.argsort(dim=1)
        self._latents = torch.zeros(rows, places, model.config.token_dim, device=model.device)  # in raster order
        self._conditions = [model.conditions(labels.to(model.device), rows), model.conditions(None, rows)]
        self._guided, self._left = guided, missing(places, passes)
        self._passes = self._done = 0
        self._difference: Tensor | None = None  # of unconditional and conditional conditions

    def step(self) -> bool:
        """Makes one pass; returns whether any row is running."""
        model, meter, order, s, done = self._model, self.meter, self._order, self._passes, self._done
        rows, places = order.shape
        goal = places - self._left[s]
        known = self._rank < done
        fresh = self._guided and s % self._shortcuts.refresh == 0
        factor = 1 + fresh
        meter.clock.lap("other")
        latents, known = self._latents.repeat(factor, 1, 1), known.repeat(factor, 1)
        z = model(torch.cat(self._conditions[:factor]), latents, known).chunk(factor)
        if fresh:
            self._difference = z[1] - z[0]
        meter.clock.lap("target")
        index = order[:, done:goal, None]
        cond = z[0].gather(1, index.expand(-1, -1, z[0].shape[-1]))
        uncond = None if self._difference is None else cond + self._difference.gather(1, index.expand_as(cond))
        steps, last = self._head_steps, self._shortcuts.last_head_steps
        if last is not None and len(self._left) > 1:
            steps = round(steps + (last - steps) * s / (len(self._left) - 1))
        head, positions = self._head(steps), np.tile(np.arange(done, goal), (rows, 1))
        # All latents of a pass have the same guidance scale, by the number that is missing after it.
        scale_of = np.full_like(positions, places - max(self._left[s], 1) - 1)
        dist = head(Logits(cond, uncond), self.state.rng.normals(positions, head.normals), scale_of)
        sampled = dist.mean.to(self._latents)
        self._latents.scatter_(1, index.expand_as(sampled), sampled)
        meter.clock.lap("rule")
        gained = self.state.commit(sampled, np.full(rows, goal - done - 1))
        meter.target_calls += 1
        meter.calls += gained > 0
        meter.tokens += gained
        self._passes, self._done = s + 1, goal
        if self._on_step is not None:
            self._on_step(self.state.step(meter.target_calls))
        return bool(self.state.is_running.any())
