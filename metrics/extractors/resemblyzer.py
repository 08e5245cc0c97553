"""Resemblyzer's voice embeddings, for speaker similarity; the package holds the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmspec.importing import extra
from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.features import Features

RATE = 16_000


class ResemblyzerExtractor:
    """The voice encoder of Resemblyzer (GE2E, Wan et al. 2018), with the package's own preparation of recordings.

    Args:
        where: Not used: the package has one network.
        device: Where the network runs.

    Raises:
        ArgumentError: If the package is not installed.
    """

    name = "resemblyzer"

    def __init__(self, where: str, device: str = "cpu") -> None:
        with extra("resemblyzer", f"extractor {self.name!r}"):
            from resemblyzer import VoiceEncoder, preprocess_wav

            self._encoder = VoiceEncoder(device, verbose=False)
        self._prepared = preprocess_wav
        self.fingerprint = fingerprint_of(self._encoder)

    def __call__(self, audio: Sequence[Waveform]) -> Features:
        """Features float64 [B, 256] of length 1, one recording at a time, as the package reads them."""
        return np.stack([self._encoder.embed_utterance(self._of(clip)) for clip in audio]).astype(np.float64)

    def _of(self, clip: Waveform) -> Any:
        """The recording at the package's level, without long silences; silence alone has no level."""
        wave = np.clip(clip.at(RATE), -1, 1).astype(np.float32)
        return self._prepared(wave) if wave.any() else wave
