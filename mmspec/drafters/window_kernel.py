"""Kernels that draft whole windows, and what they may reuse of the window before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import WindowRNG

if TYPE_CHECKING:
    from mmspec.kernels.softmax_stats import SoftmaxStats
    from mmspec.kernels.token_init import Previous


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
