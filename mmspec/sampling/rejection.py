"""Rejection sampling of draft tokens, which keeps the target distribution.

A draft token x, sampled from q, is *accepted* with probability min(1, p(x) / q(x)); p is the target distribution at its
position. Tests run from left to right. The first rejected draft token is *resampled* from the residual norm((p - q)+);
vLLM calls the token that replaces it the recovered token. If all drafts are accepted, a *bonus token* is sampled from p
at the free slot after them. Every token up to and including the resampled or bonus token follows p (Leviathan et al.
2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.numbers import Numbers, copied
from mmspec.sampling.probs import Probs, dense, widest

INVALID = "the model gave logits that are not numbers (NaN), or forbade every token of a position"
_GROUP, _SMALL = 128, 4096  # tokens


@dataclass
class Draft:
    """Draft tokens and the distributions they were sampled from.

    Attributes:
        tokens: int64 [B, m], the draft tokens of the next m positions of each row.
        q: float32 [B, m, V], the distribution that each token was really sampled from; one-hot if it was not sampled.
        window: int64 [B, 1 + m], the last token and the drafts, where a kernel has written them next to each other.
    """

    tokens: Tensor
    q: Probs
    window: Tensor | None = None


@dataclass
class Verdict:
    """The result of verifying one window.

    Attributes:
        tokens: int64 [B, m + 1]: accepted tokens, then the resampled or bonus token, then unverified tokens.
        counts: [B], `accepted`, perhaps with its copy on a device.
        p: float32 [B, m + 1, V], the target distribution at each slot.
        draft: The draft that was tested.
        excess: float32 [B, m], the distance of each slot's acceptance probability from the exact one; None if the rule
            is exact. On the device of `tokens` or on the host.
        on_host: Host int64 [B, m + 1], `tokens`, where they have come with the counts.
        coupled: int64 [B, m + 1], the tokens of all slots after a coupling (`mmspec.drafters.coupling`), where the next
            window was drafted before the counts were known.
        coupled_p: float32 [B, m + 1, V], the distributions that these follow; None if they are `p`.
    """

    tokens: Tensor
    counts: Numbers
    p: Probs
    draft: Draft
    excess: Tensor | None = None
    on_host: NDArray[np.int64] | None = None
    coupled: Tensor | None = None
    coupled_p: Probs | None = None

    @property
    def accepted(self) -> NDArray[np.int64]:
        """The number of accepted tokens, host int64 [B]; `tokens[b, accepted[b]]` is the resampled or bonus token."""
        return self.counts.host

    @property
    def tested(self) -> NDArray[np.int64]:
        """The number of tested drafts, host int64 [B]: all up to and including the first rejected one."""
        return np.minimum(self.accepted + 1, self.tokens.shape[1] - 1)

    @property
    def first_reused(self) -> int:
        """The first slot that some row reuses, the one after its resampled token; at most the last slot."""
        return min(int(self.accepted.min()) + 1, self.p.shape[1] - 1)

    @property
    def last(self) -> Numbers:
        """The last accepted entry, [B], as for a tree; 0 if that is the root."""
        return self.counts

    @property
    def path(self) -> Numbers:
        """The entries of the accepted path, [B, m], as for a tree: those of a window follow one another."""
        return Numbers(np.broadcast_to(np.arange(1, self.p.shape[1]), (len(self.p), self.p.shape[1] - 1)))


def log_probs(p: Tensor, more: int = 0) -> Tensor:
    """The logarithms of probabilities [B, W, V], float32 [B, W, V + more]: -inf for `more` tokens after the others."""
    return F.pad(p.log(), (0, more), value=-torch.inf)


def sampled(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens on the host that kernels have sampled.

    Raises:
        ModelError: If one is -1: it has no distribution.
    """
    if (tokens < 0).any():
        raise ModelError(INVALID)
    return tokens


