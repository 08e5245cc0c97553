"""Logits processors of language models, as functions of the prefix and the logits.

Each maps prefixes int64 [n, L] (the latest token at the right end, -1 where there is none) and logits float32 [n, V] to
logits; see `mmspec.decoding.processed_target.LogitsProcessor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.sampling.probs import widest
from mmspec.sampling.truncation import keep_top_p

FORBIDDEN = 1e4  # a logit reduced by this has probability 0 as long as another token is allowed
NEVER = 1e-30


def counts(tokens: Tensor, vocab_size: int) -> Tensor:
    """The number of occurrences of each token, int64 [n, V], in `tokens` int64 [n, L]; other ids are ignored."""
    known = torch.where((tokens >= 0) & (tokens < vocab_size), tokens, vocab_size)
    zeros = tokens.new_zeros(len(tokens), vocab_size + 1)
    return zeros.scatter_add_(1, known, torch.ones_like(known))[:, :vocab_size]


@dataclass(frozen=True)
class RepetitionPenalty:
    """Divides the positive logits of tokens in the prefix by `penalty` and multiplies the negative ones by it.

    From Keskar et al. 2019, arXiv 1909.05858.

    Args:
        penalty: Above 0; 1 is off.
        skip: The number of tokens at the beginning that do not count.
        last: The number of latest tokens that count; 0 is all.

    Raises:
        ArgumentError: If the penalty is not above 0.
    """

    penalty: float
    skip: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ArgumentError(f"repetition_penalty={self.penalty!r} is not allowed; it must be above 0 (1 is off)")

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        penalized = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
        if self.skip:
            index = (prefix != -1).long().cumsum(-1)
            prefix = prefix.masked_fill(index <= self.skip, -1)
        prefix = prefix[:, -self.last :]
        return torch.where(counts(prefix, logits.shape[-1]) > 0, penalized, logits)


@dataclass(frozen=True)
class MinP:
    """Forbids tokens less likely than `least` times the most likely one, measured at a temperature (min-p).

    If a constraint forbids all remaining tokens, the others become possible again.

    Args:
        least: Above 0.
        temperature: The temperature at which probabilities are compared.
    """

    least: float
    temperature: float = 1.0

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        floor = logits.max(dim=-1, keepdim=True).values + self.temperature * math.log(self.least)
        return torch.where(logits < floor, logits - FORBIDDEN, logits)


@dataclass(frozen=True)
class RepetitionAware:
    """Repetition-aware sampling (RAS; VALL-E 2, arXiv 2406.05370).

    A token sampled from the nucleus that occurs often among the latest tokens is replaced, once, by a sample from the
    whole distribution without that token. The two samples together follow the distribution
    p'(x) = p(x) [x is not repetitive] + sum over repetitive r other than x of p(r) p_raw(x) / (1 - p_raw(r)), or
    p'(x) = p(x) [x is not repetitive] + P(repetitive) p_raw(x) if the second sample may repeat the first, as in the
    paper and in CosyVoice before February 2026. This processor returns its logarithm: the `SamplingParams` of its rows
    have temperature 1, no top-k and no top-p. It does not apply to greedy decoding, which samples nothing. If a
    constraint forbids all tokens that p' allows, the whole distribution is used.

    Args:
        top_p: The nucleus is the most likely tokens up to `top_p` of the mass, at most `top_k` tokens.
        top_k: Largest number of tokens in the nucleus.
        window: The number of latest tokens that count.
        limit: The number of occurrences among them from which on a token is repetitive.
        temperature: The temperature of both distributions.
        exclude: Whether the second sample excludes the repetitive token.
    """

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    limit: float = 1
    temperature: float = 1.0
    exclude: bool = True

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        raw = (logits / self.temperature).softmax(-1)
        nucleus = keep_top_p(raw, torch.full_like(raw[:, :1], self.top_p))
        if self.top_k < logits.shape[-1]:
            # Sorted by the nucleus itself, so that ties are broken in the same way.
            order = nucleus.sort(dim=-1, descending=True, stable=True).indices
            nucleus = nucleus.scatter(1, order[:, self.top_k :], 0.0)
            nucleus = nucleus / nucleus.sum(-1, keepdim=True)
        latest = prefix[:, -self.window :]
        # Beside a token that is almost certain, the others are too small for float32.
        exact = (logits.to(widest(logits.device)) / self.temperature).softmax(-1) if self.exclude else raw
        chosen = repetition_aware(nucleus, exact, latest, self.limit, self.exclude).log()
        return torch.logaddexp(chosen, (logits / self.temperature).log_softmax(-1) + math.log(NEVER))


def repetition_aware(p: Tensor, raw: Tensor, latest: Tensor, limit: float, exclude: bool) -> Tensor:
    """The distribution of a token sampled from `p` and, if it is repetitive, sampled again from `raw`.

    Args:
        p: float32 [n, V].
        raw: float [n, V].
        latest: int64 [n, L], the latest tokens.
        limit: A token that occurs at least `limit` times among them is repetitive.
        exclude: Whether the second sample excludes the first.

    Returns:
        float32 [n, V].
    """
    repetitive = counts(latest, p.shape[-1]) >= limit
    kept = p.masked_fill(repetitive, 0.0)
    again = p * repetitive
    if exclude:
        # The probability of all others; for the most likely token, 1 - raw would lose all digits.
        best = raw.argmax(-1, keepdim=True)
        others = (1 - raw).scatter(-1, best, raw.scatter(-1, best, 0.0).sum(-1, keepdim=True))
        again = torch.where(repetitive, p / others.clamp(min=1e-300), 0.0)
        return (kept + (again.sum(-1, keepdim=True) - again) * raw).to(p.dtype)
    return kept + again.sum(-1, keepdim=True) * raw


def one_by_one(processor: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Adapts a stateless logits processor of transformers, which is called for each slot separately.

    The prefixes and logits must be those of all ids of the model.
    """

    def process(prefix: Tensor, logits: Tensor) -> Tensor:
        out = []
        for tokens, z in zip(prefix, logits, strict=True):
            # Prefixes are padded at the left end only.
            padding = int((tokens == -1).long().cumprod(0).sum())
            ids = torch.where(tokens < -1, -2 - tokens, tokens)[None, padding:]
            out.append(processor(ids, z[None].clone()))
        return torch.cat(out)

    return process
