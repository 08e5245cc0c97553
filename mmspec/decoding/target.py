"""What the loop needs of a model. A model is wrapped to this shape; the loop never asks which model it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.sampling.acceptance import Accept, FeatureRule
from mmspec.sampling.logits import Logits
from mmspec.sampling.tree import Tree


class Target(Protocol):
    """A model with a prompt already given, decoding a batch of rows that advance at their own pace.

    A call says where each row's window starts; whatever the target remembers of that position and later ones is
    thereby rolled back. With guidance, the unconditional rows are the target's own affair: they see the same tokens.
    """

    vocab_size: int
    device: torch.device

    def prefill(self) -> Logits:
        """Reads the prompts; returns the logits of position 0, [B, 1, V]."""
        ...

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        """Reads a window and returns the logits of the position after each of its tokens.

        Args:
            tokens: int64 [B, W].
            at: Host int64 [B]; `tokens[b, i]` has position `at[b] + i`. The last windows of a row reach past the end of
                the sequence; logits there are ignored but must be numbers.
        """
        ...

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these; they keep their order."""
        ...


@runtime_checkable
class FeatureTarget(Target, Protocol):
    """A target that shows its features, for drafters that start from them.

    Features are hidden states as the head reads them, after the final norm: [R, W, D], of all B rows, and with
    guidance of their unconditional sides after them.
    """

    def features(self) -> Tensor:
        """Those of the last call's window, one for each of its tokens, or entries of a tree; of a prompt, its slots."""
        ...

    def head(self, features: Tensor) -> Tensor:
        """Logits [R, W, V] of features [R, W, D]."""
        ...


@runtime_checkable
class TreeTarget(Target, Protocol):
    """A target that reads trees.

    It keeps what it remembers of the entries of a window apart, one after the other from the root's position on;
    `settle` then puts the path that was accepted where the committed tokens belong.
    """

    def forward_tree(self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0) -> Logits:
        """Reads entries `first` to `first + W - 1` of a window and returns the logits of what follows each of them.

        An entry follows the committed tokens before the root, and the entries it hangs from. Those before `first` were
        read by earlier calls; a root that `forward` has read counts as read.

        Args:
            tokens: int64 [B, W].
            at: Host int64 [B], the root's position. Positions after the end count as in `forward`.
            tree: At least the entries up to the last one read.
        """
        ...

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        """Rolls back to one path: its i-th entry becomes the token at position `at + 1 + i`.

        Args:
            at: As the window was read.
            path: Host int64 [B, D]; entry i + 1 at i leaves that position as it is.
        """
        ...


@dataclass(frozen=True)
class EarlyExit:
    """What of a target reads a window.

    Attributes:
        layers: How many of its layers, from the first.
        guided: Whether its unconditional rows read as well; of no account where it has none.
    """

    layers: int
    guided: bool


@runtime_checkable
class SupportsEarlyExit(Target, Protocol):
    """A target whose first layers can be asked alone. `layers` counts all of them."""

    layers: int

    def forward(self, tokens: Tensor, at: NDArray[np.int64], part: EarlyExit | None = None) -> Logits:
        """As `mmspec.decoding.target.Target` has it; with a `part`, by that alone.

        Its layers write their keys and values where those of a whole call go, and leave those of later layers alone: a
        whole call reads all tokens from the first one on that only a part has read.
        """
        ...


@runtime_checkable
class SupportsTreeEarlyExit(SupportsEarlyExit, TreeTarget, Protocol):
    """One that reads trees as well."""

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, part: EarlyExit | None = None
    ) -> Logits:
        """As `mmspec.decoding.target.TreeTarget` has it; with a `part`, by that alone."""
        ...


def bind_features(rule: Accept, target: object, batch_size: int) -> Accept:
    """The rule for the call that a target has just answered for so many rows; one that does not look stays as it is.

    Raises:
        ArgumentError: When the target shows no features.
    """
    if not isinstance(rule, FeatureRule):
        return rule
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(f"the acceptance rule looks at features, and {type(target).__name__} shows none")
    return replace(rule, features=target.features()[:batch_size])