def ratio(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """p(x) / q(x) for x int64 [..., m]: the acceptance probability of exact speculative sampling."""
    index = x[..., None]
    return (p.gather(-1, index) / q.gather(-1, index))[..., 0]


def exact() -> Accept:
    """The exact rule, min(1, p / q), as an acceptance function."""
    return ratio


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The unnormalized residual (p - q)+, of the shape of `p`."""
    return (p - q).clamp_(min=0)


def point_mass(q: Tensor, tokens: Tensor, first: int, new: NDArray[np.bool_] | Tensor, inplace: bool = False) -> Tensor:
    """Distributions `q` with one-hot distributions in the slots whose tokens were not sampled from them.

    With columns all arguments have one more axis: `q` [B, m, K, V], `tokens` and `new` [B, m, K].

    Args:
        q: float32 [B, m, V].
        tokens: int64 [B, m].
        first: The slot of the first entry of `new`; earlier slots stay as they are.
        new: Bool [B, m - first], whether the token of a slot was not sampled from its distribution: an array on the
            host, or a tensor on the device.
        inplace: Whether the result may overwrite `q`.
    """
    if inplace and q.device.type == "cpu" and isinstance(new, np.ndarray):
        slots = tuple(torch.from_numpy(index) for index in np.nonzero(new))
        slots = (slots[0], slots[1] + first, *slots[2:])
        q[slots] = 0.0
        q[(*slots, tokens[slots])] = 1.0
        return q
    one_hot = torch.zeros_like(q[:, first:]).scatter_(-1, tokens[:, first:, ..., None], 1.0)
    if isinstance(new, Tensor) or not new.all():
        new = new if isinstance(new, Tensor) else copied(torch.from_numpy(new), q.device)
        one_hot = torch.where(new[..., None], one_hot, q[:, first:])
    return torch.cat([q[:, :first], one_hot], dim=1) if first else one_hot


def one_hot(like: Tensor, tokens: Tensor) -> Tensor:
    """Distributions float32 [B, m, V] with all mass on tokens int64 [B, m] that were not sampled.

    Args:
        like: Distributions [..., V], of the same kind and device.
    """
    return like.new_zeros(*tokens.shape, like.shape[-1]).scatter_(-1, tokens[..., None], 1.0)


def sample(weights: Tensor, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """Samples from unnormalized `weights` by inverting their CDF at uniform random numbers.

    Args:
        weights: float32 [..., V].
        u: float32 [...] in [0, 1).
        fallback: float32 [..., V], the weights of rows without mass: a residual vanishes only by rounding, if p = q.

    Returns:
        int64 [...].

    Raises:
        ModelError: If a row has no mass or contains NaN.
    """
    return sample_many(weights, u[..., None], fallback)[..., 0]


def sample_many(weights: Tensor, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """n samples, int64 [..., n], from each of the `weights` [..., V] at `u` [..., n]; see `sample`."""
    cdf = _by_groups(weights)
    total = cdf[..., -1:]
    if fallback is not None:
        empty = total <= 0
        if bool(empty.any()):
            weights = torch.where(empty, fallback, weights)
            cdf = _by_groups(weights)
            total = cdf[..., -1:]
    if not bool((total > 0).all()):
        raise ModelError(INVALID)
    # Strictly below the total, so that the sampled token always has mass.
    goal = torch.minimum(u * total, total.nextafter(torch.zeros_like(total)))
    group = torch.searchsorted(cdf, goal, right=True)
    if cdf.shape == weights.shape:
        return group
    below = F.pad(cdf, (1, 0)).gather(-1, group)
    lanes = torch.arange(_GROUP, device=weights.device)
    index = group[..., None] * _GROUP + lanes
    inside = weights.gather(-1, index.clamp(max=weights.shape[-1] - 1).flatten(-2)).view(index.shape)
    inside = inside.masked_fill_(index >= weights.shape[-1], 0.0)
    lane = (below[..., None] + inside.cumsum(-1, dtype=below.dtype) <= goal[..., None]).sum(-1)
    # Rounding may leave the running sum within a group slightly below the group's sum.
    lane = torch.minimum(lane, ((inside > 0) * lanes).amax(-1))
    return group * _GROUP + lane


def _by_groups(weights: Tensor) -> Tensor:
    """The running sum of `weights` [..., V] at the end of every group of adjacent tokens, `widest` [..., groups]."""
    # In a small vocabulary each token is a group. In a large one a running sum over all tokens would dominate the cost
    # of a sample.
    if weights.shape[-1] <= _SMALL:
        return weights.cumsum(-1, dtype=widest(weights.device))
    whole = weights.shape[-1] // _GROUP * _GROUP
    sums = weights[..., :whole].unflatten(-1, (-1, _GROUP)).sum(-1)
    if whole < weights.shape[-1]:
        sums = torch.cat([sums, weights[..., whole:].sum(-1, keepdim=True)], dim=-1)
    return sums.cumsum(-1, dtype=widest(weights.device))


def verify(p: Tensor, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> Verdict:
    """Tests the drafts from left to right; resamples the first rejected one, or samples the bonus token.

    Args:
        p: float32 [B, m + 1, V], the target distribution at every slot.
        draft: m draft tokens (m may be 0).
        accept_u: float32 [B, m + 1] in [0, 1), the uniform random numbers of the tests.
        resample_u: float32 [B, m + 1] in [0, 1), those of the resampled tokens. All numbers are independent of each
            other and of the draft.
    """
    batch, width, _ = p.shape
    if width == 1:
        return Verdict(sample(p, resample_u), Numbers(np.zeros(batch, dtype=np.int64)), p, draft)
    rows = torch.arange(batch, device=p.device)
    m, drafted = width - 1, dense(draft.q)
    chance = rule(p[:, :m], drafted, draft.tokens)
    accept = accept_u[:, :m] < chance
    first = accept.long().cumprod(-1).sum(-1)
    tested = first.clamp(max=m - 1)
    # Where all drafts were accepted nothing is subtracted: the bonus token is sampled from p itself.
    q = drafted[rows, tested].masked_fill_((first == m)[:, None], 0.0)
    p_first = p[rows, first]
    resampled = sample(residual(p_first, q), resample_u[rows, first], fallback=p_first)
    tokens = torch.cat([draft.tokens, resampled[:, None]], dim=1).scatter_(1, first[:, None], resampled[:, None])
    excess = None
    if rule is not ratio:
        excess = (chance.clamp(max=1.0) - ratio(p[:, :m], drafted, draft.tokens).clamp(max=1.0)).abs()
    return Verdict(tokens, Numbers(first.cpu().numpy()), p, draft, excess)
