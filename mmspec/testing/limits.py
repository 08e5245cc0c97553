"""How far samples of a known distribution may stray: limits that hold for every distribution and number of samples.

Both limits are Chernoff bounds, computed from the enumerated distribution instead of from a normal approximation, which
fails where few sequences have most of the mass. Exact samples exceed them at most as often as stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

FALSE_ALARM = 1e-6  # of a whole check
# Tilts of a Chernoff bound; every tilt gives a valid limit, the best one the smallest.
_GRID = 10 ** torch.linspace(-0.5, 3, 200, dtype=torch.float64)
_TV_TILTS = (0.65, 0.9, 1.2)
_CHUNK = 256  # sequences

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class _Values:
    """A tensor that equals another one with the same numbers."""

    numbers: bytes
    tensor: Tensor = field(compare=False)


def remembered(compute: Callable[P, R]) -> Callable[P, R]:
    """Returns what `compute` found for the same numbers before: many recipes are compared with one distribution.

    Args:
        compute: A function of float64 tensors on the CPU and of hashable values; its result is not changed.
    """

    @lru_cache(maxsize=64)
    def known(*values: object, **named: object) -> R:
        args = (value.tensor if isinstance(value, _Values) else value for value in values)
        return compute(*args, **named)  # type: ignore[arg-type]

    @wraps(compute)
    def remembering(*args: P.args, **kwargs: P.kwargs) -> R:
        values = (_Values(x.numpy().tobytes(), x) if isinstance(x, Tensor) else x for x in args)
        return known(*values, **kwargs)  # type: ignore[arg-type]

    return remembering


@remembered
def tv_limit(joint: Tensor, samples: int, false_alarm: float = FALSE_ALARM) -> float:
    """The total variation distance to `joint` that exact samples exceed with at most this probability.

    Args:
        joint: Probabilities of all sequences, float64 [S].
        false_alarm: The probability.
    """
    mean = joint[joint > 0] / joint.sum() * samples
    # The best tilts of a normal distribution with the variance of independent Poisson counts.
    best = math.sqrt(-2 * math.log(false_alarm) / ((1 - 2 / math.pi) * samples))
    tilts = best * torch.tensor(_TV_TILTS, dtype=torch.float64)
    sums = (_cumulants(mean, samples, tilts) - math.log(false_alarm)) / tilts
    # McDiarmid's inequality: one sample moves the distance by at most 1 / samples. For few sequences.
    expected = float((mean * (1 - mean / samples)).clamp(min=0).sqrt().sum()) / (2 * samples)
    return min(float(sums.min()) / (2 * samples), expected + math.sqrt(-math.log(false_alarm) / (2 * samples)))


def _cumulants(mean: Tensor, samples: int, tilts: Tensor) -> Tensor:
    """log E exp(tilt * sum of |count - mean|), float64 [T], of multinomial counts with these means, float64 [S]."""
    # A multinomial distribution is that of independent Poisson counts, given their sum. The weighted distributions of
    # the counts are convolved by FFT, over as many values around the means as matter; what wraps around only adds to
    # it.
    size = 2 ** math.ceil(math.log2(26 * math.sqrt(samples) + 64))
    offset = torch.arange(size, dtype=torch.float64)
    offset = torch.where(offset < size // 2, offset, offset - size)
    cumulants = torch.zeros_like(tilts)
    spectra = torch.ones(len(tilts), size // 2 + 1, dtype=torch.complex128)
    for means in mean.split(_CHUNK):
        means = means[:, None]
        count = means.round() + offset
        weight = torch.special.xlogy(count, means) - means - torch.lgamma(count.clamp(min=0) + 1)
        weight = weight.masked_fill(count < 0, -torch.inf).exp()
        tilted = (count - means).abs()
        for i, tilt in enumerate(tilts.tolist()):
            mass = weight * (tilt * tilted).exp()
            total = mass.sum(1, keepdim=True)
            cumulants[i] += total.log().sum()
            spectra[i] *= torch.fft.rfft(mass / total).prod(0)
    here = torch.fft.irfft(spectra, n=size)[:, (samples - int(mean.round().sum())) % size]
    hit = samples * math.log(samples) - samples - math.lgamma(samples + 1)  # the sum of the counts is `samples`
    # Where the tilt leaves almost nothing at that sum, rounding decides.
    return torch.where(here > 1e-7, cumulants + here.clamp(min=1e-7).log() - hit, torch.inf)


def mean_limits(joint: Tensor, score: Tensor, samples: int, false_alarm: float = FALSE_ALARM) -> tuple[float, float]:
    """How far the mean score of exact samples lies above and below its expectation, with at most this probability.

    Args:
        joint: Probabilities of all sequences, float64 [S].
        score: A number for each sequence, float64 [S].
        false_alarm: The probability of either side.

    Returns:
        The limits above and below, both positive.
    """
    p = joint / joint.sum()
    centered = score - (p * score).sum()
    deviation = float((p * centered.square()).sum().sqrt())
    if not deviation:
        return 0.0, 0.0
    tilt = (_GRID / (deviation * samples**0.5))[:, None]
    limits = []
    for side in (centered, -centered):
        cumulant = torch.logsumexp(tilt * side + p.log(), dim=1)
        limits.append(float(((cumulant - math.log(false_alarm) / samples) / tilt[:, 0]).min()))
    return limits[0], limits[1]
