"""Jacobi drafts of latents: those of the last window, then new ones from the last output of the backbone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.sampler import LatentSampler, normals
from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.errors import ArgumentError
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import DRAFT, WindowRNG


class LatentJacobi:
    """Drafts the latents of the previous iteration; at new positions the head turns their noise into a latent.

    The latent of a slot depends only on the noise of its position and on the drafts to its left, and no test has used
    it before its own. Whatever the coupling, it is a fresh sample of q, so the test is exact.

    Args:
        sampler: The sampler of the target.
        coupling: How the rejected part of the window is resampled. "fresh" samples it from the new target distribution;
            "maximal" couples it to the old drafts as the rule does (by reflection, if the rule is `Smoothed`); "gumbel"
            samples it with noise that is fixed per position.
        start: Drafts of new positions. "hold" reuses the backbone's last output, "left" repeats the last latent.

    Raises:
        ArgumentError: If `start` is neither "hold" nor "left".
    """

    ROWS = ("_offset", "_tokens", "_q")

    calls = 0

    def __init__(self, sampler: LatentSampler, coupling: str, start: str) -> None:
        if start not in ("hold", "left"):
            raise ArgumentError(f"start={start!r} is not possible with continuous tokens; use auto or left")
        self._sampler = sampler
        self._coupling = coupling
        self._start = start
        self._tokens: Tensor | None = None
        self._q: Tensor | None = None
        self._offset = np.zeros(0, dtype=np.int64)  # first slot of the last window that has not been committed

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        self._offset = verdict.accepted + 1
        self._tokens, self._q = self._resample(verdict, draws), dense(verdict.p)  # q := p

    def before_join(self, other: LatentJacobi, state: BatchState, other_state: BatchState) -> None:
        """Windows that end together get one width, with zeros in front."""
        assert self._tokens is not None and other._tokens is not None
        width = max(self._tokens.shape[1], other._tokens.shape[1])
        for one in (self, other):
            assert one._tokens is not None and one._q is not None
            more = width - one._tokens.shape[1]
            one._offset = one._offset + more
            one._tokens, one._q = (
                torch.cat([x.new_zeros(len(x), more, *x.shape[2:]), x], 1) for x in (one._tokens, one._q)
            )

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        assert self._tokens is not None and self._q is not None
        positions = state.positions(count)
        reused = np.minimum(self._tokens.shape[1] - self._offset, count)
        slots = np.minimum(self._offset[:, None] + np.arange(count), self._tokens.shape[1] - 1)
        row, index = torch.arange(len(slots), device=state.device)[:, None], torch.from_numpy(slots).to(state.device)
        tokens, q = self._tokens[row, index], self._q[row, index]
        if reused.min() < count:
            new_q = self._new_dists(state, positions)
            if self._coupling == "gumbel":
                normal = self._sampler.fixed_normals(positions)
            else:
                normal = normals(draws, DRAFT, self._sampler.head.dim)[:, :count]
            new_tokens = self._sampler.sample_from_normals(new_q, normal)
            new = torch.from_numpy(np.arange(count) >= reused[:, None]).to(state.device)[..., None]
            tokens, q = torch.where(new, new_tokens, tokens), torch.where(new, new_q, q)
        return Draft(tokens, q)

    def _resample(self, verdict: Verdict, draws: WindowRNG) -> Tensor:
        """The tokens of the window, with the rejected part resampled by the coupling."""
        if self._coupling == "maximal":
            return verdict.tokens
        if self._coupling == "gumbel":
            return self._sampler.sample_from_normals(
                dense(verdict.p), self._sampler.fixed_normals(draws.positions.host)
            )
        return self._sampler.sample(verdict.p, draws)

    def _new_dists(self, state: BatchState, positions: NDArray[np.int64]) -> Tensor:
        """Packed distributions of the drafts of new positions."""
        q = self._sampler.extrapolate(self._offset - 1, positions)
        if self._start == "left":
            dim = self._sampler.head.dim
            q[..., :dim] = state.last()[..., :dim]
        return q


def build(context: DraftingContext) -> LatentJacobi:
    """The builder of the recipes `sjd` and `scd` for continuous tokens."""
    knobs, sampler = context.recipe.knobs, context.sampler
    assert isinstance(sampler, LatentSampler)
    start = str(knobs["start"])
    if knobs["refresh"] != "none":
        raise ArgumentError(f"recipe '{context.recipe}' is not possible here: drafts of vectors cannot be refreshed")
    return LatentJacobi(sampler, str(knobs.get("coupling", "fresh")), "hold" if start == "auto" else start)
