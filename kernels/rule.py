"""Acceptance rules in the form that the kernels of windows and of trees read. This module imports no Triton."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class KernelRule:
    """An acceptance rule: its name, its numbers and its tensors.

    Attributes:
        name: A name of the table in `mmspec.kernels.acceptance`.
        a: Its first number, as in that table; for gsd, the members' probabilities differ from that of x by less.
        b: Its second number; for gsd, the members' squared distance from x in the codebook is below it (0: any
            distance).
        group: For gsd, the number of tokens next to x in rank that may be members; for top-m, the number of tokens.
        near: For lantern and lantern++, int32 [V, k], the nearest tokens of each token; the token itself where there
            are no more. For pcg, int32 [V, G], the group around each token, filled with -1 at the end.
        vectors: For gsd with a distance, float32 [V, D], the codebook; for pcg, float32 [V, 1], the share of its
            probability that a token gives each of its groups.
        known: For gsd with a distance, bool [V], the tokens that the codebook has.
    """

    name: str = "exact"
    a: float = 0.0
    b: float = 0.0
    group: int = 0
    near: Tensor | None = None
    vectors: Tensor | None = None
    known: Tensor | None = None

    def to(self, device: torch.device) -> KernelRule:
        """The same rule with its tensors on a device."""
        near, vectors, known = (
            None if one is None else one.to(device) for one in (self.near, self.vectors, self.known)
        )
        return replace(self, near=near, vectors=vectors, known=known)


EXACT_RULE = KernelRule()
