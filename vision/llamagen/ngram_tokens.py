"""An n-gram table as a component of a pipeline."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.drafters.ngram import NGramTable
from mmspec.vision.component import Component, stores_arguments


class NGramTokens(Component):
    """A saved n-gram table.

    Args:
        vocab_size: V.

    Attributes:
        best: int16 [V + 1, V], the most likely token for each upper and left neighbor; see
            `mmspec.drafters.ngram.NGramTable`.
    """

    saved_as = "NGramTokenTable"
    best: Tensor

    @stores_arguments
    def __init__(self, vocab_size: int = 1000) -> None:
        super().__init__()
        self.register_buffer("best", torch.zeros(vocab_size + 1, vocab_size, dtype=torch.int16))

    def ngrams(self) -> NGramTable:
        """The table in the form that drafters use."""
        return NGramTable(self.best)
