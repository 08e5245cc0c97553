"""The operations on the probabilities of a window: `TorchOps`, the reference, or the Triton kernels, chosen once.

`mmspec.sampling.sampler` chooses for a batch and its samplers. `mmspec.sampling.kernel_ops.KernelOps` has the same
methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling import multi_codebook, rejection
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import CounterRNG, WindowRNG
from mmspec.sampling.tree import TreeDraft

if TYPE_CHECKING:
    from mmspec.sampling.lazy_verification import PendingTokens, PendingVerdict
    from mmspec.sampling.tree_rejection import TreeVerdict


class MakesProbs(Protocol):
    """What is read of a `mmspec.sampling.sampler.TokenSampler`."""

    def probs(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        """The probabilities as a tensor."""
        ...

    def read_by_kernels(self, positions: Numbers) -> tuple[Any, ...] | None:
        """What the kernels read besides logits; None if no kernel has what is needed."""
        ...


class TorchOps:
    """The reference: probabilities are tensors.

    Attributes:
        by_kernels: Whether Triton kernels run.
    """

    by_kernels = False

    def probs(self, sampler: MakesProbs, logits: Logits, positions: Numbers) -> Probs:
        """The distributions of a window; see `mmspec.sampling.sampler.TokenSampler`."""
        return sampler.probs(logits, positions.host)

    def force(self, p: Probs, cells: ForcedCells, positions: Numbers) -> Probs:
        """Distributions of columns, [B, W, K, V], with point masses in forced cells; `positions` are [B, W].

        They have not been sampled from.
        """
        p, forced = dense(p), cells.on(p.device, positions)
        if forced is None:
            return p
        return rejection.point_mass(p, multi_codebook.entries(forced, p.shape[-1]), 0, forced >= 0)

    def put(self, p: Probs, tokens: Tensor, cells: ForcedCells | None, positions: Numbers) -> Tensor:
        """Columns [B, W, K], sampled from `p`, with the ids of forced cells, which may be outside the vocabulary."""
        return tokens if cells is None else cells.put(tokens, positions)

    def sample(self, p: Probs, u: Tensor) -> Tensor:
        """A token of each slot at `u` [B, W, ...]; see `mmspec.sampling.rejection.sample`."""
        return rejection.sample(dense(p), u)

    def sample_draft(self, q: Probs, u: Tensor) -> Tensor:
        """As `sample`, for drafts that are verified: on a device, whether q is a distribution is checked only then."""
        return rejection.sample(dense(q), u)

    def sample_columns(self, p: Probs, rng: WindowRNG) -> Tensor:
        return multi_codebook.sample_columns(dense(p), rng)

    def sample_ahead(self, p: Probs, u: Tensor) -> PendingTokens | None:
        """As `sample`, without waiting for a device; None where only `sample` can."""
        return None

    def verify(self, p: Probs, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> Verdict:
        return rejection.verify(dense(p), draft, rule, accept_u, resample_u)

    def verify_ahead(
        self, p: Probs, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor
    ) -> PendingVerdict | None:
        """As `verify`, without waiting for a device; None where only `verify` can."""
        return None

    def verify_columns(
        self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG, cells: ForcedCells | None
    ) -> Verdict:
        return multi_codebook.verify_columns(dense(p), draft, rule, rng, cells)

    def verify_columns_ahead(self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG) -> PendingVerdict | None:
        """As `verify_columns`, without waiting for a device; None where only that can."""
        return None

    def verify_tree(
        self, p: Probs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor
    ) -> TreeVerdict:
        from mmspec.sampling import tree_rejection  # chains do without it

        return tree_rejection.verify_tree(dense(p), draft, rule, accept_u, resample_u)

    def verify_drafts(
        self, p: Probs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor
    ) -> TreeVerdict:
        from mmspec.sampling import k_seq

        return k_seq.verify_drafts(dense(p), draft, rule, accept_u, resample_u)

    def couple_fresh(self, p: Probs, verdict: Verdict, resample_u: Tensor) -> Tensor:
        """Tokens [B, W] of the slots of a window: every reused one is sampled from p, independently of its draft."""
        p, first = dense(p), verdict.first_reused
        return torch.cat([verdict.tokens[:, :first], rejection.sample(p[:, first:], resample_u[:, first:])], dim=1)

    def couple_maximally(self, p: Probs, verdict: Verdict, accept_u: Tensor, resample_u: Tensor) -> Tensor:
        """As `couple_fresh`; each draft stays with probability min(1, p / q), the residual replaces the others."""
        p, first = dense(p), verdict.first_reused
        m = p.shape[1] - 1
        reused = slice(first, m)
        p_reused, q, x = p[:, reused], dense(verdict.draft.q[:, reused]), verdict.draft.tokens[:, reused]
        found = [verdict.tokens[:, :first]]
        if first < m:
            keep = accept_u[:, reused] < rejection.ratio(p_reused, q, x)
            left = rejection.residual(p_reused, q)
            found.append(torch.where(keep, x, rejection.sample(left, resample_u[:, reused], fallback=p_reused)))
        # The last slot has no draft, so that its token is sampled from p itself.
        return torch.cat([*found, rejection.sample(p[:, m:], resample_u[:, m:])], dim=1)

    def couple_by_noise(self, p: Probs, rng: CounterRNG, positions: Numbers) -> Tensor:
        """Samples every slot by the Gumbel-max trick with noise that is fixed per position."""
        return (dense(p).log() + rng.gumbel(positions.host, p.shape[-1])).argmax(-1)

    def couple_columns(self, p: Probs, draft: Draft, rng: WindowRNG, accepted: Numbers | None = None) -> Tensor:
        return multi_codebook.couple_columns(dense(p), draft, rng, None if accepted is None else accepted.host)

    def couple_columns_by_noise(self, p: Probs, rng: CounterRNG, positions: Numbers) -> Tensor:
        """As `couple_by_noise` for columns, [B, W, K] from p [B, W, K, V], with noise of its own for each cell."""
        noise = rng.gumbel(positions.host, p.shape[2] * p.shape[3])
        return (dense(p).log() + noise.unflatten(-1, p.shape[2:])).argmax(-1)

    def check(self, p: Probs, tokens: Tensor) -> Tensor:
        """Tokens that were sampled from `p` before it was known whether its distributions are valid.

        Raises:
            ModelError: If there are none because a distribution is invalid.
        """
        return tokens

    def unchecked(self, p: Probs) -> Probs:
        """Distributions of drafts, for whose samples nothing waits: verification finds the invalid ones."""
        return p

    def log_probs(self, p: Probs, more: int = 0) -> Tensor:
        return rejection.log_probs(dense(p), more)

    def point_mass(
        self, q: Probs, tokens: Tensor, first: int, new: NDArray[np.bool_] | Tensor, inplace: bool = False
    ) -> Probs:
        return rejection.point_mass(dense(q), tokens, first, new, inplace)

    def one_hot(self, like: Probs, tokens: Tensor) -> Probs:
        return rejection.one_hot(dense(like), tokens)

    def cat(self, probs: Sequence[Probs]) -> Probs:
        """The distributions of a window [B, W, V], from those of its parts [B, n, V]."""
        return torch.cat([dense(one) for one in probs], dim=1)


TORCH = TorchOps()
