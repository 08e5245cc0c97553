"""Which tokens of a masked model stay beyond its schedule: the interface, and two training-free methods.

A schedule keeps a fixed number of tokens in each step. A keeper keeps more of them, so that an image needs fewer steps.
That is lossy: tokens that are kept in the same step are sampled independently of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.arguments import check_integer, check_number
from mmspec.masked.loop import Ints


@dataclass(frozen=True)
class Sampled:
    """What a step has sampled, for R rows of N places.

    Attributes:
        rows: Host int64 [R], the rows of the batch.
        steps: Host int64 [R], the number of each row's step.
        missing: bool [R, N], the places without a token before the step.
        tokens: int64 [R, N], the sampled tokens; other places are ignored.
        p: float32 [R, N, V], the distributions that they are sampled from.
        grid: Rows and columns of the places.
    """

    rows: Ints
    steps: Ints
    missing: Tensor
    tokens: Tensor
    p: Tensor
    grid: tuple[int, int]

    @property
    def confidence(self) -> Tensor:
        """The probability of each sampled token, float32 [R, N]; 1 where there is a token already."""
        return self.p.gather(-1, self.tokens[..., None])[..., 0].masked_fill(~self.missing, 1.0)


class Keeper(Protocol):
    """Decides which sampled tokens stay. What it decides for a row depends on that row alone.

    Attributes:
        remembers: Whether a decision depends on earlier steps, which rules out steps ahead.
    """

    remembers: bool

    def start(self, rows: int) -> Keeper:
        """A keeper for one call with `rows` rows, whose memory is empty."""
        ...

    def keep(self, sampled: Sampled) -> Tensor:
        """The places whose tokens stay, bool [R, N]; called once per step of a row."""
        ...


@dataclass(frozen=True)
class NearSure:
    """Keeps sure tokens, and less sure ones next to them (LocalLeap, Kong et al. 2025, arXiv 2510.07081).

    Attributes:
        sure: Tokens with a larger probability are kept.
        near: So are tokens with a probability above this within `radius` of a sure one.
        radius: Places, in any direction of the grid.
    """

    sure: float = 0.9
    near: float = 0.6
    radius: int = 1
    remembers = False

    def __post_init__(self) -> None:
        check_number("sure", self.sure, 0, 1)
        check_number("near", self.near, 0, 1)
        check_integer("radius", self.radius, 0, 64)

    def start(self, rows: int) -> NearSure:
        return self

    def keep(self, sampled: Sampled) -> Tensor:
        confidence = sampled.confidence
        # Only tokens of this step are sure ones: those of earlier steps have been followed by a schedule already.
        sure = (confidence > self.sure) & sampled.missing
        grid = sure.float().unflatten(1, sampled.grid)[:, None]
        around = F.max_pool2d(grid, 2 * self.radius + 1, stride=1, padding=self.radius)[:, 0].flatten(1) > 0
        return sure | (around & (confidence > self.near) & sampled.missing)


class Credit:
    """Keeps tokens that the model has preferred for several steps (CreditDecoding, arXiv 2510.06133).

    Each step adds the probability of the likeliest token of a place to that token's credit, and multiplies the other
    credits by `decay`. The confidence of a sampled token is its probability after the logits have gained
    `weight * log(1 + credit)`; sampling itself is unchanged.

    Args:
        sure: Tokens with a larger confidence are kept.
        weight: How much credit counts; 0 is the plain threshold.
        decay: What a step leaves of credits.
    """

    remembers = True

    def __init__(self, sure: float = 0.9, weight: float = 1.0, decay: float = 0.7) -> None:
        check_number("sure", sure, 0, 1)
        check_number("weight", weight, 0, 100)
        check_number("decay", decay, 0, 1)
        self.sure, self.weight, self.decay = sure, weight, decay
        self._credits: list[Tensor | None] = []

    def start(self, rows: int) -> Credit:
        fresh = Credit(self.sure, self.weight, self.decay)
        fresh._credits = [None] * rows
        return fresh

    def keep(self, sampled: Sampled) -> Tensor:
        kept = []
        for i, row in enumerate(sampled.rows.tolist()):
            p, before = sampled.p[i], self._credits[row]
            likeliest = p.argmax(-1, keepdim=True)
            credit = torch.zeros_like(p) if before is None else before * self.decay
            credit = credit.scatter_add(-1, likeliest, p.gather(-1, likeliest))
            self._credits[row] = credit
            fused = (p.log() + self.weight * credit.log1p()).softmax(-1)  # as logarithms, which do not overflow
            confidence = fused.gather(-1, sampled.tokens[i, :, None])[:, 0]
            kept.append(sampled.missing[i] & (confidence > self.sure))
        return torch.stack(kept)
