"""The protocol of a draft runner, which runs a draft model or a head and returns the draft distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
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

    def root(self, state: BatchState) -> Probs:
        """Starts a new tree; returns the distribution after the last token of each row, float32 [B, 1, V]."""
        ...

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
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


@runtime_checkable
class SharesUpload(DraftRunner, Protocol):
    """A runner that needs numbers of the host on the device for its root, which are copied with those of the window."""

    def root_arrays(self, state: BatchState) -> list[NDArray[np.int64]]:
        """The numbers for the next root, in the order in which `take_arrays` takes them."""
        ...

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        """Sets the numbers of the next call of `root`, with their copies on the device."""
        ...


@runtime_checkable
class BlockwiseRunner(DraftRunner, Protocol):
    """A runner that predicts a whole window in the call of its root, and is told the window before."""

    def reveal(self, tokens: Tensor, reused: Numbers) -> None:
        """Sets the window of the next root.

        Args:
            tokens: int64 [B, count], the tokens after the root; those that are not reused have no meaning.
            reused: [B], the number of drafts of each row that are reused, from the first one. Distributions
                at their positions are not used; those after them may depend on them.
        """
        ...
