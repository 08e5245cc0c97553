"""Token initialization of columns, codebook by codebook, from the column before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.drafters.token_init import BaseInitDrafter, LearnedTable
from mmspec.drafters.window_kernel import Reusable
from mmspec.sampling.multi_codebook import entries
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import INIT, WindowRNG

# (left, u) -> columns, int64 [B, K]. `left` is the column before, with forced ids mapped to entries of the vocabulary;
# `u` float32 [B, K] is uniform in [0, 1). The column has a one-hot q, so that any initialization is exact.
ColumnInit = Callable[[Tensor, Tensor], Tensor]


def repeat_left(left: Tensor, u: Tensor) -> Tensor:
    """Repeats the column before."""
    return left


@dataclass(frozen=True)
class RandomColumn:
    """An initialization with uniformly random columns.

    Attributes:
        vocab_size: V.
    """

    vocab_size: int

    def __call__(self, left: Tensor, u: Tensor) -> Tensor:
        return (u * self.vocab_size).long().clamp_(max=self.vocab_size - 1)


@dataclass(frozen=True)
class ColumnKernel:
    """A `mmspec.drafters.window_kernel.WindowKernel` of columns: an initialization that a kernel knows.

    Attributes:
        kind: "left", "random" or "learned".
        learned: Of "learned".
    """

    kind: str
    learned: LearnedTable | None = None

    def draft(self, state: BatchState, draws: WindowRNG, previous: Reusable) -> Draft | None:
        if previous.is_dense:
            return None
        # Imported here: Triton may be missing.
        from mmspec.kernels import column_drafts
        from mmspec.sampling.lazy_probs import LazyProbs
        from mmspec.sampling.lazy_verification import column_numbers

        stats, reused = previous.for_kernels(state.device)
        forced = state.layout.forced
        found = column_drafts.draft_columns(
            *state.storage(), column_numbers(draws, state.device), KINDS.index(self.kind), previous.p.shape[-1],
            None if self.learned is None else self.learned.table,
            None if forced is None else forced.table(state.device), reused,
        )  # fmt: skip
        drafted = LazyProbs.known(replace(stats, floats=found.floats, ints=found.ints))
        return Draft(found.window[:, 1:], drafted, found.window)


KINDS = "left", "random", "learned"  # in the order of the kernel's numbers


def column_kernel(init: object) -> ColumnKernel | None:
    """The same initialization in the kernel; None if the kernel does not know it."""
    if isinstance(init, LearnedTable):
        return ColumnKernel("learned", init)
    kind = "left" if init is repeat_left else "random" if isinstance(init, RandomColumn) else None
    return None if kind is None else ColumnKernel(kind)


class ColumnInitDrafter(BaseInitDrafter):
    """A `mmspec.decoding.drafter.ContinuationDrafter` that fills slots with initialized columns, whose q is one-hot.

    Args:
        init: The initialization; a `LearnedTable` is updated after every target call.
    """

    def __init__(self, init: ColumnInit) -> None:
        super().__init__(init)
        self._init = init

    @cached_property
    def kernel(self) -> ColumnKernel | None:
        """Drafts whole windows where the Triton kernels run."""
        return column_kernel(self._init)

    def guesses(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
        codebooks, vocab_size = verdict.p.shape[-2:]
        left = entries(torch.cat([state.last(), verdict.draft.tokens], dim=1), vocab_size)
        found, forced = self._init(left, draws.uniforms(INIT, 0, codebooks)), state.layout.forced
        return found if forced is None else entries(forced.put(found, draws.positions), vocab_size)

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        codebooks, vocab_size = draft.q.shape[-2:]
        u, forced = draws.uniforms(INIT, 0, codebooks), state.layout.forced
        new = torch.arange(draft.tokens.shape[1], device=state.device) >= reused.on(state.device)[:, None]
        columns, left = [], state.last()[:, 0]
        for j in range(draft.tokens.shape[1]):
            column = self._init(entries(left, vocab_size), u[:, j])
            if forced is not None:
                column = forced.put(column[:, None], draws.positions.part(np.s_[:, j : j + 1]))[:, 0]
            left = torch.where(new[:, j, None], column, draft.tokens[:, j])
            columns.append(left)
        tokens = torch.stack(columns, dim=1)
        entry = entries(tokens, vocab_size)
        return Draft(tokens, state.ops.point_mass(draft.q, entry, 0, new[..., None].expand(entry.shape)))
