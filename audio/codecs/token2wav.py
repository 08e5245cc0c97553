"""The codec decoder of Qwen2.5-Omni: flow matching and a vocoder, which are parts of its model."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import CodecStream, OverlapStream

_NOISE = Lock()


class Token2Wav:
    """A `Qwen2_5OmniToken2WavModel` and one of its speakers as a codec.

    It starts from noise, which is always the same, so that codes have one audio. It reads all codes at once: a stream
    returns no audio before it is finished. While it draws its noise, torch's global generator must not be used in
    another thread.

    Args:
        model: The decoder.
        speaker: The vectors of a speaker, as in `speaker_map`: `cond` [1, D], `ref_mel` [1, T, mel].
        codes: Number of codes.
    """

    sampling_rate, channels, codebooks = 24_000, 1, 1

    def __init__(self, model: Any, speaker: Mapping[str, Tensor], codes: int) -> None:
        self._model, self._speaker, self.codebook_size = model.float(), speaker, codes
        rates = model.code2wav_bigvgan_model.config.upsample_rates
        self.hop = int(model.code2wav_dit_model.repeats * math.prod(rates))

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        device, length = self._model.device, codes.shape[-1] * self.hop
        if not length:
            return torch.zeros(len(codes), 1, 0)
        cond, mel = (self._speaker[name].to(device).float() for name in ("cond", "ref_mel"))
        waves = []
        for row in codes.to(device):
            with _NOISE, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                waves.append(self._model(row, conditioning=cond, reference_mel=mel).reshape(1, -1))
        return torch.stack(waves).float()

    def stream(self) -> CodecStream:
        return OverlapStream(self, None, sys.maxsize)

    def tables(self) -> list[Tensor]:
        embed = self._model.code2wav_dit_model.text_embed.codec_embed
        return [embed.weight.detach().float()[: self.codebook_size]]
