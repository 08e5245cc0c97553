"""Token recycling of columns, codebook by codebook."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.columns.token_init import ColumnInitDrafter
from mmspec.drafters.jacobi import Jacobi
from mmspec.sampling.multi_codebook import entries
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG


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
        self._stored: Probs | None = None  # the distributions that `update` was called with last

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
        if not isinstance(p, Tensor) and self.table.is_contiguous():
            # Imported here: Triton may be missing.
            from mmspec.kernels.column_drafts import recycle_columns
            from mmspec.sampling.lazy_probs import lazy

            window = verdict.draft.window if p.shape[1] > 1 else state.last()
            read = torch.cat([state.last(), verdict.draft.tokens], dim=1) if window is None else window
            positions, limits = (each.on(state.device) for each in (draws.positions, state.limits()))
            recycle_columns(read, positions, limits, lazy(p).stats.ints, self.table)
            return
        left = state.last() if p.shape[1] == 1 else torch.cat([state.last(), verdict.draft.tokens], dim=1)
        entry, best = entries(left, p.shape[-1])[..., None], dense(p).argmax(-1, keepdim=True).int()
        own = state.own_slots(draws.positions)[..., None, None]
        for slot in range(p.shape[1]):  # one after the other: if a token occurs twice, the later slot wins
            new = torch.where(own[:, slot], best[:, slot], self.table.gather(2, entry[:, slot]))
            self.table.scatter_(2, entry[:, slot], new)


def continuation(context: DraftingContext) -> ColumnInitDrafter:
    """Builds `start=recycle` for columns."""
    target = context.target
    init = ColumnRecycle(context.batch_size, context.layout.cell[0], target.vocab_size, target.device)
    return ColumnInitDrafter(init)


def build(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipe `recycle` for columns."""
    return Jacobi(continuation(context), None, context.target.vocab_size)
