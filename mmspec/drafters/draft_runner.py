"""The protocol of a draft runner, which runs a draft model or a head and returns the draft distributions."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class DraftRunner(Protocol):
    """Returns the draft distributions after the last token of each row and after the nodes of a growing tree.

    A chain is a tree without branches.
    """

    @property
    def calls(self) -> int:
        """Calls of the runner's own network."""
        ...

    def root(self, state: BatchState) -> Tensor:
        """Starts a new tree; returns the distribution after the last token of each row, float32 [B, 1, V]."""
        ...

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        """Reads the nodes `first` to `first + W - 1`; returns the distribution after each, float32 [B, W, V].

        Nodes are read in order: all nodes before `first` have been read by earlier calls.

        Args:
            state: The batch; it ends with the root.
            tokens: int64 [B, W].
            tree: Contains at least the nodes up to the last one read.
            first: The first node to read; the root is entry 0.
        """
        ...

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        """Called after verification, before the batch advances: `state` still ends where the window began."""
        ...

    def select_rows(self, row_ids: list[int]) -> None:
        """Keeps these rows, in this order, and drops all others."""
        ...

    def join(self, other: Any, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """Takes in the rows of another runner; see `mmspec.decoding.loop.JoinableDrafter`."""
        ...
