"""Fallback: drafts that the draft model is sure of are accepted; the target decides where it is unsure."""

from __future__ import annotations

from torch import Tensor

from mmspec.sampling.acceptance import Accept
from mmspec.sampling.rejection import ratio


def fallback(trust: float, rollback: float) -> Accept:
    """BiLD (arXiv 2302.07863): the small model writes while its largest probability exceeds a threshold.

    The target still reads every window, and a draft that it finds unlikely is tested as usual: the paper's rollback.
    FS-GEN (arXiv 2406.12295) and Entropy Adaptive Decoding (arXiv 2502.06833) switch between two models by such a
    threshold too, the latter on the entropy. A one-hot q is always sure, so that the rule is for draft models.

    Args:
        trust: A draft is trusted if the largest q is above 1 - trust; 0 trusts none and is exact.
        rollback: A trusted draft with p(x) below this is tested by p(x) / q(x).
    """

    def accept(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        chance = ratio(p, q, x)
        if not trust:
            return chance
        trusted = (q.amax(-1) > 1 - trust) & (p.gather(-1, x[..., None])[..., 0] >= rollback)
        return chance.masked_fill(trusted, 1.0)

    return accept
