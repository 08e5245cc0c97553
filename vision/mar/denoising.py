"""The reverse diffusion of a latent: which timesteps, and the Gaussian of each step.

The cosine schedule of 1000 steps (Nichol and Dhariwal 2021, arXiv 2102.09672), thinned out to fewer; the network says
the noise, and a number between the least and the largest variance of a step in the logarithm.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.sampler import Gaussian
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.vision.mar.head import DiffusionHead

ORIGINAL = 1000


def timesteps(count: int) -> list[int]:
    """The original timesteps that a chain of `count` steps visits, ascending.

    Raises:
        ArgumentError: Unless it is from 2 to 1000.
    """
    if not 2 <= count <= ORIGINAL:
        raise ArgumentError(f"head_steps={count} is not allowed; it must be from 2 to {ORIGINAL}")
    stride = (ORIGINAL - 1) / (count - 1)
    return [round(i * stride) for i in range(count)]


def cosine_alpha_bars() -> NDArray[np.float64]:
    """The share of the signal left after each of the 1000 steps."""
    times = np.arange(ORIGINAL + 1) / ORIGINAL
    left = np.cos((times + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.cumprod(1 - np.minimum(1 - left[1:] / left[:-1], 0.999))


class Schedule:
    """The constants of a chain of `count` steps, index 0 the last one taken; each float64 [count]."""

    def __init__(self, count: int) -> None:
        self.timesteps = timesteps(count)
        bars = cosine_alpha_bars()[self.timesteps]
        before = np.append(1.0, bars[:-1])
        betas = 1 - bars / before
        variance = betas * (1 - before) / (1 - bars)
        self.most = np.log(betas)
        # The last step's own is 0; the one before it stands in.
        self.least = np.log(np.append(variance[1], variance[1:]))
        self.signal, self.noise = 1 / np.sqrt(bars), np.sqrt(1 / bars - 1)
        self.of_start = betas * np.sqrt(before) / (1 - bars)
        self.of_x = (1 - before) * np.sqrt(1 - betas) / (1 - bars)

    def step(self, i: int, x: Tensor, noise: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of step `i` from `x`, given what the network says; all [n, D]."""
        start = self.signal[i] * x - self.noise[i] * noise
        mean = self.of_start[i] * start + self.of_x[i] * x
        share = (share + 1) / 2
        return mean, share * self.most[i] + (1 - share) * self.least[i]


schedule = cache(Schedule)


class MARHead:
    """MAR's head as the distribution of latents wants it: the last step's Gaussian, given the noise of all steps before.

    Guidance mixes the noise of both sides, the variance is the conditional side's. Published sampling takes the mean of
    the last step.

    Args:
        net: The network.
        dim: D.
        steps: Of the chain; 100 as published.
        most_steps: Of the longest chain that is to share its noise.
        temperature: By which the noise of every step is multiplied.
        guidance: Scale.
        linear: Grows linearly from 1 along the `places` positions, as published, or is constant.
    """

    marks = 0

    def __init__(
        self,
        net: DiffusionHead,
        dim: int,
        places: int,
        steps: int = 100,
        most_steps: int = 100,
        temperature: float = 1.0,
        guidance: float = 1.0,
        linear: bool = True,
    ) -> None:
        self._schedule = schedule(steps)
        self.dim = dim
        self.normals = dim * most_steps
        # Steps at about the same time share their noise, however long the chain.
        self._segments = [most_steps - round(i * (most_steps - 1) / (steps - 1)) for i in range(steps)]
        self._net = net
        self._places = places
        self._temperature = temperature
        self._guidance = guidance
        self._linear = linear

    def scales(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The guidance at positions of the order of generation."""
        # The published loop counts a latent as missing even when it draws the last.
        done = np.minimum(positions + 1, self._places - 1) / self._places
        return 1 + (self._guidance - 1) * (done if self._linear else np.ones(positions.shape))

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        shape = positions.shape
        scales = torch.from_numpy(self.scales(positions)).to(noise).reshape(-1, 1)
        z = [side.flatten(0, 1) for side in logits if side is not None]
        mean, log_sigma, path = self.last_step(z, noise.flatten(0, 1), scales)
        empty = mean.new_empty(*shape, 0)
        return Gaussian(mean.unflatten(0, shape), log_sigma.unflatten(0, shape), path.unflatten(0, shape), empty)

    def last_step(self, z: list[Tensor], noise: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, log deviation, both [n, D], and the sum of log deviations before, [n].

        Args:
            z: [n, W] of one or both sides.
            noise: Standard normal [n, normals].
            scales: Guidance [n, 1].
        """
        plan, dim = self._schedule, self.dim
        condition = torch.cat(z)
        x, path = noise[:, :dim], noise.new_zeros(len(noise))
        for i in reversed(range(len(plan.timesteps))):
            t = torch.full((len(condition),), plan.timesteps[i], device=x.device)
            said = self._net(x.repeat(len(z), 1).to(condition.dtype), t, condition).float()
            toward, share = said[: len(x)].split(dim, dim=-1)
            if len(z) == 2:
                away = said[len(x) :, :dim]
                toward = away + scales * (toward - away)
            mean, log_variance = plan.step(i, x, toward, share)
            if i:
                path = path + log_variance.sum(-1) / 2
                fresh = noise[:, dim * self._segments[i] :][:, :dim]
                x = mean + (log_variance / 2).exp() * fresh * self._temperature
        return mean, log_variance / 2 + float(np.log(self._temperature)), path
