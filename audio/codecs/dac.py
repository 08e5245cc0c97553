"""DAC: residual codes, convolutions that look both ways."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.codecs.convolution import reach


class Dac:
    """A `DacModel` as a codec."""

    channels = 1

    def __init__(self, model: Any) -> None:
        self._model = model
        self.sampling_rate = int(model.config.sampling_rate)
        self.hop = math.prod(model.config.upsampling_ratios)
        self.codebooks = int(model.config.n_codebooks)
        self.codebook_size = int(model.config.codebook_size)
        self._reach = reach(model.decoder)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        sound = self._model.decode(audio_codes=codes.to(self._model.device)).audio_values.float()[:, None]
        # Upsampling by an odd factor makes a few samples less than it should.
        return F.pad(sound, (0, codes.shape[-1] * self.hop - sound.shape[-1]))

    def stream(self) -> CodecStream:
        return OverlapStream(self, self._reach, self._reach // 2 + 1)

    def tables(self) -> list[Tensor]:
        # Codes are compared as the decoder sees them: entries are projected from 8 dimensions to its own.
        parts = self._model.quantizer.quantizers
        return [part.out_proj(part.codebook.weight.T[None])[0].T.detach().float() for part in parts]
