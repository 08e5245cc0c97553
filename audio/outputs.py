"""Outputs of speech and music pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils import ModelOutput

from mmspec.decoding.stats import Stats

_REQUIRED: Any = None  # every call sets all fields; `ModelOutput` requires defaults for all but the first


@dataclass
class AudioOutput(ModelOutput):
    """The audio of one text, by key or by attribute, with the keys of transformers' pipelines.

    Attributes:
        audio: float32 [channels, samples] in -1..1.
        sampling_rate: Samples per second.
        tokens: int64 [n] of each part that was decoded separately, such as a sentence.
        seed: The seed of the text.
        notes: Remarks for the caller, such as words that were spelled.
        stats: Statistics of the whole call, for all of its texts together.
    """

    audio: NDArray[np.float32] = _REQUIRED
    sampling_rate: int = _REQUIRED
    tokens: list[Tensor] = _REQUIRED
    seed: int = _REQUIRED
    notes: list[str] = _REQUIRED
    stats: Stats = _REQUIRED

    @property
    def seconds(self) -> float:
        """Duration of the audio."""
        return self.audio.shape[-1] / self.sampling_rate


class AudioOutputs(list[AudioOutput]):
    """The audio of several texts, and the statistics of the call.

    Args:
        outputs: One per text.
        stats: Statistics of the call.
    """

    def __init__(self, outputs: list[AudioOutput], stats: Stats) -> None:
        super().__init__(outputs)
        self.stats = stats

    @property
    def audio(self) -> list[Any]:
        """The audio of each text, float32 [channels, samples]."""
        return [output.audio for output in self]
