"""X-codec2, NeuCodec: one code per frame, whose digits are levels (FSQ), and a decoder that attends to all frames."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers import FEATURE_EXTRACTOR_MAPPING

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.reference_audio import ReferenceAudio


class XCodec2:
    """An `Xcodec2Model` or a `NeuCodecModel` as a codec.

    Its decoder attends in both directions over all frames and normalizes over them, so that every sample depends on
    every frame: a stream returns no audio before it is finished.
    """

    channels = 1
    codebooks = 1

    def __init__(self, model: Any) -> None:
        self._model = model
        config = model.config  # NeuCodec reads audio of another rate than it makes
        self.sampling_rate = int(getattr(config, "output_sampling_rate", None) or config.sampling_rate)
        self.hop = int(model.config.hop_length)
        self.codebook_size = len(model.quantizer.quantizer.codebook)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        return self._model.decode(audio_codes=codes.to(self._model.device)).audio_values.float()

    @torch.inference_mode()
    def encode(self, reference: ReferenceAudio) -> Tensor:
        """The codes int64 [F] of reference audio, as the feature extractor of the codec's class prepares it."""
        config = self._model.config
        rate = int(getattr(config, "input_sampling_rate", None) or config.sampling_rate)
        extractor = FEATURE_EXTRACTOR_MAPPING[type(config)](sampling_rate=rate)
        # The mask of the spectrogram is for batches.
        inputs = extractor(reference.mono(rate).numpy(), sampling_rate=rate, return_tensors="pt")
        weight = next(self._model.parameters())
        values, features = (inputs[name].to(weight.device, weight.dtype) for name in ("input_values", "input_features"))
        codes: Tensor = self._model.encode(values, features).audio_codes[0, 0]
        return codes.long()

    def stream(self) -> CodecStream:
        return OverlapStream(self, None, sys.maxsize)

    def tables(self) -> list[Tensor]:
        # The nearest neighbors of a code are one level away in one digit.
        return [self._model.quantizer.quantizer.codebook.float()]
