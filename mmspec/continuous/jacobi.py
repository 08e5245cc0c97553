"""Jacobi drafts over latents: what the last window left, and after it the head at new noise of an old state."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.sampler import LatentSampler, normals
from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.errors import ArgumentError
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import DRAFT, WindowRNG

COUPLINGS = ("fresh", "maximal", "gumbel")


class LatentJacobi:
    """Drafts the previous iteration's latents; new positions get what the head makes of their noise.

    Latents of a slot depend on the noise of their position and on drafts to their left only, and no test has looked at
    them before their own: whatever the carry, they are fresh draws of q, and the test is exact.

    Args:
        sampler: The target's own.
        coupling: What becomes of leftovers: "fresh" draws them anew from the target's new distribution, "maximal"
            couples them to what they were as the rule does (by reflection, where it is `Smoothed`), "gumbel" draws them
            with noise that is fixed per position.
        start: "hold" takes the backbone's last output for new positions too, "left" repeats the last latent.
    """

    calls = 0

    def __init__(self, sampler: LatentSampler, coupling: str, start: str) -> None:
        if start not in ("hold", "left"):
            raise ArgumentError(f"start={start!r} is not possible with tokens that are vectors; use auto or left")
        self._sampler = sampler
        self._coupling = coupling
        self._start = start
        self._tokens: Tensor | None = None
        self._q: Tensor | None = None
        self._offset = np.zeros(0, dtype=np.int64)

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        self._offset = verdict.accepted + 1
        self._tokens, self._q = self._leftovers(verdict, draws), verdict.p  # q := p

    def select_rows(self, row_ids: list[int]) -> None:
        self._offset = self._offset[row_ids]
        if self._tokens is not None and self._q is not None:
            self._tokens, self._q = self._tokens[row_ids], self._q[row_ids]

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        assert self._tokens is not None and self._q is not None
        positions = state.positions(count)
        reused = np.minimum(self._tokens.shape[1] - self._offset, count)
        slots = np.minimum(self._offset[:, None] + np.arange(count), self._tokens.shape[1] - 1)
        row, index = torch.arange(len(slots), device=state.device)[:, None], torch.from_numpy(slots).to(state.device)
        tokens, q = self._tokens[row, index], self._q[row, index]
        if reused.min() < count:
            guess = self._guess(state, positions)
            steady = self._coupling == "gumbel"
            normal = (
                self._sampler.steady(positions) if steady else normals(draws, DRAFT, self._sampler.head.dim)[:, :count]
            )
            new = torch.from_numpy(np.arange(count) >= reused[:, None]).to(state.device)[..., None]
            tokens, q = torch.where(new, self._sampler.draw(guess, normal), tokens), torch.where(new, guess, q)
        return Draft(tokens, q)

    def _leftovers(self, verdict: Verdict, draws: WindowRNG) -> Tensor:
        if self._coupling == "maximal":
            return verdict.tokens
        if self._coupling == "gumbel":
            return self._sampler.draw(verdict.p, self._sampler.steady(draws.positions))
        return self._sampler.sample(verdict.p, draws)

    def _guess(self, state: BatchState, positions: NDArray[np.int64]) -> Tensor:
        """The distributions of new positions."""
        q = self._sampler.ahead(self._offset - 1, positions)
        if self._start == "left":
            dim = self._sampler.head.dim
            q[..., :dim] = state.last()[..., :dim]
        return q


def build(context: DraftingContext) -> LatentJacobi:
    """The builder of the recipes `sjd` and `scd` for vectors."""
    knobs, sampler = context.recipe.knobs, context.sampler
    assert isinstance(sampler, LatentSampler)
    start = str(knobs["start"])
    return LatentJacobi(sampler, str(knobs.get("coupling", "fresh")), "hold" if start == "auto" else start)
