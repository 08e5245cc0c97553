"""The codec of Higgs Audio: residual codes and a DAC decoder without its final tanh."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.codec import CodecStream
from mmspec.audio.codecs.convolution import receptive_field
from mmspec.audio.codecs.overlap_graphs import overlap_stream


class HiggsCodec:
    """A `HiggsAudioV2TokenizerModel` as a codec."""

    channels = 1

    def __init__(self, model: Any) -> None:
        self._model = model
        self.sampling_rate = int(model.config.sample_rate)
        self.hop = int(model.config.hop_length)
        self.codebooks = len(model.quantizer.quantizers)
        self.codebook_size = int(model.config.codebook_size)
        self._receptive_field = receptive_field(model.acoustic_decoder)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        audio = self._model.decode(codes.to(self._model.device)).audio_values.float()
        samples = codes.shape[-1] * self.hop
        return F.pad(audio, (0, max(samples - audio.shape[-1], 0)))[..., :samples]

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        """Mono audio float32 [samples] to frames int64 [F, codebooks]; less than a second is padded with silence."""
        audio = F.pad(audio, (0, max(self.sampling_rate - len(audio), 0)))
        codes: Tensor = self._model.encode(audio[None, None].to(self._model.device)).audio_codes
        return codes[0].T.cpu().clone()

    def stream(self) -> CodecStream:
        return overlap_stream(self, self._model, self._receptive_field, self._receptive_field // 2 + 1)

    def tables(self) -> list[Tensor]:
        # In the decoder's space, after the projection of each quantizer.
        return [each.project_out(each.codebook.embed).detach().float() for each in self._model.quantizer.quantizers]
