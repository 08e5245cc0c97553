"""Acceptance rules in the form that `mmspec.kernels.accept` reads. This module imports no Triton."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KernelRule:
    """An acceptance rule: its name, its numbers and its tensors.

    Attributes:
        name: A name of the table in `mmspec.kernels.accept`.
        a: Its first number, as in the table; for gsd, the members' probabilities differ from that of x by less.
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
