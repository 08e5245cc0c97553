"""K-SEQ, SpecTr's test of several independent drafts: k-sequential selection.

SpecTr (Sun et al. 2023, arXiv 2310.15141, algorithms 2 and 3). At a position with target distribution p, for which n
draft tokens were sampled from q independently of each other, each in turn is accepted with probability
min(1, p(x) / (rho q(x))). With

    beta = sum of min(q, p / rho),    rho >= 1 so large that 1 - (1 - beta)^n <= rho beta,

one of them is accepted with probability 1 - (1 - beta)^n, and is x with probability

    min(q, p / rho)(x) (1 - (1 - beta)^n) / beta,

which is at most p(x); after n rejections the token is resampled from the rest of p. So the outcome follows p: the test
is exact. All drafts that begin with the accepted token stay candidates at the next position, where they
were sampled from the draft distribution after it, again independently of each other.

With n = 1 this is the exact test of a window. A relaxed rule adds to each test the difference by which it exceeds the
exact rule.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.sampling.acceptance import Accept
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rejection import ratio, sample
from mmspec.sampling.tree import TreeDraft
from mmspec.sampling.tree_rejection import TreeVerdict, at_depth

_HALVINGS = 24  # bisection steps on an interval no longer than the number of drafts
_ROUNDING = 1e-6


def verify_drafts(p: Tensor, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> TreeVerdict:
    """Follows the drafts to the first position where all remaining ones are rejected, and samples the token there.

    Args:
        p: float32 [B, 1 + m, V], the target distribution after every entry.
        draft: A draft of m nodes: a tree that branches at the root alone, `Tree.branching([k, 1, 1, ...])`.
        rule: The acceptance rule; slot i of its window is depth i.
        accept_u: float32 [B, m] in [0, 1), the uniform random numbers of the nodes.
        resample_u: float32 [B, D + 1] in [0, 1), those of the depths. All numbers are independent of each other and of
            the draft.
    """
    batch, height = len(p), draft.tree.height
    row = torch.arange(batch, device=p.device)
    tokens, u = draft.tokens.unflatten(1, (height, -1)), accept_u.unflatten(1, (height, -1))  # [B, D, k]
    drafts = tokens.shape[2]
    alive = torch.ones(batch, drafts, dtype=torch.bool, device=p.device)
    walking = torch.ones(batch, dtype=torch.bool, device=p.device)
    last = torch.zeros(batch, dtype=torch.int64, device=p.device)  # the draft whose token was accepted
    accepted, tested = torch.zeros_like(last), torch.zeros_like(last)
    excess = torch.zeros(batch, height, device=p.device)
    left = p[:, 0]
    for depth in range(height):
        entry = _entry(depth, last, drafts)
        probs, x = p[row, entry], tokens[:, depth]
        q = draft.siblings.conditional(entry, x[row, last][:, None])
        count = alive.sum(1, keepdim=True)
        rho = smallest_rho(probs, q, count)
        chance = ((probs / rho).gather(1, x) / q.gather(1, x)).clamp(max=1.0)
        if rule is not ratio:
            children = [_entry(depth + 1, torch.full_like(last, i), drafts) for i in range(drafts)]
            relaxed = [at_depth(rule, probs, q, x[:, [i]], depth, children[i]) for i in range(drafts)]
            exact = (probs.gather(1, x) / q.gather(1, x)).clamp(max=1.0)
            gap = torch.stack(relaxed, dim=1).clamp(max=1.0) - exact
            chance = (chance + gap).clamp(0.0, 1.0)
        accept = alive & walking[:, None] & (u[:, depth] < chance)
        going = accept.any(1)
        first = torch.where(going, accept.int().argmax(1), drafts)
        if rule is not ratio:
            reached = alive & walking[:, None] & (torch.arange(drafts, device=p.device) <= first[:, None])
            excess[:, depth] = torch.where(reached, gap.abs(), 0.0).sum(1)
        tested += walking
        left = torch.where((walking & ~going)[:, None], unassigned(probs, q, rho, count), left)
        last = torch.where(going, first, last)
        alive = torch.where(going[:, None], alive & (x == x[row, last][:, None]), alive)
        left = torch.where(going[:, None], p[row, _entry(depth + 1, last, drafts)], left)
        accepted += going
        walking = going
        if not bool(walking.any()):
            break
    depths = torch.arange(height + 1, device=p.device)
    entries = _entry(depths.minimum(accepted[:, None]), last[:, None], drafts)
    resampled = sample(left, resample_u[row, accepted], fallback=p[row, entries[:, -1]])
    path = torch.cat([tokens[row, :, last], resampled[:, None]], dim=1).scatter_(
        1, accepted[:, None], resampled[:, None]
    )
    steps, lengths = np.arange(height), accepted.cpu().numpy()
    return TreeVerdict(
        path,
        lengths,
        tested.cpu().numpy(),
        Numbers(np.where(steps < lengths[:, None], entries[:, 1:].cpu().numpy(), steps + 1)),
        p[row[:, None], entries],
        None if rule is ratio else excess,
    )


def smallest_rho(p: Tensor, q: Tensor, count: Tensor) -> Tensor:
    """The smallest rho in 1..n for which `unassigned` is nowhere negative, [B, 1].

    Args:
        p: float32 [B, V].
        q: float32 [B, V].
        count: int64 [B, 1], the number n of drafts.
    """

    def enough(rho: Tensor) -> Tensor:
        beta = torch.minimum(q, p / rho).sum(-1, keepdim=True).clamp(max=1.0)
        return 1 - (1 - beta) ** count <= rho * beta + _ROUNDING

    high = count.to(p.dtype)
    low = torch.ones_like(high)
    done = enough(low)
    for _ in range(0 if bool(done.all()) else _HALVINGS):
        middle = (low + high) / 2
        fits = enough(middle)
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return torch.where(done, 1.0, high)


def unassigned(p: Tensor, q: Tensor, rho: Tensor, count: Tensor) -> Tensor:
    """The part of p that is resampled after n rejected drafts, unnormalized [B, V]."""
    least = torch.minimum(q, p / rho)
    beta = least.sum(-1, keepdim=True).clamp(max=1.0)
    tiny = torch.finfo(p.dtype).tiny
    return (p - least * (1 - (1 - beta) ** count) / beta.clamp(min=tiny)).clamp_(min=0)


def _entry(depth: Tensor | int, draft: Tensor, drafts: int) -> Tensor:
    """The entry of a draft at a depth; the root for depth 0."""
    depth = torch.as_tensor(depth, device=draft.device)
    return torch.where(depth > 0, 1 + (depth - 1) * drafts + draft, 0)
