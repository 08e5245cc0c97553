"""Prefix rules: what decoding habits of language models are as functions of the prefix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.sampling.sampler import keep_top_p

FORBIDDEN = 1e4  # less by this, a logit has probability 0 as long as any other token is allowed
NEVER = 1e-30


def counts(tokens: Tensor, vocab_size: int) -> Tensor:
    """How often each token occurs, int64 [n, V], in `tokens` int64 [n, L]; what is no token counts for none."""
    known = torch.where((tokens >= 0) & (tokens < vocab_size), tokens, vocab_size)
    zeros = tokens.new_zeros(len(tokens), vocab_size + 1)
    return zeros.scatter_add_(1, known, torch.ones_like(known))[:, :vocab_size]


@dataclass(frozen=True)
class RepetitionPenalty:
    """Tokens of the prefix get less likely: positive logits are divided by `penalty`, others multiplied (Keskar et al.
    2019, arXiv 1909.05858).

    Args:
        penalty: Above 0; 1 is off.
        skip: How many tokens at the beginning do not count.

    Raises:
        ArgumentError: For a penalty that is not above 0.
    """

    penalty: float
    skip: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ArgumentError(f"repetition_penalty={self.penalty!r} is not allowed; it must be above 0 (1 is off)")

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        penalised = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
        if self.skip:
            place = (prefix != -1).long().cumsum(-1)
            prefix = prefix.masked_fill(place <= self.skip, -1)
        return torch.where(counts(prefix, logits.shape[-1]) > 0, penalised, logits)


@dataclass(frozen=True)
class MinP:
    """Forbids tokens less likely than `least` times the likeliest one, measured at a temperature.

    Where a constraint forbids all that are left, the others may come up again.
    """

    least: float
    temperature: float = 1.0

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        floor = logits.max(dim=-1, keepdim=True).values + self.temperature * math.log(self.least)
        return torch.where(logits < floor, logits - FORBIDDEN, logits)


@dataclass(frozen=True)
class EndFirst:
    """Once the token `end` is likelier than `least`, nothing else may come (Bark's early stop)."""

    end: int
    least: float

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        stops = logits.softmax(-1)[:, self.end] > self.least
        only = torch.arange(logits.shape[-1], device=logits.device) != self.end
        return logits.masked_fill(stops[:, None] & only, -torch.inf)


@dataclass(frozen=True)
class RepetitionAware:
    """Repetition-aware sampling (VALL-E 2, arXiv 2406.05370): a token drawn from the nucleus that has come up often of
    late is drawn again, once, from the whole distribution.

    Drawing twice is a distribution like any other, p'(x) = p(x) [x is not repetitive] + P(repetitive) p_raw(x), and this gives
    its logarithm: rows that use it have temperature 1, no top-k and no top-p of their own. Of a sequence that is
    decoded greedily nothing is drawn, and the rule has no place there. Where a constraint forbids all it leaves, the
    whole distribution decides.

    Args:
        top_p: Of the nucleus: likeliest tokens until `top_p` of the mass or `top_k` tokens are together.
        top_k: As for `top_p`.
        window: How many of the latest tokens count.
        limit: How often a token must be among them.
        temperature: Of both distributions.
    """

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    limit: float = 1
    temperature: float = 1.0

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        raw = (logits / self.temperature).softmax(-1)
        nucleus = keep_top_p(raw, torch.full_like(raw[:, :1], self.top_p))
        if self.top_k < logits.shape[-1]:
            # In order of the nucleus itself, so that of equals the same ones stay.
            order = nucleus.sort(dim=-1, descending=True, stable=True).indices
            nucleus = nucleus.scatter(1, order[:, self.top_k :], 0.0)
            nucleus = nucleus / nucleus.sum(-1, keepdim=True)
        return (resampled(nucleus, raw, prefix[:, -self.window :], self.limit) + NEVER * raw).log()


def resampled(p: Tensor, raw: Tensor, latest: Tensor, limit: float) -> Tensor:
    """The distribution [n, V] of a token drawn from `p` and, if it is `limit` times or more among `latest` (int64 [n, L]), drawn
    again from `raw`.
    """
    repetitive = counts(latest, p.shape[-1]) >= limit
    again = (p * repetitive).sum(-1, keepdim=True)
    return p.masked_fill(repetitive, 0.0) + again * raw


def one_by_one(processor: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A processor of transformers without a state as a prefix rule: it is asked about each slot alone.

    It must be called with all ids of the model.
    """

    def rule(prefix: Tensor, logits: Tensor) -> Tensor:
        out = []
        for tokens, z in zip(prefix, logits, strict=True):
            # Prefixes are shorter at the left end only.
            missing = int((tokens == -1).long().cumprod(0).sum())
            ids = torch.where(tokens < -1, -2 - tokens, tokens)[None, missing:]
            out.append(processor(ids, z[None].clone()))
        return torch.cat(out)

    return rule
