"""The operations of `mmspec.sampling.ops.TorchOps` by Triton kernels, on probabilities that are not written out.

What has no kernel, such as a rule of a user, gets the probabilities themselves. `mmspec.sampling.sampler` imports this
module, only where the kernels run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.kernels import columns as columns_kernel
from mmspec.kernels import coupling as coupling_kernels
from mmspec.kernels import k_seq as k_seq_kernel
from mmspec.kernels import softmax_stats
from mmspec.kernels.accept import verify_window
from mmspec.kernels.fused_sampler import Settings
from mmspec.kernels.softmax_stats import at, point_mass_stats
from mmspec.kernels.tree import walk_tree
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.lazy_probs import LazyProbs, checked, join_windows, lazy
from mmspec.sampling.lazy_trees import branches_of, walked
from mmspec.sampling.lazy_verification import PendingTokens, PendingVerdict, column_numbers, kernel_rule
from mmspec.sampling.logits import Logits
from mmspec.sampling.multi_codebook import MAX_SAMPLES
from mmspec.sampling.numbers import Numbers, on_device
from mmspec.sampling.ops import MakesProbs, TorchOps
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft, Verdict, ratio
from mmspec.sampling.rng import CounterRNG, WindowRNG
from mmspec.sampling.tree import Chosen, Independent, TreeDraft
from mmspec.sampling.tree_rejection import TreeVerdict


class KernelOps(TorchOps):
    """The Triton kernels: probabilities are `LazyProbs`, and tensors are read as such."""

    by_kernels = True

    def probs(self, sampler: MakesProbs, logits: Logits, positions: Numbers) -> Probs:
        """No kernel reads the logits before they are needed. min-p and typical-p have no kernel."""
        settings = sampler.read_by_kernels(positions)
        return sampler.probs(logits, positions.host) if settings is None else LazyProbs.of(logits, Settings(*settings))

    def force(self, p: Probs, cells: ForcedCells, positions: Numbers) -> Probs:
        return lazy(p).force(cells, positions)

    def put(self, p: Probs, tokens: Tensor, cells: ForcedCells | None, positions: Numbers) -> Tensor:
        """The kernels know the forced cells of whole windows."""
        return tokens if lazy(p).forced is not None else super().put(p, tokens, cells, positions)

    def sample(self, p: Probs, u: Tensor) -> Tensor:
        """In one launch."""
        p = lazy(p)
        return checked(p, p.sample(u))

    def sample_draft(self, q: Probs, u: Tensor) -> Tensor:
        """Models read the token, so that it is always one of the vocabulary."""
        return lazy(q).sample(u).clamp(min=0)

    def sample_ahead(self, p: Probs, u: Tensor) -> PendingTokens | None:
        """In one launch; None for tensors, whose sampler needs the positions of the host."""
        return None if isinstance(p, Tensor) else PendingTokens(lazy(p).sample(u))

    def sample_columns(self, p: Probs, rng: WindowRNG) -> Tensor:
        """In one launch."""
        p = lazy(p)
        numbers = column_numbers(rng, p.device)
        return checked(p, columns_kernel.couple_columns(_cells(p), None, None, _table(p), numbers, MAX_SAMPLES))

    def verify(self, p: Probs, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> Verdict:
        """In two launches and one wait for the device."""
        p = lazy(p)
        if accept_u.shape[1] == 1:
            return Verdict(self.sample(p, resample_u), Numbers(np.zeros(len(accept_u), dtype=np.int64)), p, draft)
        pending = self._launch(p, draft, rule, accept_u, resample_u)
        if pending is not None:
            return pending.read()
        return replace(super().verify(p, draft, rule, accept_u, resample_u), p=p, draft=draft)

    def verify_ahead(
        self, p: Probs, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor
    ) -> PendingVerdict | None:
        """In two launches; None for rules and windows that the kernels do not know, and as for `sample_ahead`."""
        return None if isinstance(p, Tensor) else self._launch(lazy(p), draft, rule, accept_u, resample_u)

    def _launch(
        self, p: LazyProbs, draft: Draft, rule: Accept, accept_u: Tensor, resample_u: Tensor
    ) -> PendingVerdict | None:
        known = kernel_rule(rule, p.device) if accept_u.shape[1] > 1 else None
        if known is None:
            return None
        x, q = _rows(draft.tokens), lazy(draft.q).stats
        chance = p.fused_sample(resample_u, x)
        if chance is None:
            chance = F.pad(at(*p.stats[:, :-1].source(), x), (0, 1))
        verified = verify_window(p.stats, q, x, chance, p.sample(resample_u), accept_u, resample_u, known)
        return PendingVerdict(verified, p, draft, rule is ratio)

    def verify_columns(
        self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG, cells: ForcedCells | None
    ) -> Verdict:
        """In one launch and one wait for the device."""
        p = lazy(p)
        pending = self._launch_columns(p, draft, rule, rng)
        if pending is not None:
            return pending.read()
        return replace(super().verify_columns(p, draft, rule, rng, cells), p=p, draft=draft)

    def verify_columns_ahead(self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG) -> PendingVerdict | None:
        """In one launch; None for rules and windows that the kernel does not know, and as for `sample_ahead`."""
        return None if isinstance(p, Tensor) else self._launch_columns(lazy(p), draft, rule, rng)

    def _launch_columns(self, p: LazyProbs, draft: Draft, rule: Accept, rng: WindowRNG) -> PendingVerdict | None:
        if rule is not ratio or p.shape[1] == 1:
            return None
        numbers, q = column_numbers(rng, p.device), _cells(lazy(draft.q))
        verified = columns_kernel.verify_columns(_cells(p), q, draft.tokens, _table(p), numbers, MAX_SAMPLES)
        return PendingVerdict(verified, p, draft, True)

    def verify_tree(
        self, p: Probs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor
    ) -> TreeVerdict:
        """In two launches and one wait for the device."""
        p, branches = lazy(p), branches_of(draft)
        known = kernel_rule(rule, p.device)
        # On devices before an H100, GSD on chosen siblings needs more registers than there are.
        spills = isinstance(draft.siblings, Chosen) and known is not None and known.name == "gsd"
        if known is None or branches is None or spills:
            return super().verify_tree(p, draft, rule, accept_u, resample_u)
        return walked(p, walk_tree(p.stats, branches, accept_u, resample_u, known), rule)

    def verify_drafts(
        self, p: Probs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor
    ) -> TreeVerdict:
        """In two launches and one wait for the device."""
        p, siblings = lazy(p), draft.siblings
        known = kernel_rule(rule, p.device)
        if known is None or not isinstance(siblings, Independent):
            return super().verify_drafts(p, draft, rule, accept_u, resample_u)
        count = draft.tokens.shape[1] // draft.tree.height
        given = draft.tokens, siblings.probs, count, accept_u, resample_u
        return walked(p, k_seq_kernel.verify_drafts(p.stats, *given, known), rule)

    def couple_fresh(self, p: Probs, verdict: Verdict, resample_u: Tensor) -> Tensor:
        """With the samples that came with the verification."""
        return self.sample(p, resample_u)

    def couple_maximally(self, p: Probs, verdict: Verdict, accept_u: Tensor, resample_u: Tensor) -> Tensor:
        """In one launch."""
        p, draft = lazy(p), verdict.draft
        if p.shape[1] == 1 or verdict.first_reused == p.shape[1] - 1:
            return self.couple_fresh(p, verdict, resample_u)
        accepted, q = verdict.counts.on(p.device), lazy(draft.q).stats
        numbers = verdict.tokens, p.sample(resample_u), accepted, accept_u, resample_u
        return checked(p, coupling_kernels.couple_maximally(p.stats, q, _rows(draft.tokens), *numbers))

    def couple_by_noise(self, p: Probs, rng: CounterRNG, positions: Numbers) -> Tensor:
        """In one launch."""
        p = lazy(p)
        return checked(p, coupling_kernels.couple_by_noise(p.stats, rng.device_seeds(), positions.on(p.device)))

    def couple_columns(self, p: Probs, draft: Draft, rng: WindowRNG, accepted: Numbers | None = None) -> Tensor:
        """In one launch."""
        p = lazy(p)
        return checked(p, columns_kernel.couple_columns(
            _cells(p), _cells(lazy(draft.q)), draft.tokens, _table(p), column_numbers(rng, p.device), MAX_SAMPLES,
            None if accepted is None else accepted.on(p.device),
        ))  # fmt: skip

    def couple_columns_by_noise(self, p: Probs, rng: CounterRNG, positions: Numbers) -> Tensor:
        """In one launch."""
        p = lazy(p)
        there, codebooks = positions.on(p.device), p.shape[2]
        tokens = coupling_kernels.couple_by_noise(_cells(p), rng.device_seeds(), there, codebooks, _table(p))
        return checked(p, tokens.view(p.shape[:3]))

    def check(self, p: Probs, tokens: Tensor) -> Tensor:
        return checked(lazy(p), tokens)

    def unchecked(self, p: Probs) -> Probs:
        p = lazy(p)
        p.is_valid = True
        return p

    def log_probs(self, p: Probs, more: int = 0) -> Tensor:
        """In one launch after that which reads the logits."""
        return softmax_stats.log_probs(*lazy(p).stats.source(), more)

    def point_mass(
        self, q: Probs, tokens: Tensor, first: int, new: NDArray[np.bool_] | Tensor, inplace: bool = False
    ) -> Probs:
        stats = lazy(q).stats
        ones = point_mass_stats(stats, tokens)
        if isinstance(new, Tensor):
            where = F.pad(new, (*(0, 0) * (new.ndim - 2), first, 0))[..., None] if first else new[..., None]
        else:
            padded = np.pad(new, ((0, 0), (first, 0), (0, 0))[: new.ndim])
            where = on_device(padded, tokens.device)[..., None]
        floats, ints = torch.where(where, ones.floats, stats.floats), torch.where(where, ones.ints, stats.ints)
        return LazyProbs.known(replace(stats, floats=floats, ints=ints))

    def one_hot(self, like: Probs, tokens: Tensor) -> Probs:
        return LazyProbs.known(point_mass_stats(lazy(like).stats, tokens))

    def cat(self, probs: Sequence[Probs]) -> Probs:
        joined = join_windows(probs)
        return super().cat(probs) if joined is None else joined


KERNELS = KernelOps()


def _cells(p: LazyProbs) -> softmax_stats.SoftmaxStats:
    """The statistics of columns [B, W, K, V], as kernels read them, [B, W * K, V]."""
    return p.stats.view(p.shape[0], p.shape[1] * p.shape[2])


def _table(p: LazyProbs) -> Tensor | None:
    """The forced cells of columns, on the device; None if there are none."""
    known = p.forced_table()
    return None if known is None else known[0]


def _rows(tokens: Tensor) -> Tensor:
    """Tokens [B, m] with those of a row next to each other, as kernels read them."""
    return tokens if tokens.stride(1) == 1 else tokens.contiguous()
