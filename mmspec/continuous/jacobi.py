"""Jacobi drafts over latents: what the last window left, and behind it the head at new noise of an old state."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.law import LatentLaw, normals
from mmspec.errors import ArgumentError
from mmspec.noise import DRAFT, Draws
from mmspec.rows import Rows
from mmspec.verify import Draft, Verdict

CARRIES = ("fresh", "maximal", "gumbel")


class LatentJacobi:
    """Drafts the previous iteration's latents; new positions get what the head makes of their noise.

    **Arguments:**

    - `law`: the target's own.
    - `carry`: what becomes of leftovers: "fresh" draws them anew from the target's new law, "maximal" couples them to
      what they were as the rule does (by reflection, where it is `Smoothed`), "gumbel" draws them with noise that is
      fixed per position.
    - `start`: "hold" takes the backbone's last output for new positions too, "left" repeats the last latent.

    Latents of a slot depend on the noise of their position and on drafts to their left only, and no test has looked at
    them before their own: whatever the carry, they are fresh draws of q, and the test is exact.
    """

    calls = 0

    def __init__(self, law: LatentLaw, carry: str, start: str) -> None:
        if start not in ("hold", "left"):
            raise ArgumentError(f"start={start!r} is not possible with tokens that are vectors; use auto or left")
        self._law = law
        self._carry = carry
        self._start = start
        self._tokens: Tensor | None = None
        self._q: Tensor | None = None
        self._offset = np.zeros(0, dtype=np.int64)

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        self._offset = verdict.accepted + 1
        self._tokens, self._q = self._leftovers(verdict, draws), verdict.p  # q := p

    def keep(self, rows: list[int]) -> None:
        self._offset = self._offset[rows]
        if self._tokens is not None and self._q is not None:
            self._tokens, self._q = self._tokens[rows], self._q[rows]

    def propose(self, rows: Rows, count: int, draws: Draws) -> Draft:
        assert self._tokens is not None and self._q is not None
        positions = rows.positions(count)
        carried = np.minimum(self._tokens.shape[1] - self._offset, count)
        slots = np.minimum(self._offset[:, None] + np.arange(count), self._tokens.shape[1] - 1)
        row, index = torch.arange(len(slots), device=rows.device)[:, None], torch.from_numpy(slots).to(rows.device)
        tokens, q = self._tokens[row, index], self._q[row, index]
        if carried.min() < count:
            guess = self._guess(rows, positions)
            steady = self._carry == "gumbel"
            normal = self._law.steady(positions) if steady else normals(draws, DRAFT, self._law.head.dim)[:, :count]
            new = torch.from_numpy(np.arange(count) >= carried[:, None]).to(rows.device)[..., None]
            tokens, q = torch.where(new, self._law.draw(guess, normal), tokens), torch.where(new, guess, q)
        return Draft(tokens, q)

    def _leftovers(self, verdict: Verdict, draws: Draws) -> Tensor:
        if self._carry == "maximal":
            return verdict.tokens
        if self._carry == "gumbel":
            return self._law.draw(verdict.p, self._law.steady(draws.positions))
        return self._law.sample(verdict.p, draws)

    def _guess(self, rows: Rows, positions: NDArray[np.int64]) -> Tensor:
        """The laws of new positions."""
        q = self._law.ahead(self._offset - 1, positions)
        if self._start == "left":
            dim = self._law.head.dim
            q[..., :dim] = rows.last()[..., :dim]
        return q
