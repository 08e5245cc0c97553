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
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.step import OnStep, Step
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.rng import CounterRNG
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
        passes: S.

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


def decode_masked(
    model: MARTransformer,
    head: Callable[[int], MARHead],
    head_steps: int,
    labels: Tensor,
    order: Tensor,
    seeds: Sequence[int],
    guided: bool,
    passes: int,
    shortcuts: Shortcuts = Shortcuts(),
    on_step: OnStep | None = None,
) -> tuple[Tensor, Stats]:
    """Samples latents by the published schedule.

    Args:
        model: The backbone.
        head: Makes the diffusion head, from the number of steps of its chain.
        head_steps: Steps of the chain in the first pass.
        labels: Class ids int64 [B].
        order: int64 [B, N], the places of each row in generation order.
        seeds: One per row.
        guided: Whether to compute unconditional conditions as well.
        passes: S.
        shortcuts: Lossy shortcuts.
        on_step: Called after every pass.

    Returns:
        Latents [B, N, D] in raster order, and the stats.
    """
    meter = Meter(model.device, len(seeds))
    order = order.to(model.device)
    noise, rank = CounterRNG(seeds, model.device), order.argsort(dim=1)
    latents = torch.zeros(*order.shape, model.config.token_dim, device=model.device)
    conditions = [model.conditions(labels.to(model.device), len(seeds)), model.conditions(None, len(seeds))]
    difference, done = None, 0
    for s, left in enumerate(missing(order.shape[1], passes)):
        goal = order.shape[1] - left
        known = rank < done
        fresh = guided and s % shortcuts.refresh == 0
        factor = 1 + fresh
        meter.clock.lap("other")
        z = model(torch.cat(conditions[:factor]), latents.repeat(factor, 1, 1), known.repeat(factor, 1)).chunk(factor)
        if fresh:
            difference = z[1] - z[0]
        meter.clock.lap("target")
        index = order[:, done:goal, None]
        cond = z[0].gather(1, index.expand(-1, -1, z[0].shape[-1]))
        uncond = None if difference is None else cond + difference.gather(1, index.expand_as(cond))
        steps = head_steps
        if shortcuts.last_head_steps is not None and passes > 1:
            steps = round(head_steps + (shortcuts.last_head_steps - head_steps) * s / (passes - 1))
        positions = np.tile(np.arange(done, goal), (len(seeds), 1))
        # All latents of a pass have the same guidance scale, by the number that is missing after it.
        scale_of = np.full_like(positions, order.shape[1] - max(left, 1) - 1)
        dist = head(steps)(Logits(cond, uncond), noise.normals(positions, head(steps).normals), scale_of)
        latents.scatter_(1, index.expand_as(dist.mean), dist.mean.to(latents))
        meter.clock.lap("rule")
        meter.nfe += 1
        meter.calls += 1
        meter.tokens += goal - done
        done = goal
        if on_step is not None:
            so_far = [row[places[:done]].clone() for row, places in zip(latents, order, strict=True)]
            on_step(Step(meter.nfe, done * len(seeds), order.numel(), so_far))
    meter.clock.lap("other")
    return latents, meter.stats(0)
