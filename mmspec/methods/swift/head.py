"""Which layers of a model are skipped when it drafts for itself; see `mmspec.methods.swift.drafter`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.heads.head import Head, ToySizes


class SkippedLayers(Head):
    """The layers of a model in the order in which they are skipped.

    Args:
        vocab_size: Size V of the model's vocabulary.
        hidden_size: Width of the model's features, by which the choice for another model is refused.
        skipped_layers: Number of layers of the model, L.

    Attributes:
        order: int64 [L - 1], the layer that is missed least first.
    """

    kind = "swift"

    def __init__(self, vocab_size: int, hidden_size: int, skipped_layers: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.layers = skipped_layers
        self.order: Tensor
        self.register_buffer("order", torch.arange(skipped_layers - 1))

    def skip(self, share: float) -> tuple[int, ...]:
        """The layers to skip, ascending: a share of all, at least one, and never all."""
        count = min(max(round(share * self.layers), 1), self.layers - 1)
        return tuple(sorted(int(layer) for layer in self.order[:count]))

    @classmethod
    def toy(cls, sizes: ToySizes) -> SkippedLayers:
        return cls(sizes.vocab_size, sizes.hidden_size, sizes.layers)

    def check_saved(self, folder: str, tensors: Mapping[str, Tensor]) -> None:
        if sorted({*tensors["order"].tolist()} - set(range(self.layers))):
            raise ModelError(f"drafter {folder!r} skips layers that a model of {self.layers} layers does not have")
