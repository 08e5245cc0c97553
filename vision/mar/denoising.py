"""The reverse diffusion of a latent: its timesteps, and the Gaussian of each step.

The schedule is the cosine schedule of 1000 steps (Nichol and Dhariwal 2021, arXiv 2102.09672), respaced to fewer steps.
The network predicts the noise, and interpolates the log variance of a step between its lower and upper bound.
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
    """The original timesteps of a chain of `count` steps, ascending.

    Raises:
        ArgumentError: If `count` is not in 2..1000.
    """
    if not 2 <= count <= ORIGINAL:
        raise ArgumentError(f"head_steps={count} is not allowed; it must be from 2 to {ORIGINAL}")
    stride = (ORIGINAL - 1) / (count - 1)
    return [round(i * stride) for i in range(count)]


def cosine_alpha_bars() -> NDArray[np.float64]:
    """The cumulative products alpha bar of the 1000 steps, float64 [1000]."""
    times = np.arange(ORIGINAL + 1) / ORIGINAL
    left = np.cos((times + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.cumprod(1 - np.minimum(1 - left[1:] / left[:-1], 0.999))


class Schedule:
    """The constants of a chain of `count` steps, each float64 [count]; index 0 is the last step of sampling.

    Attributes:
        timesteps: The original timesteps, ascending.
        log_max_variance: Upper bound of the log variance.
        log_min_variance: Lower bound of the log variance.
        signal: Factor of x in the predicted latent.
        noise: Factor of the predicted noise in the predicted latent.
        start_weight: Factor of the predicted latent in the mean of the next x.
        x_weight: Factor of x in the mean of the next x.
    """

    def __init__(self, count: int) -> None:
        self.timesteps = timesteps(count)
        bars = cosine_alpha_bars()[self.timesteps]
        before = np.append(1.0, bars[:-1])
        betas = 1 - bars / before
        variance = betas * (1 - before) / (1 - bars)
        self.log_max_variance = np.log(betas)
        # The posterior variance of the last step is 0; that of the step before it replaces it.
        self.log_min_variance = np.log(np.append(variance[1], variance[1:]))
        self.signal, self.noise = 1 / np.sqrt(bars), np.sqrt(1 / bars - 1)
        self.start_weight = betas * np.sqrt(before) / (1 - bars)
        self.x_weight = (1 - before) * np.sqrt(1 - betas) / (1 - bars)

    def step(self, i: int, x: Tensor, noise: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of step `i`, [n, D] each.

        Args:
            i: The step.
            x: [n, D], the state before the step.
            noise: [n, D], the predicted noise.
            share: [n, D], the predicted position of the log variance between its bounds, in -1..1.
        """
        start = self.signal[i] * x - self.noise[i] * noise
        mean = self.start_weight[i] * start + self.x_weight[i] * x
        share = (share + 1) / 2
        return mean, share * self.log_max_variance[i] + (1 - share) * self.log_min_variance[i]


schedule = cache(Schedule)


class MARHead:
    """MAR's diffusion head: the Gaussian of the last step, given the noise of all steps before it.

    It is a `mmspec.continuous.sampler.LatentHead`. Guidance mixes the predicted noise of conditional and unconditional
    rows; the variance is that of the conditional rows. Published sampling returns the mean of the last step.

    Args:
        net: The network.
        dim: D, numbers per latent.
        places: N, latents per image.
        steps: Steps of the chain; 100 as published.
        most_steps: Steps of the longest chain that shares its noise with this one.
        temperature: Factor of the noise of every step.
        guidance: The guidance scale; 1 is off.
        linear: Whether the guidance scale grows linearly from 1 over the positions, as published, or is constant.
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
        self.steps = steps
        self._schedule = schedule(steps)
        self.dim = dim
        self.normals = dim * most_steps
        # Chains of different lengths share the noise of steps at about the same timestep.
        self._segments = [most_steps - round(i * (most_steps - 1) / (steps - 1)) for i in range(steps)]
        self._net = net
        self._places = places
        self._temperature = temperature
        self._guidance = guidance
        self._linear = linear

    def scales(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The guidance scales of positions, which are in generation order."""
        # The published loop counts one latent as missing even when it samples the last.
        done = np.minimum(positions + 1, self._places - 1) / self._places
        return 1 + (self._guidance - 1) * (done if self._linear else np.ones(positions.shape))

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        shape = positions.shape
        scales = torch.from_numpy(self.scales(positions)).to(noise).reshape(-1, 1)
        z = [conditions.flatten(0, 1) for conditions in logits if conditions is not None]
        mean, log_sigma, path = self.last_step(z, noise.flatten(0, 1), scales)
        empty = mean.new_empty(*shape, 0)
        return Gaussian(mean.unflatten(0, shape), log_sigma.unflatten(0, shape), path.unflatten(0, shape), empty)

    def last_step(self, z: list[Tensor], noise: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and log standard deviation of the last step, [n, D] each, and the sum of those before it, [n].

        Args:
            z: Conditions of the head, [n, W], conditional and, with guidance, unconditional.
            noise: Standard normal [n, normals].
            scales: Guidance scales [n, 1].
        """
        plan, dim = self._schedule, self.dim
        condition = torch.cat(z)
        x, path = noise[:, :dim], noise.new_zeros(len(noise))
        for i in reversed(range(len(plan.timesteps))):
            t = torch.full((len(condition),), plan.timesteps[i], device=x.device)
            out = self._net(x.repeat(len(z), 1).to(condition.dtype), t, condition).float()
            predicted, share = out[: len(x)].split(dim, dim=-1)
            if len(z) == 2:
                uncond = out[len(x) :, :dim]
                predicted = uncond + scales * (predicted - uncond)
            mean, log_variance = plan.step(i, x, predicted, share)
            if i:
                path = path + log_variance.sum(-1) / 2
                fresh = noise[:, dim * self._segments[i] :][:, :dim]
                x = mean + (log_variance / 2).exp() * fresh * self._temperature
        return mean, log_variance / 2 + float(np.log(self._temperature)), path
