"""DAC: residual codes and non-causal convolutions."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.codec import CodecStream
from mmspec.audio.codecs.convolution import receptive_field
from mmspec.audio.codecs.overlap_graphs import overlap_stream


class Dac:
    """A `DacModel` as a codec."""

    channels = 1

    def __init__(self, model: Any) -> None:
        self._model = model
        self.sampling_rate = int(model.config.sampling_rate)
        self.hop = math.prod(model.config.upsampling_ratios)
        self.codebooks = int(model.config.n_codebooks)
        self.codebook_size = int(model.config.codebook_size)
        self._receptive_field = receptive_field(model.decoder)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        audio = self._model.decode(audio_codes=codes.to(self._model.device)).audio_values.float()[:, None]
        # Upsampling by an odd factor returns a few samples less than `hop` per frame.
        return F.pad(audio, (0, codes.shape[-1] * self.hop - audio.shape[-1]))

    def stream(self) -> CodecStream:
        return overlap_stream(self, self._model, self._receptive_field, self._receptive_field // 2 + 1)

    def tables(self) -> list[Tensor]:
        # In the decoder's space: entries are projected from 8 dimensions to its width.
        quantizers = self._model.quantizer.quantizers
        return [each.out_proj(each.codebook.weight.T[None])[0].T.detach().float() for each in quantizers]
