"""Fallback: drafts that the draft model is sure of are accepted; the target decides where it is unsure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.rule import KernelRule
from mmspec.sampling.rejection import ratio


@dataclass(frozen=True)
class Fallback:
    """BiLD (arXiv 2302.07863): the small model writes while its largest probability exceeds a threshold.

    The target still reads every window, and a draft that it finds unlikely is tested as usual: the paper's rollback.
    FS-GEN (arXiv 2406.12295) and Entropy Adaptive Decoding (arXiv 2502.06833) switch between two models by such a
    threshold too, the latter on the entropy. A one-hot q is always sure, so that the rule is for draft models.

    Attributes:
        trust: A draft is trusted if the largest q is above 1 - trust; 0 trusts none and is exact.
        rollback: A trusted draft with p(x) below this is tested by p(x) / q(x).
    """

    trust: float
    rollback: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        chance = ratio(p, q, x)
        if not self.trust:
            return chance
        trusted = (q.amax(-1) > 1 - self.trust) & (p.gather(-1, x[..., None])[..., 0] >= self.rollback)
        return chance.masked_fill(trusted, 1.0)

    def kernel_rule(self, device: torch.device) -> KernelRule:
        return KernelRule("fallback", 1 - self.trust, self.rollback) if self.trust else KernelRule()
