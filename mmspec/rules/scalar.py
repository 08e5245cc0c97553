"""Rules that change the number p(x)/q(x) alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.verify import ratio


@dataclass(frozen=True)
class Beta:
    """Speech speculative decoding (arXiv 2505.15380): a(x) = p/q + beta; 0 is exact."""

    beta: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return ratio(p, q, x) + self.beta


@dataclass(frozen=True)
class Ensemble:
    """DIVERSE (arXiv 2604.07622): x is tested against v = w p + (1 - w) q, so a(x) = w p/q + 1 - w.

    `draft` is 1 - w, the share of the draft's law; 0 is exact. The residual of v and q is that of p and q.
    """

    draft: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return (1 - self.draft) * ratio(p, q, x) + self.draft


@dataclass(frozen=True)
class Omega:
    """COOL-SD (arXiv 2601.09212): a(x) = w_i p/q with w_i = delta exp(-decay i) at slot i; 0 is exact.

    The paper's factor may fall below 1 and then accepts less than the exact rule; here it stops at 1.
    """

    delta: float
    decay: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        slots = torch.arange(x.shape[-1], device=x.device)
        return (self.delta * (-self.decay * slots).exp()).clamp(min=1.0) * ratio(p, q, x)
