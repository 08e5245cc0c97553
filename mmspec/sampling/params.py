"""Sampling parameters of one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np

from mmspec.arguments import check_number
from mmspec.errors import ArgumentError


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one row are sampled.

    Args:
        temperature: 0 takes the most likely token; otherwise 0.0001 to 10000.
        top_k: Keep the k most likely tokens (ties with the k-th stay); 0 keeps all.
        top_p: In (0, 1]; keep the smallest set of most likely tokens with at least this mass.
        guidance_scale: Classifier-free guidance `uncond + s * (cond - uncond)`, 0 to 10000; 1 is off. A token that the
            conditional logits forbid (-inf) stays forbidden. One that only the unconditional logits forbid has no
            guided logit, and is a `ModelError` where there is guidance.
        guidance_end: The first position without guidance; None guides all positions.
        min_p: Keep the tokens at least this much as likely as the most likely one, 0 to 1; 0 is off.
        typical_p: In (0, 1]; keep the tokens with the most typical information up to this mass; 1 is off.

    Raises:
        ArgumentError: If a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    guidance_scale: float = 1.0
    guidance_end: int | None = None
    min_p: float = 0.0
    typical_p: float = 1.0

    def __post_init__(self) -> None:
        def check(name: str, ok: Callable[[Any], bool], allowed: str, kind: type = Real) -> None:
            value = getattr(self, name)
            if isinstance(value, (np.integer, np.floating, Fraction)):  # torch reads Python's own numbers only
                value = int(value) if isinstance(value, np.integer) else float(value)
                object.__setattr__(self, name, value)
            if not isinstance(value, kind) or isinstance(value, bool) or not ok(value):
                raise ArgumentError(f"{name}={value!r} is not allowed; it must be {allowed}")

        check("temperature", lambda t: t == 0 or 1e-4 <= t <= 1e4, "0 (greedy), or from 0.0001 to 10000")
        check("top_k", lambda k: 0 <= k < 2**31, "an integer, 0 (off) or more", Integral)
        check("top_p", lambda p: 0 < p <= 1, "above 0 and at most 1 (off)")
        check("min_p", lambda p: 0 <= p <= 1, "from 0 (off) to 1")
        check("typical_p", lambda p: 0 < p <= 1, "above 0 and at most 1 (off)")
        check("guidance_scale", lambda s: 0 <= s <= 1e4, "from 0 to 10000 (1 is off)")
        if self.guidance_end is not None:
            check("guidance_end", lambda n: 0 <= n < 2**32, "None (all positions), or an integer, 0 or more", Integral)


def guidance_of_call(scale: float) -> float:
    """The guidance scale of a pipeline's call: 1, which is off, for all values below, as in diffusers.

    A scale of 0 would otherwise give the unconditional distribution, which ignores the prompt.

    Raises:
        ArgumentError: If it is not a number from 0 to 10000.
    """
    check_number("guidance_scale", scale, 0, 1e4)
    return max(float(scale), 1.0)


def change_each(
    samplings: Iterable[SamplingParams], change: Callable[[SamplingParams], SamplingParams]
) -> list[SamplingParams]:
    """Changes the sampling parameters of all rows; equal ones are changed, and checked, once.

    Args:
        samplings: One per row.
        change: Returns the parameters instead of those of a row.
    """
    changed: dict[SamplingParams, SamplingParams] = {}
    result = []
    for sampling in samplings:
        if (new := changed.get(sampling)) is None:
            new = changed[sampling] = change(sampling)
        result.append(new)
    return result
