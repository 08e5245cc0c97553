"""Rows of models whose steps are their own, ready to be decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec.decoding.assembly import NO_RESOURCES
from mmspec.decoding.closed_batch import ClosedBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.recipes import Recipe


@dataclass(frozen=True)
class PreparedClosed:
    """Rows of a `ClosedBatch` that are ready to be decoded; a `mmspec.batching.request.PreparedBatch`.

    Attributes:
        make: Makes the batch from the seeds of the rows and what to show.
        resources: None for drafters.
        recipe: None: requests keep their recipes.
    """

    make: Callable[[Sequence[int], Watch], ClosedBatch]
    resources: DraftResources = NO_RESOURCES
    recipe: Recipe | None = None
    tokens: Callable[[Tensor], Tensor] | None = None

    def batch(self, recipe: Recipe, seeds: Sequence[int], watch: Watch = UNWATCHED) -> ClosedBatch:
        """The batch, before its first call. Entropies are not measured."""
        return self.make(seeds, watch)
