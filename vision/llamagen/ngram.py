"""An n-gram table that is saved and loaded with a pipeline."""

from __future__ import annotations

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.drafters.ngram import NGramTable


class NGramTokenTable(ModelMixin, ConfigMixin):
    """Holds `best` int16 [V + 1, V]: the likeliest token for each upper and left neighbour (see `NGramTable`)."""

    best: Tensor
    config_name = "config.json"

    @register_to_config
    def __init__(self, vocab_size: int = 1000) -> None:
        super().__init__()
        self.register_buffer("best", torch.zeros(vocab_size + 1, vocab_size, dtype=torch.int16))

    def ngrams(self) -> NGramTable:
        """The table as drafters use it."""
        return NGramTable(self.best)
