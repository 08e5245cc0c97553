"""The exact rule: the last step gets noise of a given standard deviation, and drafts are tested by reflection coupling.

For two Gaussians of the same sigma, a draft x ~ N(m_q, sigma**2) is accepted with probability min(1, p(x) / q(x)).
Otherwise its offset from m_q is mirrored at the hyperplane orthogonal to m_q - m_p and added to m_p; the outcome
follows p (De Bortoli et al. 2025, arXiv 2501.05370, who couple the steps of a diffusion chain in this way). The
acceptance probability is 2 * Phi(-|m_p - m_q| / (2 * sigma)), which no other coupling exceeds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.continuous.sampler import Gaussian, LatentRule
from mmspec.sampling.rng import WindowRNG


class Smoothed(LatentRule):
    """Keeps the target distribution with noise of standard deviation `sigma` after the head's last step.

    Args:
        sigma: Standard deviation in units of the latents; it replaces the noise that the head itself may add there.
    """

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def sample(self, dist: Gaussian, normal: Tensor) -> Tensor:
        return dist.mean + self.sigma * normal

    def accept_prob(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        return ((x - q.mean).square().sum(-1) - (x - p.mean).square().sum(-1)).div(2 * self.sigma**2).exp()

    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        difference = q.mean - p.mean
        direction = difference / difference.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        z = x - q.mean
        return p.mean + z - 2 * (z * direction).sum(-1, keepdim=True) * direction
