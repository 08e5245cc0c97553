"""What a call of a speech or music pipeline gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils import ModelOutput

from mmspec.decoding.stats import Stats

_GIVEN: Any = None  # every call gives all fields; transformers wants a default for all but one


@dataclass
class Sound(ModelOutput):
    """One text as sound, by key or by attribute, as the pipelines of transformers give it.

    Attributes:
        audio: float32 [channels, samples] in -1..1.
        sampling_rate: Samples per second.
        tokens: int64 [n] of each part that was decoded apart, such as a sentence.
        seed: Of the text.
        notes: What the caller may want to know, such as words that were spelled.
        stats: What the whole call cost, all its texts together.
    """

    audio: NDArray[np.float32] = _GIVEN
    sampling_rate: int = _GIVEN
    tokens: list[Tensor] = _GIVEN
    seed: int = _GIVEN
    notes: list[str] = _GIVEN
    stats: Stats = _GIVEN

    @property
    def seconds(self) -> float:
        """How long it sounds."""
        return self.audio.shape[-1] / self.sampling_rate


class Sounds(list[Sound]):
    """Several texts as sound, and what they cost together.

    Args:
        sounds: One per text.
        stats: Of the call.
    """

    def __init__(self, sounds: list[Sound], stats: Stats) -> None:
        super().__init__(sounds)
        self.stats = stats

    @property
    def audio(self) -> list[Any]:
        """The sound of each text, float32 [channels, samples]."""
        return [sound.audio for sound in self]
