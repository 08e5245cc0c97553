"""Kernels that draft whole windows, and what they may reuse of the window before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import INIT, WindowRNG

if TYPE_CHECKING:
    from mmspec.kernels.softmax_stats import SoftmaxStats
    from mmspec.kernels.token_init import Previous

LONGEST = 256  # positions of a window, whose drafts one program holds


@dataclass(frozen=True)
class Reusable:
    """The previous window, for the drafts of the next one.

    Attributes:
        p: Its target distributions.
        tokens: Its tokens after the coupling, int64 [B, W', *cell]; None if none are reused.
        q: The distributions that they follow, [B, W', *cell, V]; None if none are reused.
        accepted: [B], the number of its drafts that were accepted.
    """

    p: Probs
    tokens: Tensor | None
    q: Probs | None
    accepted: Numbers

    @property
    def is_dense(self) -> bool:
        """Whether a distribution is written out, which the kernels do not read."""
        return isinstance(self.p, Tensor) or isinstance(self.q, Tensor)

    def for_kernels(self, device: torch.device) -> tuple[SoftmaxStats, Previous | None]:
        """What the kernels read: numbers of distributions, and the window that is reused, or None."""
        # Imported here: Triton may be missing.
        from mmspec.kernels.token_init import Previous
        from mmspec.sampling.lazy_probs import lazy

        if self.tokens is None or self.q is None:
            return lazy(self.p).stats, None
        stats = lazy(self.q).stats
        return stats, Previous(self.tokens, stats.floats, stats.ints, self.accepted.on(device))


@runtime_checkable
class WindowKernel(Protocol):
    """Drafts a whole window in one launch, as `mmspec.drafters.jacobi.Jacobi` and its continuation do in torch."""

    def draft(self, state: BatchState, draws: WindowRNG, previous: Reusable) -> Draft | None:
        """The drafts of a window.

        Args:
            state: The batch.
            draws: The random numbers of the window.
            previous: The window before.

        Returns:
            None where the kernels do not run.
        """
        ...


class HasTable(Protocol):
    """A `mmspec.drafters.token_init.LearnedTable`, as far as a kernel reads it."""

    table: Tensor


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
    """A token initialization that `mmspec.kernels.token_init` knows; a `WindowKernel`.

    Attributes:
        kind: "left", "up", "random", "table" or "learned".
        table: Of "table", integer [V + 1, V].
        learned: Of "learned".
    """

    kind: str
    table: Tensor | None = None
    learned: HasTable | None = None

    def __post_init__(self) -> None:
        self._forced = ForcedOnDevice()

    def draft(self, state: BatchState, draws: WindowRNG, previous: Reusable) -> Draft | None:
        if previous.is_dense or state.layout.cell or draws.positions.host.shape[1] > LONGEST:
            return None
        # Imported here: Triton may be missing.
        from mmspec.kernels import token_init
        from mmspec.sampling.lazy_probs import LazyProbs

        vocab_size = previous.p.shape[-1]
        if self.table is not None and self.table.shape[1] != vocab_size:
            return None
        stats, reused = previous.for_kernels(state.device)
        kind = ("left", "up", "random", "table", "learned").index(self.kind)  # in the order of the kernel's numbers
        positions = draws.positions.on(state.device)
        # The others need no random numbers, which are then computed while the model runs.
        u = draws[INIT] if self.kind == "random" else None
        found = token_init.draft_window(
            *state.storage(), positions, u, kind, state.layout.width or 0, vocab_size,
            self.table if self.learned is None else self.learned.table, self._forced(state), reused,
        )  # fmt: skip
        drafted = LazyProbs.known(replace(stats, floats=found.floats, ints=found.ints))
        return Draft(found.window[:, 1:], drafted, found.window)
