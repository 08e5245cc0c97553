"""The exact rule: the last step gets noise of a stated deviation, and drafts are tested by reflection coupling.

Two Gaussians of one sigma: a draft x ~ N(m_q, sigma**2) is kept with probability min(1, p(x) / q(x)); otherwise x,
seen from m_q, is mirrored at the hyperplane across m_q - m_p and laid at m_p, and follows p (De Bortoli et al. 2025,
arXiv 2501.05370, who couple the steps of a diffusion chain so). A draft is kept with probability
2 * Phi(-|m_p - m_q| / (2 * sigma)).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.continuous.sampler import Gaussian, LatentRule
from mmspec.sampling.rng import WindowRNG


class Smoothed(LatentRule):
    """Keeps the distribution of the target with noise of deviation `sigma` after its head's last step.

    Args:
        sigma: In units of the latents; it stands in for the noise that the head itself may have there.
    """

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def draw(self, dist: Gaussian, normal: Tensor) -> Tensor:
        return dist.mean + self.sigma * normal

    def chance(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        return ((x - q.mean).square().sum(-1) - (x - p.mean).square().sum(-1)).div(2 * self.sigma**2).exp()

    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        across = q.mean - p.mean
        direction = across / across.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        z = x - q.mean
        return p.mean + z - 2 * (z * direction).sum(-1, keepdim=True) * direction
