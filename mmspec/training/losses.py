"""Losses by name: how far what a drafter says lies from what the target says.

Each takes distributions `p` (the target's) and `q` (the drafter's), float32 [..., V], and features `f` and `g` [..., D] in the
same order, None where the drafter has none. What comes back is one number per place, [...].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]

_TINY = 1e-30


def kl(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """KL(p || q) in nats: distillation as the target sees it."""
    return (p * (p.clamp(min=_TINY).log() - q.clamp(min=_TINY).log())).sum(-1)


def tvd(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """Total variation, in 0..1: exactly how often the test turns a draft down (DistillSpec, arXiv 2310.08461)."""
    return 1 - torch.minimum(p, q).sum(-1)


def smooth_l1_ce(p: Tensor, q: Tensor, f: Tensor | None, g: Tensor | None) -> Tensor:
    """Smooth L1 of the features and a tenth of the cross-entropy of the distributions: EAGLE's own (arXiv 2401.15077)."""
    assert f is not None and g is not None
    entropy = -(p * q.clamp(min=_TINY).log()).sum(-1)
    return F.smooth_l1_loss(g, f, reduction="none").mean(-1) + 0.1 * entropy


LOSSES: dict[str, Loss] = {"kl": kl, "tvd": tvd, "smooth-l1+ce": smooth_l1_ce}
