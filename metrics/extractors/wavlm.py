"""WavLM's voice embeddings, for speaker similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.pretrained import PretrainedExtractor
from mmspec.metrics.features import Features


class WavLMExtractor(PretrainedExtractor):
    """The x-vector of a `WavLMForXVector`; published similarities use microsoft/wavlm-base-plus-sv or a larger one."""

    name = "wavlm"
    model_class = "WavLMForXVector"
    processor_class = "AutoFeatureExtractor"

    def __init__(self, where: str, device: str = "cpu") -> None:
        super().__init__(where, device)
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
