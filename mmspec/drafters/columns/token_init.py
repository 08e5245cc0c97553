"""Token initialization of columns, codebook by codebook, from the column before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.kernels.backend import choose
from mmspec.sampling.mirrored import on_device, part
from mmspec.sampling.multi_codebook import entries
from mmspec.sampling.rejection import Draft, Verdict, point_mass
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


class ColumnRecycle:
    """Token recycling codebook by codebook (Luo et al. 2024, arXiv 2408.08696).

    Stores the most likely successor of each token in the latest target distribution that followed it. Each row has its
    own table, so that it does not depend on its batch.

    Args:
        batch_size: B.
        codebooks: K.
        vocab_size: V.
        device: Of the tokens.

    Attributes:
        table: int32 [B, K, V], the code after each code.
    """

    ROWS = ("table",)

    def __init__(self, batch_size: int, codebooks: int, vocab_size: int, device: torch.device) -> None:
        # An unseen token is followed by itself.
        itself = torch.arange(vocab_size, dtype=torch.int32, device=device)
        self.table = itself.expand(batch_size, codebooks, -1).clone()
        self._stored: Tensor | None = None  # the distributions that `update` was called with last

    def __call__(self, left: Tensor, u: Tensor) -> Tensor:
        return self.table.gather(2, left[..., None])[..., 0].long()

    def update(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Stores the most likely token of each slot that a row has; `state` still ends where the window began.

        What a window stores does not depend on how much of it was accepted, so that this is done before the host knows;
        a second call for the same window does nothing.
        """
        p = verdict.p
        if p is self._stored or state.length.min() == 0:
            return  # the first column has no left neighbor
        self._stored = p
        if type(p) is not Tensor and self.table.is_contiguous():
            # Imported here: Triton may be missing.
            from mmspec.kernels.column_drafts import recycle_columns
            from mmspec.sampling.lazy_probs import LazyProbs

            if isinstance(p, LazyProbs):
                window = verdict.draft.window if p.shape[1] > 1 else state.last()
                read = torch.cat([state.last(), verdict.draft.tokens], dim=1) if window is None else window
                positions, limits = (on_device(each, state.device) for each in (draws.positions, state.limits()))
                recycle_columns(read, positions, limits, p.stats.ints, self.table)
                return
        left = state.last() if p.shape[1] == 1 else torch.cat([state.last(), verdict.draft.tokens], dim=1)
        entry, best = entries(left, p.shape[-1])[..., None], p.argmax(-1, keepdim=True).int()
        own = state.own_slots(draws.positions)[..., None, None]
        for slot in range(p.shape[1]):  # one after the other: if a token occurs twice, the later slot wins
            new = torch.where(own[:, slot], best[:, slot], self.table.gather(2, entry[:, slot]))
            self.table.scatter_(2, entry[:, slot], new)


@dataclass(frozen=True)
class ColumnKernel:
    """A `mmspec.drafters.kernel_drafts.WindowKernel` of columns: an initialization that a kernel knows.

    Attributes:
        kind: "left", "random" or "recycle".
        recycle: Of "recycle".
    """

    kind: str
    recycle: ColumnRecycle | None = None

    def draft(
        self,
        state: BatchState,
        draws: WindowRNG,
        p: Tensor,
        tokens: Tensor | None,
        q: Tensor | None,
        accepted: NDArray[np.int64],
    ) -> Draft | None:
        """See `mmspec.drafters.kernel_drafts.WindowKernel`."""
        if choose(state.device.type) != "triton" or type(p) is Tensor:
            return None
        # Imported here: Triton may be missing.
        from mmspec.kernels import column_drafts
        from mmspec.kernels.token_init import Previous
        from mmspec.sampling.lazy_probs import LazyProbs
        from mmspec.sampling.lazy_verification import column_numbers

        if not isinstance(p, LazyProbs) or not (q is None or isinstance(q, LazyProbs)):
            return None
        previous, stats = None, p.stats
        if tokens is not None and q is not None:
            stats = q.stats
            previous = Previous(tokens, stats.floats, stats.ints, on_device(accepted, state.device))
        forced = state.layout.forced
        found = column_drafts.draft_columns(
            *state.storage(), column_numbers(draws, state.device), KINDS.index(self.kind), p.shape[-1],
            None if self.recycle is None else self.recycle.table,
            None if forced is None else forced.table(state.device), previous,
        )  # fmt: skip
        drafted = LazyProbs.known(replace(stats, floats=found.floats, ints=found.ints))
        return Draft(found.window[:, 1:], drafted, found.window)


KINDS = "left", "random", "recycle"  # in the order of the kernel's numbers


def column_kernel(init: object) -> ColumnKernel | None:
    """The same initialization in the kernel; None if the kernel does not know it."""
    if isinstance(init, ColumnRecycle):
        return ColumnKernel("recycle", init)
    kind = "left" if init is repeat_left else "random" if isinstance(init, RandomColumn) else None
    return None if kind is None else ColumnKernel(kind)


class ColumnInitDrafter:
    """A `mmspec.decoding.drafter.ContinuationDrafter` that fills slots with initialized columns, whose q is one-hot.

    Args:
        init: The initialization; a `ColumnRecycle` is updated after every target call.
    """

    ROWS = ("_recycle",)

    calls = 0

    def __init__(self, init: ColumnInit | ColumnRecycle) -> None:
        self._init = init
        self._recycle = init if isinstance(init, ColumnRecycle) else None
        # Drafts whole windows where the Triton kernels run.
        self.kernel: ColumnKernel | None = column_kernel(init)

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """See `mmspec.decoding.drafter.ContinuationDrafter`; it does not need the counts."""
        if self._recycle is not None:
            self._recycle.update(verdict, state, draws)

    def extend(self, state: BatchState, draft: Draft, reused: NDArray[np.int64], draws: WindowRNG) -> Draft:
        """See `mmspec.decoding.drafter.ContinuationDrafter`."""
        codebooks, vocab_size = draft.q.shape[-2:]
        u, forced = draws.uniforms(INIT, 0, codebooks), state.layout.forced
        new = torch.arange(draft.tokens.shape[1], device=state.device) >= on_device(reused, state.device)[:, None]
        columns, left = [], state.last()[:, 0]
        for j in range(draft.tokens.shape[1]):
            column = self._init(entries(left, vocab_size), u[:, j])
            if forced is not None:
                column = forced.put(column[:, None], part(draws.positions, np.s_[:, j : j + 1]))[:, 0]
            left = torch.where(new[:, j, None], column, draft.tokens[:, j])
            columns.append(left)
        tokens = torch.stack(columns, dim=1)
        entry = entries(tokens, vocab_size)
        return Draft(tokens, point_mass(draft.q, entry, 0, new[..., None].expand(entry.shape)))
