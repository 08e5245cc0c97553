"""Token recycling (Luo et al. 2024, arXiv 2408.08696) over two neighbors: an n-gram table built while decoding.

Every target call gives the distribution of each slot of its window, whether its draft was accepted or not. The most
likely token of each slot is stored under its left and its upper neighbor (in a stream, the two tokens before it), and
drafted when the same pair occurs again. Each row has its own table, so that it does not depend on its batch. A draft is
a function of past calls and is tested with independent random numbers, so that decoding stays exact.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.jacobi import Jacobi
from mmspec.drafters.token_init import (
    InitDrafter,
    TokenInit,
    forcing_frames,
    host_version,
    neighbors_of_window,
    repeat_left,
    repeat_up,
    table_entry,
)
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG

_ENTRIES = 2**15  # the largest table of a row; pairs that share an entry overwrite each other


class Recycle:
    """A token initialization from the target distributions of earlier calls.

    Args:
        batch_size: B.
        vocab_size: V.
        fallback: The initialization for pairs of neighbors that have not occurred.
        device: Of the tokens.
    """

    ROWS = ("table",)

    def __init__(self, batch_size: int, vocab_size: int, fallback: TokenInit, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._fallback = fallback
        self._host_fallback = host_version(fallback)
        self._stored: Probs | None = None  # the distributions that `update` was called with last
        entries = min(_ENTRIES, (vocab_size + 1) * vocab_size)
        self.table = torch.full((batch_size, entries), -1, dtype=torch.int32, device=device)

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        found = self.table.gather(1, self._entry(left, up)[:, None])[:, 0].long()
        return torch.where(found >= 0, found, self._fallback(left, up, u))

    def on_host(self, left: NDArray[np.int64], up: NDArray[np.int64], u: NDArray[np.float32]) -> NDArray[np.int64]:
        entry = ((up + 1) * self._vocab_size + left) % self.table.shape[1]
        found = self.table.numpy()[np.arange(len(left)), entry]
        return np.where(found >= 0, found, self._host_fallback(left, up, u))

    def update(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Stores the most likely token of each slot that a row has; `state` still ends where the window began.

        What a window stores does not depend on how much of it was accepted, so that this is done before the host knows;
        a second call for the same window does nothing.
        """
        if verdict.p is self._stored or state.length.min() == 0:
            return  # the first token has no neighbors
        self._stored = verdict.p
        if not isinstance(verdict.p, Tensor) and not state.layout.cell and self.table.is_contiguous():
            self._update_by_kernel(verdict, state, draws)
            return
        entry, best = self._entry(*neighbors_of_window(verdict, state)), dense(verdict.p).argmax(-1).int()
        own = state.own_slots(draws.positions)
        for slot in range(entry.shape[1]):  # one after the other: of slots that share an entry the last one is stored
            here = entry[:, slot : slot + 1]
            new = torch.where(own[:, slot : slot + 1], best[:, slot : slot + 1], self.table.gather(1, here))
            self.table.scatter_(1, here, new)

    def _update_by_kernel(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        from mmspec.methods.recycle.kernel import recycle
        from mmspec.sampling.lazy_probs import lazy

        positions = draws.positions.on(state.device)
        drafts = verdict.draft.tokens if verdict.p.shape[1] > 1 else verdict.tokens[:, :0]
        limits, line = state.limits().on(state.device), state.layout.width or 0
        recycle(
            *state.storage(), positions, limits, drafts, lazy(verdict.p).stats.ints, self.table, line, self._vocab_size
        )

    def _entry(self, left: Tensor, up: Tensor) -> Tensor:
        return table_entry(left, up, self._vocab_size, self.table.shape[1])


def continuation(context: DraftingContext) -> InitDrafter:
    """Builds `start=recycle`."""
    layout, target = context.layout, context.target
    above = repeat_up if layout.width else repeat_left
    init = Recycle(context.batch_size, target.vocab_size, above, target.device)
    return InitDrafter(init, forcing_frames(target))


def build(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipe `recycle`."""
    return Jacobi(continuation(context), None, context.target.vocab_size)
