"""What all trained drafters have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class ToySizes:
    """The sizes of a head for a toy model of `mmspec.testing`.

    Attributes:
        vocab_size: V.
        hidden_size: D, the width of the features.
        width: Tokens per image row, for a 2-D rotary embedding; None for a 1-D one.
        layers: Layers of the target.
        frame: Tokens of a frame.
    """

    vocab_size: int
    hidden_size: int
    width: int | None
    layers: int
    frame: int


class Head(nn.Module, PyTorchModelHubMixin):
    """A trained drafter of one target: a network on its features, or what else is loaded beside it.

    Attributes:
        kind: Its name among the drafters of a model, such as "eagle".
        vocab_size: V of the target.
        hidden_size: Width of the target's features.
        codebooks: Tokens of a frame that it predicts at once; 1 for heads that predict single tokens.
    """

    kind: str
    codebooks: int = 1
    vocab_size: int
    hidden_size: int

    @classmethod
    def toy(cls, sizes: ToySizes) -> Self:
        """One with random weights for a toy model, whose output depends on all of its input."""
        raise NotImplementedError

    def check_saved(self, folder: str, tensors: Mapping[str, Tensor]) -> None:
        """Checks the values of the tensors of a saved head, whose shapes are right.

        Raises:
            ModelError: If one is not allowed.
        """


def randomized(module: ModuleT, std: float) -> ModuleT:
    """The same module, with normal weights of a standard deviation."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return module
