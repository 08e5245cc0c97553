"""What gives a drafter the laws that it draws from: a smaller model, or a head on the target's features."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.rows import Rows
from mmspec.tree import Tree


class Outcome(Protocol):
    """What became of a draft: see `mmspec.verify.Verdict` and `mmspec.tree_verify.TreeVerdict`."""

    accepted: NDArray[np.int64]

    @property
    def path(self) -> NDArray[np.int64]:
        """Host int64 [B, D], the entries of the accepted path."""
        ...


class Reader(Protocol):
    """Gives laws behind the last token of each row, and behind the nodes of a tree that grows from there.

    `calls` counts calls of a network of its own.
    """

    @property
    def calls(self) -> int: ...

    def root(self, rows: Rows) -> Tensor:
        """The law behind the last token of each row, float32 [B, 1, V]; a new tree begins."""
        ...

    def nodes(self, rows: Rows, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        """The laws behind nodes `first` and following, float32 [B, W, V], whose tokens are int64 [B, W].

        Nodes come in order; those before `first` have been read.
        """
        ...

    def observe(self, verdict: Outcome, rows: Rows) -> None:
        """Learns which entries were accepted, before the target reads on; `rows` stand where the window began."""
        ...

    def keep(self, rows: list[int]) -> None:
        """Drops all rows but these."""
        ...
