"""The embedding of latents and the flow head that turn the discrete shapes transformer into a model of latents.

A latent is the feature vector of one token that the tokenizer's decoder reads: five numbers in about -1..1. The
discrete model's distribution over codes, convolved with a narrow Gaussian, is a distribution over latents, and the flow
from noise to it has a closed form. The head computes that flow, which is what a perfectly trained head would compute;
it has no weights.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.continuous.sampler import Gaussian
from mmspec.sampling.logits import Logits

SPREAD = 0.04  # standard deviation of the latents around their codes, which lie 0.5 apart
NEAR = 0.1  # standard deviation of the noise that the embedding of a latent assumes


class LatentEmbedding(nn.Module):
    """Embeds latents [..., D]: the mean embedding of the codes, by their probability under noise of deviation `NEAR`.

    Args:
        codes: [V, D], the latents of the codes.
        table: [V, C], the embeddings of the codes.
    """

    codes: Tensor
    table: Tensor

    def __init__(self, codes: Tensor, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("table", table, persistent=False)

    def forward(self, latents: Tensor) -> Tensor:
        near = latents.to(self.codes) @ self.codes.T - self.codes.square().sum(-1) / 2
        return (near / NEAR**2).softmax(-1).to(self.table.dtype) @ self.table


class FlowHead:
    """Deterministic Euler steps from noise along x' = (E[latent | x, t] - x) / (1 - t).

    Here x = (1 - t) * w + t * latent with noise w, the latent of a code v is distributed as N(code_v, SPREAD**2), and E
    is the mean of the latents that the codes would have, weighted by the probability of each code given x. It is a
    `mmspec.continuous.sampler.LatentHead`.

    Args:
        codes: [V, D], the latents of the codes.
        steps: Euler steps.
        guidance: The guidance scale of the distribution over codes.
        temperature: The temperature of the distribution over codes, above 0.
    """

    marks = 0

    def __init__(self, codes: Tensor, steps: int, guidance: float, temperature: float) -> None:
        self.dim = self.normals = codes.shape[1]
        self._codes = codes
        self._half = codes.square().sum(-1) / 2
        self.steps = steps
        self._guidance = guidance
        self._temperature = temperature

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        scores = logits.cond.float()
        if logits.uncond is not None:
            scores = torch.lerp(logits.uncond.float(), scores, self._guidance)
        scores, x = scores / self._temperature, noise
        for i in range(self.steps):
            t = i / self.steps
            variance = (1 - t) ** 2 + (t * SPREAD) ** 2
            weight = (scores + (t * (x @ self._codes.T) - t**2 * self._half) / variance).softmax(-1)
            code = weight @ self._codes
            goal = code + t * SPREAD**2 / variance * (x - t * code)
            x = x + (goal - x) / (self.steps - i)
        return Gaussian.deterministic(x)
