"""The recognizer that ships with the voice `spoken`: it transcribes that voice without a download."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmspec.audio.spoken.config import SAMPLING_RATE
from mmspec.audio.spoken.recognizer import embedded_recognizer, merge_homophones, normalize_peak, token_bands
from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.features import Features


class SpokenExtractor:
    """The embedded recognizer. Its lexicon is that of the voice: speech of other models it transcribes wrongly."""

    name = "spoken"

    def __init__(self) -> None:
        self.recognizer = embedded_recognizer().eval()
        self.fingerprint = fingerprint_of(self.recognizer)
        self._hidden = torch.empty(0)
        self.recognizer.leave.register_forward_pre_hook(self._keep)

    @torch.no_grad()
    def __call__(self, audio: Sequence[Waveform]) -> Features:
        """Mean and standard deviation over time of the last hidden layer, float64 [B, 2 D]."""
        found = []
        for clip in audio:
            bands = token_bands(normalize_peak(clip.at(SAMPLING_RATE).astype(np.float32)))
            self.recognizer(torch.from_numpy(bands)[None])
            x = self._hidden[0].double()
            found.append(torch.cat([x.mean(1), x.std(1, correction=0)]).numpy())
        return np.stack(found)

    def _keep(self, module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        (self._hidden,) = inputs

    def transcribe(self, audio: Sequence[Waveform]) -> list[str]:
        """The words of each recording."""
        return [self.recognizer.transcribe(c.at(SAMPLING_RATE).astype(np.float32), SAMPLING_RATE) for c in audio]

    def expected(self, text: str) -> str:
        """The transcript of a perfect recording: each word as the one that stands for its homophones."""
        return merge_homophones(text)


def load(where: str, device: str) -> SpokenExtractor:
    """The embedded recognizer, which needs no weights and runs on the CPU."""
    return SpokenExtractor()
