"""A relaxed rule: accept drafts within a distance of the target's latent of the same noise.

Every token lies within `distance` of the one that the target would generate at that position, from the same noise and
after the same tokens.
"""

from __future__ import annotations

from torch import Tensor

from mmspec.continuous.sampler import Gaussian, LatentRule
from mmspec.sampling.rng import WindowRNG


class Tolerance(LatentRule):
    """Accepts drafts near the target's own latent, and replaces all others by that latent.

    Args:
        distance: Root mean square over the coordinates, in units of the latents; 0 accepts equal latents only.
    """

    def __init__(self, distance: float) -> None:
        self.distance = distance

    def sample(self, dist: Gaussian, normal: Tensor) -> Tensor:
        return dist.mean.clone()

    def accept_prob(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        return ((x - p.mean).square().mean(-1).sqrt() <= self.distance).to(x.dtype)

    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        return p.mean

    def excess(self, p: Gaussian, q: Gaussian, x: Tensor, accept_prob: Tensor) -> Tensor:
        # Two distributions without noise in the last step share no mass unless they are equal.
        return accept_prob * (x != p.mean).any(-1)
