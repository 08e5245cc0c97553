"""The recogniser that ships with the voice `spoken`: it hears the words of that voice, without a download."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmspec.audio.spoken.config import SAMPLING_RATE
from mmspec.audio.spoken.recogniser import embedded_recogniser, level, sounds_alike, token_bands
from mmspec.metrics.extractors.audio import Sound
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.features import Features


class SpokenExtractor:
    """It knows the words of its own lexicon only: what other models say, it mishears."""

    name = "spoken"

    def __init__(self) -> None:
        self.recogniser = embedded_recogniser().eval()
        self.fingerprint = fingerprint_of(self.recogniser)
        self._hidden = torch.empty(0)
        self.recogniser.leave.register_forward_pre_hook(self._keep)

    @torch.no_grad()
    def __call__(self, sounds: Sequence[Sound]) -> Features:
        """Mean and deviation over time of its last hidden layer, float64 [B, 2 D]."""
        found = []
        for sound in sounds:
            bands = token_bands(level(sound.at(SAMPLING_RATE).astype(np.float32)))
            self.recogniser(torch.from_numpy(bands)[None])
            x = self._hidden[0].double()
            found.append(torch.cat([x.mean(1), x.std(1, correction=0)]).numpy())
        return np.stack(found)

    def _keep(self, module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        (self._hidden,) = inputs

    def transcribe(self, sounds: Sequence[Sound]) -> list[str]:
        """The words heard in each recording."""
        return [self.recogniser.transcribe(s.at(SAMPLING_RATE).astype(np.float32), SAMPLING_RATE) for s in sounds]

    def wanted(self, text: str) -> str:
        """The words of a text as `transcribe` gives them when it hears all of them."""
        return sounds_alike(text)
