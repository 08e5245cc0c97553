"""Draft and verify: the acceptance test, and the resample that keeps the target distribution.

Speculative sampling (Leviathan et al. 2023, Chen et al. 2023): a draft x ~ q is kept with probability
min(1, p(x) / q(x)), otherwise replaced by a draw from the residual norm((p - q)+); the outcome follows p.

The functions here are those that `mmspec.sampling.lazy_probs` has kernels for: torch's override protocol hands its distributions over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from mmspec.errors import ModelError
from mmspec.sampling.acceptance import Accept

_GROUP, _SMALL = 128, 4096  # tokens


@dataclass
class Draft:
    """Proposed tokens and where they came from.

    Attributes:
        tokens: int64 [B, m], the draft of the next m positions of each row.
        q: float32 [B, m, V], the distribution each token was really drawn from; one-hot when it was not drawn at all.
    """

    tokens: Tensor
    q: Tensor


@dataclass
class Verdict:
    """What one target call decided.

    Attributes:
        tokens: int64 [B, m + 1]: accepted drafts, then the resampled token, then leftovers nobody vouches for.
        accepted: Host int64 [B], how many drafts were accepted; `tokens[b, accepted[b]]` is the resampled one.
        p: float32 [B, m + 1, V], the target distribution at each slot.
        draft: What was tested.
        excess: float32 [B, m], how far each slot's acceptance probability lies from the exact one; None where the rule
            is exact.
    """

    tokens: Tensor
    accepted: NDArray[np.int64]
    p: Tensor
    draft: Draft
    excess: Tensor | None = None

    @property
    def tested(self) -> NDArray[np.int64]:
        """How many drafts were tested, host int64 [B]: up to the first that failed."""
        return np.minimum(self.accepted + 1, self.p.shape[1] - 1)

    @property
    def path(self) -> NDArray[np.int64]:
        """The accepted path as of a tree, host int64 [B, m]: the entries of a window follow one another."""
        return np.broadcast_to(np.arange(1, self.p.shape[1]), (len(self.p), self.p.shape[1] - 1))


def ratio(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """p(x) / q(x) for x int64 [..., m]: the acceptance probability of exact speculative sampling."""
    if has_torch_function((p, q)):
        return handle_torch_function(ratio, (p, q), p, q, x)
    index = x[..., None]
    return (p.gather(-1, index) / q.gather(-1, index))[..., 0]


def exact() -> Accept:
    """The exact rule: speculative sampling's own test."""
    return ratio


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The unnormalised residual (p - q)+, of the shape of `p`."""
    if has_torch_function((p, q)):
        return handle_torch_function(residual, (p, q), p, q)
    return (p - q).clamp_(min=0)


def point_mass(q: Tensor, tokens: Tensor, first: int, new: NDArray[np.bool_]) -> Tensor:
    """Distributions `q` [B, m, V] with all mass on the tokens that were not drawn from them.

    Where a token has several cells, all have one more axis: q [B, m, K, V], tokens and `new` [B, m, K].

    Args:
        tokens: int64 [B, m].
        first: The first slot that `new` tells of.
        new: Which those are, host bool [B, m - first] of the slots from `first` on.
    """
    if has_torch_function((q,)):
        return handle_torch_function(point_mass, (q,), q, tokens, first, new)
    guessed = torch.zeros_like(q[:, first:]).scatter_(-1, tokens[:, first:, ..., None], 1.0)
    if not new.all():
        guessed = torch.where(torch.from_numpy(new).to(q.device)[..., None], guessed, q[:, first:])
    return torch.cat([q[:, :first], guessed], dim=1)


def sample(weights: Tensor, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """Draws from unnormalised `weights` [..., V] by inverting their CDF at `u` [...] in [0, 1).

    A row without any mass is drawn from `fallback` instead: a residual can only vanish by rounding, when p = q.

    Raises:
        ModelError: When a row has no mass or is not a number.
    """
    if has_torch_function((weights,)):
        return handle_torch_function(sample, (weights,), weights, u, fallback)
    return sample_many(weights, u[..., None], fallback)[..., 0]


def sample_many(weights: Tensor, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """n draws from each of the `weights` [..., V], at `u` [..., n]; see `sample`."""
    cdf = _by_groups(weights)
    total = cdf[..., -1:]
    if fallback is not None:
        empty = total <= 0
        if bool(empty.any()):
            weights = torch.where(empty, fallback, weights)
            cdf = _by_groups(weights)
            total = cdf[..., -1:]
    if not bool((total > 0).all()):
        raise ModelError("the model gave logits that are not numbers (NaN), or forbade every token of a position")
    # Strictly below the total, so that the token found always has mass.
    goal = torch.minimum(u * total, total.nextafter(torch.zeros_like(total)))
    group = torch.searchsorted(cdf, goal, right=True)
    if cdf.shape == weights.shape:
        return group
    below = F.pad(cdf, (1, 0)).gather(-1, group)
    lanes = torch.arange(_GROUP, device=weights.device)
    index = group[..., None] * _GROUP + lanes
    inside = weights.gather(-1, index.clamp(max=weights.shape[-1] - 1).flatten(-2)).view(index.shape)
    inside = inside.masked_fill_(index >= weights.shape[-1], 0.0)
    lane = (below[..., None] + inside.cumsum(-1, dtype=torch.float64) <= goal[..., None]).sum(-1)
    # Rounding may leave a group's running sum a little short of its sum.
    lane = torch.minimum(lane, ((inside > 0) * lanes).amax(-1))
    return group * _GROUP + lane


def _by_groups(weights: Tensor) -> Tensor:
    """The running sum of `weights` [..., V] at the end of every group of neighbours, float64 [..., groups].

    In a small vocabulary each token is a group. In a large one a running sum over all tokens is what a draw costs.
    """
    if weights.shape[-1] <= _SMALL:
        return weights.cumsum(-1, dtype=torch.float64)
    whole = weights.shape[-1] // _GROUP * _GROUP
    sums = weights[..., :whole].unflatten(-1, (-1, _GROUP)).sum(-1)
    if whole < weights.shape[-1]:
        sums = torch.cat([sums, weights[..., whole:].sum(-1, keepdim=True)], dim=-1)
    return sums.cumsum(-1, dtype=torch.float64)


def verify(p: Tensor, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> Verdict:
    """Tests the drafts from left to right and resamples the first one that fails, or the free slot after the last.

    Args:
        p: float32 [B, m + 1, V], the target distribution at every slot.
        draft: Of m tokens (m may be 0).
        rule: The acceptance rule.
        accept_u: float32 [B, m + 1] in [0, 1), independent of each other and of the draft.
        resample_u: float32 [B, m + 1] in [0, 1), independent of each other and of the draft.
    """
    if has_torch_function((p,)):
        return handle_torch_function(verify, (p,), p, draft, rule, accept_u, resample_u)
    batch, width, _ = p.shape
    rows = torch.arange(batch, device=p.device)
    if width == 1:
        tokens = sample(p, resample_u)
        return Verdict(tokens, np.zeros(batch, dtype=np.int64), p, draft)
    m = width - 1
    chance = rule(p[:, :m], draft.q, draft.tokens)
    accept = accept_u[:, :m] < chance
    first = accept.long().cumprod(-1).sum(-1)
    tested = first.clamp(max=m - 1)
    # Where everything was accepted there is no draft to take away: the free slot is drawn from p itself.
    q = draft.q[rows, tested].masked_fill_((first == m)[:, None], 0.0)
    p_first = p[rows, first]
    resampled = sample(residual(p_first, q), resample_u[rows, first], fallback=p_first)
    tokens = torch.cat([draft.tokens, resampled[:, None]], dim=1).scatter_(1, first[:, None], resampled[:, None])
    excess = None
    if rule is not ratio:
        excess = (chance.clamp(max=1.0) - ratio(p[:, :m], draft.q, draft.tokens).clamp(max=1.0)).abs()
    return Verdict(tokens, first.cpu().numpy(), p, draft, excess)
