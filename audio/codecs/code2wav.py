"""The codec decoder of Qwen3-Omni, which is a part of its model."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.codec import CodecStream, OverlapStream


class Code2Wav:
    """A `Qwen3OmniMoeCode2Wav` as a codec.

    It decodes as the model does: in chunks of 300 frames, each with 25 before it, between which its transformer starts
    afresh, so that a stream returns no audio before it is finished. Its transposed convolutions drop samples at the
    end, in whose place is silence.

    Args:
        model: The decoder.
    """

    sampling_rate, channels = 24_000, 1

    def __init__(self, model: Any) -> None:
        self._model = model
        self.hop = int(model.total_upsample)
        self.codebooks, self.codebook_size = int(model.config.num_quantizers), int(model.config.codebook_size)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        if not codes.shape[-1]:
            return torch.zeros(len(codes), 1, 0)
        wave = self._model.chunked_decode(codes.to(self._model.device), chunk_size=300, left_context_size=25).float()
        return F.pad(wave, (0, codes.shape[-1] * self.hop - wave.shape[-1]))

    def stream(self) -> CodecStream:
        return OverlapStream(self, None, sys.maxsize)

    def tables(self) -> list[Tensor]:
        return list(self._model.code_embedding.weight.detach().float().split(self.codebook_size))
