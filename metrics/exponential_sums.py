"""Tails of sums of independent exponential variables with positive and negative weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STEP = 0.07  # of the trapezoid rule, on the scale of arcsinh
_TURN = 2.0  # the path ends in lines that rise by this for a step along the real axis
_AT_ONCE = 8  # points of the path
_NOTHING = 1e-9  # what may be left of an integral, relative to it
_REACH = 14.0  # where even a sum of three variables has fallen below rounding

Array = NDArray[np.float64]


def probability_above_zero(weights: Array, counts: Array) -> float:
    """P(w_1 E_1 + w_2 E_2 + ... > 0) for independent standard exponential variables E.

    The sum has the moment generating function 1 / prod(1 - w t)^count, and the probability is its inverse Laplace
    integral. Its path leaves the saddle point like the parabola of steepest descent, along which the integrand does not
    oscillate and falls fastest, so that small probabilities keep their relative precision (about 1e-6); farther out it
    is straight, since a parabola would come near the poles on the real axis.

    Args:
        weights: float64 [W], finite.
        counts: How many variables have each weight, float64 [W], positive.
    """
    kept = weights != 0
    weights, counts = weights[kept], counts[kept]
    if not (weights > 0).any():
        return 0.0
    if not (weights < 0).any():
        return 1.0
    weights = weights / np.abs(weights).max()
    point = _saddle_point(weights, counts)
    terms = weights / (1 - weights * point)
    curvature, skewness = (float((counts * terms**power).sum()) for power in (2, 3))
    scale, bend = 1 / np.sqrt(curvature), skewness / (3 * curvature)
    # The integrand has a pole at zero, which the path must not come near.
    least = 0.25 * scale
    edge = (1 / weights.max() if point >= 0 else -1 / weights.min()) / 2
    distance = max(abs(point), min(least, edge))
    at = distance if point >= 0 else -distance

    def integrand(x: Array) -> Array:
        y = scale * np.sinh(x)
        straight = 1 + _TURN * abs(bend) * y
        z = at + 1j * y + bend * y**2 / straight
        slope = bend * y * (1 + straight) / straight**2  # dz / dy = slope + i
        logarithm = -(counts[:, None] * np.log(1 - weights[:, None] * z)).sum(0)
        values: Array = (np.exp(logarithm) / z * (1 - 1j * slope)).real * scale * np.cosh(x)
        return values

    x = np.arange(0.0, _REACH, _STEP)
    total, first = 0.0, 0
    while first < len(x):
        values = integrand(x[first : first + _AT_ONCE])
        total += float(values.sum()) - (float(values[0]) / 2 if first == 0 else 0.0)
        first += _AT_ONCE
        # The more variables, the sooner the integrand falls; the rest of it falls faster than any exponential.
        if np.abs(values).max() * len(x) < _NOTHING * abs(total):
            break
    tail = _STEP * total / np.pi
    return float(np.clip(tail if at > 0 else 1 + tail, 0.0, 1.0))


def _saddle_point(weights: Array, counts: Array) -> float:
    """Where sum(count w / (1 - w t)), which rises between the two poles, is zero."""
    low, high = 1 / weights.min(), 1 / weights.max()
    point = 0.0
    for _ in range(200):
        terms = weights / (1 - weights * point)
        slope = float((counts * terms).sum())
        low, high = (low, point) if slope > 0 else (point, high)
        step = point - slope / float((counts * terms**2).sum())  # Newton's, or else half of what is left
        following = step if low < step < high else (low + high) / 2
        if abs(following - point) <= 1e-12 * (abs(point) + 1e-12):
            break
        point = following
    return point
