"""Whisper: what a recogniser hears, for word and character error rates, and its encoder's features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmspec.metrics.extractors.audio import Sound
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.pretrained import load
from mmspec.metrics.features import Features


class WhisperExtractor:
    """A `WhisperForConditionalGeneration`; error rates of speech are mostly told with openai/whisper-large-v3.

    Args:
        where: A folder or Hub id with model, feature extractor and tokenizer.
        device: Where it runs.

    Raises:
        ModelError: When one of them cannot be loaded.
    """

    name = "whisper"

    def __init__(self, where: str, device: str = "cpu") -> None:
        from transformers import AutoFeatureExtractor, AutoTokenizer, WhisperForConditionalGeneration

        self.model = load(WhisperForConditionalGeneration, where, self.name).float().eval().to(device)
        self.processor = load(AutoFeatureExtractor, where, self.name)
        self.tokenizer = load(AutoTokenizer, where, self.name)
        self.fingerprint = fingerprint_of(self.model)

    @torch.no_grad()
    def __call__(self, sounds: Sequence[Sound]) -> Features:
        """The mean of the encoder's states over the seconds that it reads (30), float64 [B, D]."""
        states = self.model.model.encoder(self._inputs(sounds)).last_hidden_state
        return np.asarray(states.mean(1).double().cpu().numpy())

    @torch.no_grad()
    def transcribe(self, sounds: Sequence[Sound]) -> list[str]:
        """The words heard in each recording, greedily; longer ones than it reads (30 s) go in as pieces of that."""
        heard = []
        for sound in sounds:
            piece = self.processor.chunk_length * sound.rate
            parts = [Sound(sound.wave[i : i + piece], sound.rate) for i in range(0, len(sound.wave), piece)]
            ids = self.model.generate(self._inputs(parts))
            heard.append(" ".join(self.tokenizer.batch_decode(ids, skip_special_tokens=True)).strip())
        return heard

    def wanted(self, text: str) -> str:
        """The text itself: what does not count in either is left out where they are compared."""
        return text

    def _inputs(self, sounds: Sequence[Sound]) -> torch.Tensor:
        rate = self.processor.sampling_rate
        waves = [sound.at(rate).astype(np.float32) for sound in sounds]
        found: torch.Tensor = self.processor(waves, sampling_rate=rate, return_tensors="pt").input_features
        return found.to(self.model.device)
