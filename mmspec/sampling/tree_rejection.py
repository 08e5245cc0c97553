"""Rejection sampling on a draft tree: siblings are tested in turn, each against the residual of the ones before it.

Recursive rejection sampling (SpecInfer, Miao et al. 2023, arXiv 2305.09781; without replacement: Jeon et al. 2024,
arXiv 2402.14160, and Yang et al. 2024, arXiv 2402.02057). At an entry with target distribution p_1 = p, sibling i with
token x_i ~ q_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)); if it is rejected, the remaining siblings must
produce p_{i+1} = norm((p_i - q_i)+). Whatever q_{i+1} is, given the earlier siblings, the next one is tested against
p_{i+1}, so by induction the outcome follows p. If all siblings are rejected, the token is resampled from the last
residual.

The induction has one condition: given everything that decided whether x_i is in the tree at all, x_i follows q_i. A
tree that is sampled at random and then pruned by the probabilities of the sampled tokens violates it. Siblings that
were chosen instead of sampled have one-hot q_i: x_i is accepted with probability p_i(x_i), and otherwise only removed
from p_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.acceptance import Accept, FeatureRule
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Verdict, ratio, residual, sample
from mmspec.sampling.tree import TreeDraft


@dataclass
class TreeVerdict:
    """The result of verifying one tree; D is the height of the tree.

    Attributes:
        tokens: int64 [B, D + 1]: the accepted path, then the resampled or bonus token, then unverified tokens.
        accepted: Host int64 [B], the length of the path; `tokens[b, accepted[b]]` is the resampled or bonus token.
        tested: Host int64 [B], the number of depths at which a sibling was tested.
        path: [B, D], the entries of the path; after its end i + 1 at i, which moves nothing.
        p: float32 [B, D + 1, V], the target distribution at each entry of the path, the root's first.
        excess: float32 [B, D], the distances of the acceptance probabilities of the tested siblings from the exact
            ones, summed for each depth; None if the rule is exact. On the device of `tokens` or on the host.
        on_host: Host int64 [B, D + 1], `tokens`, where they have come with `accepted`.
        last: [B], the last entry of the path, 0 if that is the root.
    """

    tokens: Tensor
    accepted: NDArray[np.int64]
    tested: NDArray[np.int64]
    path: Numbers
    p: Probs
    excess: Tensor | None = None
    on_host: NDArray[np.int64] | None = None
    last_on_device: Tensor | None = None

    @property
    def last(self) -> Numbers:
        path = np.pad(self.path.host, ((0, 0), (1, 0)))
        return Numbers(path[np.arange(len(path)), self.accepted], self.last_on_device)


Outcome = Verdict | TreeVerdict


def along_path(features: Tensor, verdict: Outcome, guided: bool) -> Tensor:
    """What a call computed for the entries of the path, the root's first, [R, D + 1, F].

    The entries of a window follow one another.

    Args:
        features: Of all entries of the call, [R, W, F], of the unconditional rows too if there are any.
        verdict: The result of verifying the window or the tree.
        guided: Whether there are unconditional rows.
    """
    if not isinstance(verdict, TreeVerdict):
        return features[:, : verdict.p.shape[1]]
    path = verdict.path.on(features.device).repeat(1 + guided, 1)
    rows = torch.arange(len(features), device=features.device)[:, None]
    return features[rows, F.pad(path, (1, 0))]


def verify_tree(p: Tensor, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> TreeVerdict:
    """Walks down from the root to the first entry whose children are all rejected, and samples the token after it.

    Args:
        p: float32 [B, 1 + m, V], the target distribution after every entry.
        draft: A draft of m nodes.
        rule: The acceptance rule; slot i of its window is depth i.
        accept_u: float32 [B, m] in [0, 1), the uniform random numbers of the nodes.
        resample_u: float32 [B, D + 1] in [0, 1), those of the depths. All numbers are independent of each other and of
            the draft.
    """
    tree, batch = draft.tree, len(p)
    row = torch.arange(batch, device=p.device)
    children = tree.children.expand(batch, -1, -1)
    entry = torch.zeros(batch, dtype=torch.int64, device=p.device)
    walking = torch.ones(batch, dtype=torch.bool, device=p.device)
    left = probs = p[:, 0]  # the residual that the next token is sampled from, unnormalized and normalized
    path, tested, excess = [entry], [], torch.zeros(batch, tree.height, device=p.device)
    for depth, widest in enumerate(tree.widest):
        parent, waiting, siblings = entry, walking, []
        any_tested = torch.zeros_like(walking)
        for rank in range(widest):
            child = children[row, parent, rank]
            if not bool((waiting & (child > 0)).any()):
                break
            siblings.append(draft.tokens[row, child - 1])
            x, q = siblings[-1][:, None], draft.siblings.conditional(parent, torch.stack(siblings, dim=1))
            valid = waiting & (child > 0) & (q.gather(1, x)[:, 0] > 0)
            chance = at_depth(rule, probs, q, x, depth, child)
            accept = valid & (accept_u[row, child - 1] < chance)
            reject = valid & ~accept
            if rule is not ratio:
                gap = (chance.clamp(max=1.0) - at_depth(ratio, probs, q, x, 0, child).clamp(max=1.0)).abs()
                excess[:, depth] += torch.where(valid, gap, 0.0)
            left = torch.where(reject[:, None], residual(probs, q), left)
            # A residual vanishes only by rounding; the distribution then stays as it was.
            mass = left.sum(-1, keepdim=True)
            probs = torch.where(reject[:, None] & (mass > 0), left / mass, probs)
            entry = torch.where(accept, child, entry)
            waiting = waiting & ~accept
            any_tested |= valid
        walking = entry != parent
        left = torch.where(walking[:, None], p[row, entry], left)
        probs = torch.where(walking[:, None], left, probs)
        path.append(entry)
        tested.append(any_tested)
        if not bool(walking.any()):
            break
    path += [entry] * (tree.height + 1 - len(path))
    entries = torch.stack(path, dim=1)
    accepted = (entries[:, 1:] != entries[:, :-1]).sum(-1)
    resampled = sample(left, resample_u[row, accepted], fallback=probs)
    tokens = torch.cat([draft.tokens.gather(1, (entries[:, 1:] - 1).clamp(min=0)), resampled[:, None]], dim=1)
    tokens.scatter_(1, accepted[:, None], resampled[:, None])
    lengths = accepted.cpu().numpy()
    steps = np.arange(tree.height)
    return TreeVerdict(
        tokens,
        lengths,
        torch.stack(tested).sum(0).cpu().numpy(),
        Numbers(np.where(steps < lengths[:, None], entries[:, 1:].cpu().numpy(), steps + 1)),
        p[row[:, None], entries],
        None if rule is ratio else excess,
    )


def at_depth(rule: Accept, p: Tensor, q: Tensor, x: Tensor, depth: int, entry: Tensor) -> Tensor:
    """The acceptance probability float32 [B] of tokens int64 [B, 1], entries int64 [B], in slot `depth` of a window."""
    slots = depth + 1
    if isinstance(rule, FeatureRule):
        rule = rule.entry(entry)
    chance = rule(p[:, None].expand(-1, slots, -1), q[:, None].expand(-1, slots, -1), x.expand(-1, slots))
    return chance[:, -1]
