"""The published rule of Continuous Speculative Decoding (Wang et al. 2024, arXiv 2411.11925). It is biased.

A draft is accepted with probability S * p(x) / q(x), where p and q are the Gaussians of the last step and S is the
ratio of the volumes of the earlier steps, prod |Sigma_q|**(1/2) / |Sigma_p|**(1/2). Given the shared noise, p(x) / q(x)
alone would be exact: S is a bias wherever the variances of the two models differ. The published code inverts S, divides
the exponents by 42**2, and replaces rejected drafts in place while it keeps the drafts after them. Each of these
choices is an option here. All computations are in logarithms, since a product of 16 deviations of 0.006 underflows
float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmspec.continuous.sampler import Gaussian, LatentRule, normals
from mmspec.sampling.rng import RESAMPLE, WindowRNG

FACTORS = {"paper": 1.0, "code": -1.0, "none": 0.0}  # exponent of S
TRIES = 16


class CSpD(LatentRule):
    """The published rule.

    Args:
        flatten: Factor of both standard deviations in the exponents of the test; 42 in the published code, 1 in the
            paper.
        factor: The factor S: "paper", "code" (its inverse) or "none" (1).
        schedule: "published" replaces rejected drafts in place and keeps the drafts after them; "corrected" ends the
            window at the first rejected draft.
        sigma: Standard deviation of the last step where the head has none.
        prefill: Share of the tokens that the target samples by plain decoding before drafting begins.
    """

    def __init__(self, flatten: float, factor: str, schedule: str, sigma: float, prefill: float) -> None:
        self.flatten = flatten
        self.exponent = FACTORS[factor]
        self.truncates = schedule == "corrected"
        self.sigma = sigma
        self.prefill = prefill

    def plain_tokens(self, length: int) -> int:
        return max(1, math.ceil(self.prefill * length))

    def deviation(self, dist: Gaussian) -> Tensor:
        """Standard deviation of the last step, [B, W, D]."""
        return torch.where(dist.log_sigma.isneginf(), self.sigma, dist.log_sigma.exp())

    def log_ratio(self, p: Gaussian, q: Gaussian, x: Tensor, flatten: float, exponent: float) -> Tensor:
        """log(S**exponent * p(x) / q(x)) for x [..., D]."""
        s_p, s_q = self.deviation(p), self.deviation(q)
        exponents = ((x - q.mean) / s_q).square() - ((x - p.mean) / s_p).square()
        last_step = (s_q.log() - s_p.log() + exponents / (2 * flatten**2)).sum(-1)
        return last_step + exponent * (q.path - p.path)

    def sample(self, dist: Gaussian, normal: Tensor) -> Tensor:
        return dist.mean + self.deviation(dist) * normal

    def accept_prob(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        return self.log_ratio(p, q, x, self.flatten, self.exponent).clamp(max=0.0).exp()

    def resample(self, p: Gaussian, q: Gaussian, x: Tensor, draws: WindowRNG) -> Tensor:
        """The first of 16 samples of p that the residual (S * p - q)+ / (S * p) accepts, or the last one if none is.

        The published code tries 100 times and then leaves zeros, which no model sampled.
        """
        count, dim = x.shape[1], x.shape[-1]
        fresh = normals(draws, RESAMPLE, (TRIES + 1) * dim)[:, :count, dim:].unflatten(-1, (TRIES, dim))

        def per_try(dist: Gaussian) -> Gaussian:
            return Gaussian(*(part.unsqueeze(2) for part in (dist.mean, dist.log_sigma, dist.path, dist.marks)))

        proposals = self.sample(per_try(p), fresh)
        accept_prob = 1 - (-self.log_ratio(per_try(p), per_try(q), proposals, 1.0, self.exponent)).exp()
        accepted = draws.uniforms(RESAMPLE, 4096, TRIES)[:, :count] < accept_prob
        accepted[..., -1] = True
        index = accepted.int().argmax(-1)[..., None, None].expand(-1, -1, 1, dim)
        return proposals.gather(2, index)[:, :, 0]

    def excess(self, p: Gaussian, q: Gaussian, x: Tensor, accept_prob: Tensor) -> Tensor:
        # There is no bound: the resample is not the residual of the test, and the published schedule keeps drafts that
        # were conditioned on a draft that has been replaced.
        return torch.ones_like(accept_prob)
