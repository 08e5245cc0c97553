"""Drafts of a whole window by one Triton kernel: reused tokens, and token initialization of the slots after them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.drafters.ngram import NGramTable
from mmspec.drafters.token_init import LearnedTable, RandomToken, repeat_left, repeat_up
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import INIT, WindowRNG

LONGEST = 256  # positions of a window, whose drafts one program holds


@runtime_checkable
class WindowKernel(Protocol):
    """Drafts a whole window in one launch, as `mmspec.drafters.jacobi.Jacobi` and its continuation do in torch."""

    def draft(
        self,
        state: BatchState,
        draws: WindowRNG,
        p: Probs,
        tokens: Tensor | None,
        q: Probs | None,
        accepted: Numbers,
    ) -> Draft | None:
        """The drafts of a window.

        Args:
            state: The batch.
            draws: The random numbers of the window.
            p: The target distributions of the previous window.
            tokens: Its tokens after the coupling, int64 [B, W']; None if none are reused.
            q: The distributions that they follow, [B, W', V]; None if none are reused.
            accepted: [B], the number of its drafts that were accepted.

        Returns:
            None where the kernels do not run.
        """
        ...


class ForcedOnDevice:
    """The tokens that positions are forced to, on the device: copied once for each constraint."""

    def __init__(self) -> None:
        self._known: tuple[Constraint, Tensor | None] | None = None  # of the latest constraint

    def __call__(self, state: BatchState) -> Tensor | None:
        """Of a batch, int64 [N] or [B, N]; None if all are free."""
        constraint = state.layout.constraint
        if constraint is None:
            return None
        if self._known is None or self._known[0] is not constraint:
            tokens = constraint.forced.tokens
            forced = torch.from_numpy(tokens).to(state.device) if (tokens >= 0).any() else None
            self._known = constraint, forced
        return self._known[1]


@dataclass
class KernelDrafts:
    """A token initialization that `mmspec.kernels.token_init` knows.

    Attributes:
        kind: "left", "up", "random", "table" or "learned".
        table: Of "table", integer [V + 1, V].
        learned: Of "learned".
    """

    kind: str
    table: Tensor | None = None
    learned: LearnedTable | None = None

    def __post_init__(self) -> None:
        self._forced = ForcedOnDevice()

    def draft(
        self,
        state: BatchState,
        draws: WindowRNG,
        p: Probs,
        tokens: Tensor | None,
        q: Probs | None,
        accepted: Numbers,
    ) -> Draft | None:
        """See `WindowKernel`."""
        if isinstance(p, Tensor) or isinstance(q, Tensor):
            return None
        if state.layout.cell or draws.positions.host.shape[1] > LONGEST:
            return None
        # Imported here: Triton may be missing.
        from mmspec.kernels import token_init
        from mmspec.sampling.lazy_probs import LazyProbs, lazy

        if self.table is not None and self.table.shape[1] != p.shape[-1]:
            return None
        previous = None
        if tokens is not None and q is not None:
            stats = lazy(q).stats
            counts = accepted.on(state.device)
            previous = token_init.Previous(tokens, stats.floats, stats.ints, counts)
        else:
            stats = lazy(p).stats
        kind = ("left", "up", "random", "table", "learned").index(self.kind)  # in the order of the kernel's numbers
        positions = draws.positions.on(state.device)
        # The others need no random numbers, which are then computed while the model runs.
        u = draws[INIT] if self.kind == "random" else None
        found = token_init.draft_window(
            *state.storage(), positions, u, kind, state.layout.width or 0, p.shape[-1],
            self.table if self.learned is None else self.learned.table, self._forced(state), previous,
        )  # fmt: skip
        drafted = LazyProbs.known(replace(stats, floats=found.floats, ints=found.ints))
        return Draft(found.window[:, 1:], drafted, found.window)


def kernel_drafts(init: object) -> KernelDrafts | None:
    """The same initialization in the kernel; None if the kernel does not know it."""
    if isinstance(init, NGramTable):
        return KernelDrafts("table", init.best.contiguous())
    if isinstance(init, LearnedTable):
        return KernelDrafts("learned", learned=init)
    kind = "left" if init is repeat_left else "up" if init is repeat_up else None
    if isinstance(init, RandomToken):
        kind = "random"
    return None if kind is None else KernelDrafts(kind)
