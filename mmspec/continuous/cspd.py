"""The published rule of Continuous Speculative Decoding (Wang et al. 2024, arXiv 2411.11925). It is biased.

A draft is kept with probability S * p(x) / q(x), p and q the Gaussians of the last step and S the ratio of the volumes
of the steps before, prod |Sigma_q|**(1/2) / |Sigma_p|**(1/2). Given the shared noise p(x) / q(x) alone would be exact:
S is a bias wherever the two models' variances differ. The published code has S upside down, divides the exponents by
42**2, and replaces drafts in place while it keeps those after them. Here all of it can be chosen, and all is in
logarithms: a product of 16 deviations of 0.006 is hardly a float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmspec.continuous.sampler import Gaussian, LatentRule, normals
from mmspec.sampling.rng import RESAMPLE, WindowRNG

FACTORS = {"paper": 1.0, "code": -1.0, "none": 0.0}
TRIES = 16


class CSpD(LatentRule):
    """The published rule.

    Args:
        flatten: By which both deviations are multiplied in the exponents of the test; 42 in the published code, 1 in
            the paper.
        factor: Which S: "paper", "code" (its inverse) or "none" (1).
        schedule: "published" replaces what fails in place and keeps what was drafted after it; "corrected" ends the
            window at the first that fails.
        sigma: The last step's deviation where the head has none.
        prefill: Share of the tokens that the target draws alone before drafting begins.
    """

    def __init__(self, flatten: float, factor: str, schedule: str, sigma: float, prefill: float) -> None:
        self.flatten = flatten
        self.sign = FACTORS[factor]
        self.truncates = schedule == "corrected"
        self.sigma = sigma
        self.prefill = prefill

    def alone(self, length: int) -> int:
        return max(1, math.ceil(self.prefill * length))

    def deviation(self, dist: Gaussian) -> Tensor:
        """The last step's, [B, W, D]."""
        return torch.where(dist.log_sigma.isneginf(), self.sigma, dist.log_sigma.exp())

    def log_ratio(self, p: Gaussian, q: Gaussian, x: Tensor, flatten: float, sign: float) -> Tensor:
        """log(S**sign * p(x) / q(x)), for x [..., D]."""
        s_p, s_q = self.deviation(p), self.deviation(q)
        exponents = ((x - q.mean) / s_q).square() - ((x - p.mean) / s_p).square()
        last = (s_q.log() - s_p.log() + exponents / (2 * flatten**2)).sum(-1)
        return last + sign * (q.path - p.path)

    def draw(self, dist: Gaussian, normal: Tensor) -> Tensor:
        return dist.mean + self.deviation(dist) * normal

    def chance(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        return self.log_ratio(p, q, x, self.flatten, self.sign).clamp(max=0.0).exp()

    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        """The first of 16 draws of p that the residual (S * p - q)+ / (S * p) keeps; when it keeps none, the last.

        The published code tries 100 times and then leaves zeros, which no model drew.
        """
        count, dim = x.shape[1], x.shape[-1]
        fresh = normals(draws, RESAMPLE, (TRIES + 1) * dim)[:, :count, dim:].unflatten(-1, (TRIES, dim))

        def wide(dist: Gaussian) -> Gaussian:
            return Gaussian(*(part.unsqueeze(2) for part in (dist.mean, dist.log_sigma, dist.path, dist.marks)))

        proposals = self.draw(wide(p), fresh)
        keep = 1 - (-self.log_ratio(wide(p), wide(q), proposals, 1.0, self.sign)).exp()
        hit = draws.uniforms(RESAMPLE, 4096, TRIES)[:, :count] < keep
        hit[..., -1] = True
        index = hit.int().argmax(-1)[..., None, None].expand(-1, -1, 1, dim)
        return proposals.gather(2, index)[:, :, 0]

    def excess(self, p: Gaussian, q: Gaussian, x: Tensor, chance: Tensor) -> Tensor:
        # Nothing bounds it: the resample is not the residual of the test, and what the published schedule keeps after a
        # replaced draft was drawn under a condition that is gone.
        return torch.ones_like(chance)
