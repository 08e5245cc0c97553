"""EnCodec: residual codes, convolutions, and an LSTM that remembers everything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.codecs.codec_part import CodecPart
from mmspec.audio.codecs.convolution import reach
from mmspec.errors import ModelError


class EnCodec:
    """An `EncodecModel` as a codec.

    Raises:
        ModelError: For the variant that cuts sound in pieces of one second and scales each (48 kHz): its codes alone do
            not say how loud they are.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        if config.chunk_length_s is not None or config.normalize or config.norm_type != "weight_norm":
            raise ModelError(
                "EncodecModel with chunk_length_s, normalize or norm_type is not supported; take 24 or 32 kHz"
            )
        self._model = model
        self.sampling_rate = int(config.sampling_rate)
        self.channels = int(config.audio_channels)
        self.hop = int(config.hop_length)
        self.codebooks = int(config.num_quantizers)
        self.codebook_size = int(config.codebook_size)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        out = self._model.decode(codes.to(self._model.device)[None], [None])
        return out.audio_values.float()

    def stream(self) -> CodecStream:
        return EnCodecStream(self._model, self.hop, self.channels)

    def tables(self) -> list[Tensor]:
        return [layer.codebook.embed.float() for layer in self._model.quantizer.layers]


class EnCodecStream:
    """The first convolution and those after the LSTM in overlapping parts; the LSTM goes on from where it was."""

    def __init__(self, model: Any, hop: int, channels: int) -> None:
        first, self._lstm, *rest = model.decoder.layers
        behind = torch.nn.Sequential(*rest)
        self._model = model
        self._state: tuple[Tensor, Tensor] | None = None
        # Causal layers look ahead too, at the beginning: what they see before it is a reflection of what follows.
        near, far = reach(first), reach(behind)
        self._front = OverlapStream(CodecPart(first, 1, first.conv.out_channels), near, near)
        self._back = OverlapStream(CodecPart(behind, hop, channels), far, far)

    @torch.inference_mode()
    def push(self, codes: Tensor) -> Tensor:
        latents = self._model.quantizer.decode(codes.to(self._model.device).transpose(0, 1))
        return self._back.push(self._remember(self._front.push(latents))).float()

    @torch.inference_mode()
    def finish(self) -> Tensor:
        last = self._remember(self._front.finish())
        return torch.cat([self._back.push(last), self._back.finish()], dim=-1).float()

    def _remember(self, hidden: Tensor) -> Tensor:
        """`EncodecLSTM`, which starts anew at each call, with its state kept."""
        if not hidden.shape[-1]:
            return hidden
        steps = hidden.permute(2, 0, 1)
        out, self._state = self._lstm.lstm(steps, self._state)
        return (out + steps).permute(1, 2, 0)
