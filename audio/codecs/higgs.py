"""The codec of Higgs Audio: residual codes, a DAC decoder without its last bound."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.codecs.convolution import reach


class HiggsCodec:
    """A `HiggsAudioV2TokenizerModel` as a codec."""

    channels = 1

    def __init__(self, model: Any) -> None:
        self._model = model
        self.sampling_rate = int(model.config.sample_rate)
        self.hop = int(model.config.hop_length)
        self.codebooks = len(model.quantizer.quantizers)
        self.codebook_size = int(model.config.codebook_size)
        self._reach = reach(model.acoustic_decoder)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        sound = self._model.decode(codes.to(self._model.device)).audio_values.float()
        wanted = codes.shape[-1] * self.hop
        return F.pad(sound, (0, max(wanted - sound.shape[-1], 0)))[..., :wanted]

    def stream(self) -> CodecStream:
        return OverlapStream(self, self._reach, self._reach // 2 + 1)

    def tables(self) -> list[Tensor]:
        # Codes are compared as the decoder sees them, after each quantiser's projection.
        return [part.project_out(part.codebook.embed).detach().float() for part in self._model.quantizer.quantizers]
