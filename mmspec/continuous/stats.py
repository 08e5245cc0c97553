"""Statistics of a run on a model of latents."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

from mmspec.continuous.sampler import AcceptanceCounter
from mmspec.decoding.stats import Stats


@dataclass
class LatentStats(Stats):
    """Statistics of one run. `acceptance` counts all tested drafts, also those after a rejected one.

    Attributes:
        distance: Mean distance of accepted drafts from the target's latent of the same noise: the root mean square over
            the coordinates.
        farthest: Largest such distance. The noise that a rule adds is part of it.
    """

    distance: float = 0.0
    farthest: float = 0.0

    def followed_by(self, other: Self) -> Self:
        mine, theirs = (
            sum((rate or 0.0) * count for rate, count in zip(one.acceptance, one.tested, strict=False))
            for one in (self, other)
        )
        distance = (self.distance * mine + other.distance * theirs) / max(mine + theirs, 1)
        both = super().followed_by(other)
        return replace(both, distance=distance, farthest=max(self.farthest, other.farthest))


def with_counter(stats: Stats, counter: AcceptanceCounter) -> LatentStats:
    """The statistics of the loop together with those of the sampler."""
    values = {field.name: getattr(stats, field.name) for field in fields(Stats)}
    pairs = zip(counter.accepted, counter.tested, strict=True)
    values["tested"] = counter.tested.tolist()
    values["acceptance"] = [float(accepted / tested) if tested else None for accepted, tested in pairs]
    mean = counter.distance / max(int(counter.accepted.sum()), 1)
    return LatentStats(**values, distance=mean, farthest=counter.farthest)
