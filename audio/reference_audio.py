"""A sound that a model goes by: a melody, or a voice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError


@dataclass(frozen=True)
class ReferenceAudio:
    """A sound as it was recorded.

    Attributes:
        audio: float32 [channels, samples] in -1..1.
        sampling_rate: Samples per second.
        text: What is said in it, or None.

    Raises:
        ArgumentError: For what is no sound.
    """

    audio: NDArray[np.float32]
    sampling_rate: int
    text: str | None = None

    def __post_init__(self) -> None:
        shape = list(np.shape(self.audio))
        if len(shape) != 2 or not shape[0] or not shape[1] or not np.isfinite(self.audio).all():
            raise ArgumentError(f"audio has shape {shape}; it must be [channels, samples], of finite numbers")
        if self.sampling_rate < 1:
            raise ArgumentError(f"sampling_rate={self.sampling_rate} is not allowed; it must be 1 or more")

    def mono(self, sampling_rate: int) -> Tensor:
        """One channel, float32 [samples]: all mixed, at another rate where that is needed.

        Raises:
            ArgumentError: When the rate is another one and torchaudio is not there to change it.
        """
        mixed = torch.from_numpy(np.asarray(self.audio, dtype=np.float32).mean(0))
        if sampling_rate == self.sampling_rate:
            return mixed
        try:
            from torchaudio.functional import resample
        except (ImportError, OSError, RuntimeError) as error:  # one that was built for another torch fails otherwise
            raise ArgumentError(
                f"sampling_rate={self.sampling_rate} is not the model's {sampling_rate}, and torchaudio, which would "
                f"change it, cannot be imported: {error}"
            ) from None
        return resample(mixed, self.sampling_rate, sampling_rate)

    def said(self, model: str) -> str:
        """The text.

        Raises:
            ArgumentError: When there is none.
        """
        if self.text is None or not self.text.strip():
            raise ArgumentError(f"text of the voice is missing; {model} goes on from what it says")
        return self.text.strip()
