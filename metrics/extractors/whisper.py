"""Whisper: transcripts for word and character error rates, and its encoder's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.pretrained import PretrainedExtractor
from mmspec.metrics.features import Features


class WhisperExtractor(PretrainedExtractor):
    """A `WhisperForConditionalGeneration`; most published error rates of speech use openai/whisper-large-v3."""

    name = "whisper"
    model_class = "WhisperForConditionalGeneration"
    processor_class = "AutoFeatureExtractor"
    reads_text = True

    @torch.no_grad()
    def __call__(self, audio: Sequence[Waveform]) -> Features:
        """The mean of the encoder's states over its input length (30 s), float64 [B, D]."""
        states = self.model.model.encoder(self._inputs(audio)).last_hidden_state
        return np.asarray(states.mean(1).double().cpu().numpy())

    @torch.no_grad()
    def transcribe(self, audio: Sequence[Waveform]) -> list[str]:
        """Greedy transcripts; a recording longer than the input (30 s) is transcribed in pieces of that length."""
        transcripts = []
        for clip in audio:
            piece = self.processor.chunk_length * clip.rate
            parts = [Waveform(clip.wave[i : i + piece], clip.rate) for i in range(0, len(clip.wave), piece)]
            ids = self.model.generate(self._inputs(parts))
            transcripts.append(" ".join(self.tokenizer.batch_decode(ids, skip_special_tokens=True)).strip())
        return transcripts

    def expected(self, text: str) -> str:
        """The text itself: both sides are normalized when they are compared."""
        return text

    @property
    def spellings(self) -> Mapping[str, str]:
        """Spellings of English and their American ones, for `mmspec.metrics.audio.text_normalizers`."""
        return getattr(self.tokenizer, "english_spelling_normalizer", None) or {}

    def _inputs(self, audio: Sequence[Waveform]) -> torch.Tensor:
        rate = self.processor.sampling_rate
        waves = [clip.at(rate).astype(np.float32) for clip in audio]
        found: torch.Tensor = self.processor(waves, sampling_rate=rate, return_tensors="pt").input_features
        return found.to(self.model.device)
