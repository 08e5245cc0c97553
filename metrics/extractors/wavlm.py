"""WavLM's voice embeddings, for speaker similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.pretrained import load_pretrained
from mmspec.metrics.features import Features


class WavLMExtractor:
    """The x-vector of a `WavLMForXVector`; published similarities use microsoft/wavlm-base-plus-sv or a larger one.

    Args:
        where: A folder or Hub id with model and feature extractor.
        device: Where the network runs.

    Raises:
        ModelError: If one of them cannot be loaded.
    """

    name = "wavlm"

    def __init__(self, where: str, device: str = "cpu") -> None:
        from transformers import AutoFeatureExtractor, WavLMForXVector

        self.model = load_pretrained(WavLMForXVector, where, self.name).float().eval().to(device)
        self.processor = load_pretrained(AutoFeatureExtractor, where, self.name)
        self.fingerprint = fingerprint_of(self.model)
        config = self.model.config
        self._least = 2  # samples that leave two frames, of which the x-vector takes the standard deviation
        for kernel, dilation in zip(config.tdnn_kernel, config.tdnn_dilation, strict=True):
            self._least += (kernel - 1) * dilation
        for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
            self._least = (self._least - 1) * stride + kernel

    @torch.no_grad()
    def __call__(self, audio: Sequence[Waveform]) -> Features:
        """Features float64 [B, D]. Recordings go in one by one: padding would change the input of the first layers."""
        found = []
        for clip in audio:
            wave = clip.at(self.processor.sampling_rate).astype(np.float32)
            if len(wave) < self._least:  # too short: repeat it
                wave = np.tile(wave, -(-self._least // len(wave)))
            inputs = self.processor(wave, sampling_rate=self.processor.sampling_rate, return_tensors="pt")
            found.append(self.model(**inputs.to(self.model.device)).embeddings[0].double().cpu().numpy())
        return np.stack(found)
