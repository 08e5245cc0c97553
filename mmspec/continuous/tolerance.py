"""Same-noise latents within a distance: relaxed, and simple.

Every token lies within `distance` of the one the target itself makes there, of the same noise, after the same tokens.
"""

from __future__ import annotations

from torch import Tensor

from mmspec.continuous.sampler import Gaussian, LatentRule
from mmspec.sampling.rng import WindowRNG


class Tolerance(LatentRule):
    """Keeps drafts near the target's own latent, and takes that where one is not.

    Args:
        distance: Root mean square over the coordinates, in units of the latents; 0 keeps equal latents only.
    """

    def __init__(self, distance: float) -> None:
        self.distance = distance

    def draw(self, dist: Gaussian, normal: Tensor) -> Tensor:
        return dist.mean.clone()

    def chance(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        return ((x - p.mean).square().mean(-1).sqrt() <= self.distance).to(x.dtype)

    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        return p.mean

    def excess(self, p: Gaussian, q: Gaussian, x: Tensor, chance: Tensor) -> Tensor:
        # Distributions without a last step's noise share no mass unless they are the same.
        return chance * (x != p.mean).any(-1)
