"""What gives a drafter the distributions that it draws from: a smaller model, or a head on the target's features."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class DraftRunner(Protocol):
    """Gives distributions after the last token of each row, and after the nodes of a tree that grows from there.

    `calls` counts calls of a network of its own.
    """

    @property
    def calls(self) -> int: ...

    def root(self, state: BatchState) -> Tensor:
        """The distribution after the last token of each row, float32 [B, 1, V]; a new tree begins."""
        ...

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        """The distributions after nodes `first` and following, float32 [B, W, V], whose tokens are int64 [B, W].

        Nodes come in order; those before `first` have been read.
        """
        ...

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        """Learns which entries were accepted, before the target reads on; `state` stand where the window began."""
        ...

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        ...
