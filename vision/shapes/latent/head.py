"""What makes the shapes transformer one of latents: how it reads them, and a flow head that draws them.

A latent is the feature vector that the tokenizer's decoder reads at a place, five numbers in about -1..1. The discrete
model says how likely each of its codes is; smeared by a little noise, that is a distribution over latents, and the flow from
noise to it is known in closed form: this head is what a trained one would be if it made no mistake. It has no weights.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmspec.continuous.sampler import Gaussian
from mmspec.sampling.logits import Logits

SPREAD = 0.04  # standard deviation of the latents around their codes, which lie 0.5 apart
NEAR = 0.1  # of the noise under which the transformer reads them


class CodeReading(nn.Module):
    """The embedding of a latent [..., D]: that of the codes, by their probability under noise of deviation `NEAR`.

    Args:
        codes: [V, D], the latents of the codes.
        table: [V, C], their embeddings.
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
    """The flow head: Euler steps from noise along x' = (E[latent | x, t] - x) / (1 - t), which leave nothing to chance.

    With x = (1 - t) * w + t * latent, the latent of a code v is N(code_v, spread**2), and E is the mean over the codes,
    by their probability at x, of the latent that each would have.

    Args:
        codes: [V, D].
        steps: Of the flow.
        guidance: Of the distribution over codes, as in the discrete model; the temperature is above 0.
        temperature: As for `guidance`.
    """

    marks = 0

    def __init__(self, codes: Tensor, steps: int, guidance: float, temperature: float) -> None:
        self.dim = self.normals = codes.shape[1]
        self._codes = codes
        self._half = codes.square().sum(-1) / 2
        self._steps = steps
        self._guidance = guidance
        self._temperature = temperature

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        said = logits.cond.float()
        if logits.uncond is not None:
            said = torch.lerp(logits.uncond.float(), said, self._guidance)
        said, x = said / self._temperature, noise
        for i in range(self._steps):
            t = i / self._steps
            variance = (1 - t) ** 2 + (t * SPREAD) ** 2
            weight = (said + (t * (x @ self._codes.T) - t**2 * self._half) / variance).softmax(-1)
            code = weight @ self._codes
            goal = code + t * SPREAD**2 / variance * (x - t * code)
            x = x + (goal - x) / (self._steps - i)
        return Gaussian.deterministic(x)
