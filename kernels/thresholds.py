"""The search for the threshold of top-k or top-p in a row of logits, which reads the row as few times as it can.

A bisection over the bits of the logits takes 12 readings or more. Here the first pivots are where a normal distribution
with the mean and the deviation of the row would have the threshold, and later ones where a straight line between the
bounds has it: 4 or 5 readings of logits that are about normal, few more of others. The result is that of a bisection.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mmspec.kernels.softmax_stats import logits


@triton.jit
def key_of(z):
    """An int32 with the order of z."""
    bits = tl.where(z == 0, 0.0, z).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def from_key(key):
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def span(low, high):
    """How far `high` lies above `low`, uint32: the difference of two int32 may not fit into one."""
    return high.to(tl.uint32, bitcast=True) - low.to(tl.uint32, bitcast=True)


@triton.jit
def tile(
    held, columns, source, line, kind, scale, temperature,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The logits of the tokens `columns`: `held`, if the whole row is in registers, else read again."""
    if WHOLE:
        return held
    return logits(source, line, kind, scale, temperature, columns, GUIDED, MASKED, UNIT)


# Reductions of several numbers at once wait for other warps once, instead of once for each number.


@triton.jit
def join_moments(top, count, first, second, more_top, more_count, more_first, more_second):
    """Joins maximums, counts, sums and sums of squares."""
    return tl.maximum(top, more_top), count + more_count, first + more_first, second + more_second


@triton.jit
def join_neighbors(reached, bottom, top, more_reached, more_bottom, more_top):
    """Joins sums, minimums and maximums."""
    return reached + more_reached, tl.minimum(bottom, more_bottom), tl.maximum(top, more_top)


@triton.jit
def join_sums(one, two, more_one, more_two):
    """Joins two sums."""
    return one + more_one, two + more_two


@triton.jit
def _quantile(share):
    """The number that a normal one exceeds with probability `share`, to 5e-4 (Abramowitz and Stegun, 26.2.23)."""
    tail = tl.maximum(tl.minimum(share, 1 - share), 1e-7)
    t = tl.sqrt(-2 * tl.log(tail))
    x = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    return tl.where(share < 0.5, x, -x)


@triton.jit
def _worth(z, peak, low, MASS: tl.constexpr):
    """What each token counts: its weight, or 1."""
    if MASS:
        # The maximum is the peak; it keeps the compiler from holding the weights of a whole row in registers.
        return tl.exp(z - tl.maximum(peak, from_key(low)))
    return tl.full(z.shape, 1.0, tl.float32)


@triton.jit
def search(
    held, source, line, kind, scale, temperature, low, high, above, goal, mean, deviation, peak,
    MASS: tl.constexpr, GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest key from which on tokens add up to `goal`: each counts 1, or with MASS exp(z - peak).

    Counts are exact; masses are float32, in an order of their own, so that the key found may be off by a few tokens
    where rounding decides. NaN counts nothing.

    Args:
        low: The least key, int32; tokens from it on add up to `above` (float32), which is not less than `goal`.
        high: A key above that of the peak, int32.
        goal: float32.
        mean: About the mean of the tokens, by what each counts; any number gives the same result, if not as fast.
        deviation: About their standard deviation, likewise.
    """
    lanes = tl.arange(0, BLOCK)
    # First sums at two pivots, on both sides of where the goal should be: at first by 3 to 5 % and noise, then by the
    # distance of a random walk from the line between two points that it goes through.
    spread = 0.05 * tl.minimum(goal, above - goal) if MASS else 0.03 * goal + 1.5 * tl.sqrt(goal)
    one = mean + deviation * _quantile((goal + spread) / above)
    two = mean + deviation * _quantile((goal - spread) / above)
    pivot = 0.5 * (one + two)
    left, right, over = mean - 4 * deviation, peak, tl.zeros((), tl.float32)
    each = _worth(tl.minimum(pivot, peak), peak, low, MASS)
    tries = 4
    while (above - over > 40 * each) & (above != goal) & (tries > 0) & (span(low, high) > 2):
        a, b = tl.minimum(key_of(one), key_of(two)), tl.maximum(key_of(one), key_of(two))
        a, b = tl.minimum(tl.maximum(a, low + 1), high - 1), tl.minimum(tl.maximum(b, low + 1), high - 1)
        one, two = from_key(a), from_key(b)
        first, second = tl.zeros((), tl.float32), tl.zeros((), tl.float32)
        for start in range(0, BLOCK if WHOLE else source[6], BLOCK):
            z = tile(held, start + lanes, source, line, kind, scale, temperature, GUIDED, MASKED, UNIT, WHOLE)
            w = _worth(z, peak, low, MASS)
            more_one, more_two = tl.reduce((tl.where(z >= one, w, 0.0), tl.where(z >= two, w, 0.0)), 0, join_sums)
            first, second = first + more_one, second + more_two
        between = (first >= goal) & (second < goal)
        if second >= goal:
            low, above, left = b, second, two
        elif first >= goal:
            low, above, left = a, first, one
        if first < goal:
            high, over, right = a, first, one
        elif second < goal:
            high, over, right = b, second, two
        each = _worth(right, peak, low, MASS)
        inverse = 1 / (above - over)
        slope = (right - left) * inverse
        aim = above - goal + 0.5 * each
        noise = tl.sqrt(each * tl.maximum((above - goal) * (goal - over) * inverse, 0.0)) + 0.5 * each
        noise = tl.where(between, noise, tl.maximum(noise, spread))
        pivot = left + slope * aim
        one, two = left + slope * tl.maximum(aim - noise, 0.0), left + slope * tl.minimum(aim + noise, above - over)
        tries -= 1

    # Then the sum at one pivot, and the tokens next to it: the bounds move to them, and meet where one of them makes
    # the difference. Where a reading gains little, the next one halves the keys between the bounds.
    found = tl.zeros((), tl.int32) if MASS else (above == goal).to(tl.int32)
    stalled = tl.zeros((), tl.int32)
    while span(low, high) > 1:
        a = tl.where(stalled > 0, low + (span(low, high) >> 1).to(tl.int32, bitcast=True), key_of(pivot))
        a = tl.where(found > 0, low, tl.minimum(tl.maximum(a, low + 1), high - 1))
        pivot = from_key(a)
        first, bottom, top = tl.zeros((), tl.float32), float("inf"), float("-inf")
        for start in range(0, BLOCK if WHOLE else source[6], BLOCK):
            z = tile(held, start + lanes, source, line, kind, scale, temperature, GUIDED, MASKED, UNIT, WHOLE)
            reached = z >= pivot
            sums = tl.where(reached, _worth(z, peak, low, MASS), 0.0)
            neighbors = (sums, tl.where(reached, z, float("inf")), tl.where(reached, float("-inf"), z))
            more, least, most = tl.reduce(neighbors, 0, join_neighbors)
            first, bottom, top = first + more, tl.minimum(bottom, least), tl.maximum(top, most)
        before = above - over
        if first >= goal:
            low, above, left = key_of(bottom), first, bottom
            if first - _worth(bottom, peak, low, MASS) < goal:
                high = low + 1
        else:
            high, over, right = key_of(top) + 1, first, top
            if first + _worth(top, peak, low, MASS) >= goal:
                low = high - 1
        high, found = tl.maximum(high, low + 1), found * 0
        each = _worth(right, peak, low, MASS)
        pivot = left + (right - left) * ((above - goal + 0.5 * each) / (above - over))
        stalled = ((above - over) * 1.3 > before).to(tl.int32)
    return low
