"""Parts of texts for Bark, and voices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BarkVoice:
    """A voice to continue, which transformers calls a history prompt.

    Attributes:
        semantic: int64 [S].
        codes: int64 [codebooks, F], of all codebooks.
        coarse: int64 [2, F'], of the first two; presets have some codes more or less.
        source: What it was read from. Rows with voices from the same object are decoded together.
    """

    semantic: Tensor
    codes: Tensor
    coarse: Tensor
    source: object

    def history_prompt(self, device: torch.device) -> dict[str, Tensor]:
        """As `BarkModel.generate` takes it."""
        prompts = {"semantic_prompt": self.semantic, "coarse_prompt": self.coarse, "fine_prompt": self.codes}
        return {name: prompt.to(device) for name, prompt in prompts.items()}


@dataclass(frozen=True)
class BarkPart:
    """A part of a text.

    Attributes:
        ids: int64 [1, T], its ids, padded on the right.
        mask: int64 [1, T], 0 on padding.
        voice: The voice to continue; None samples a voice.
    """

    ids: Tensor
    mask: Tensor
    voice: BarkVoice | None
