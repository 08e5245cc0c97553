"""EnCodec: residual codes, convolutions, and an LSTM whose state spans the whole audio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.codecs.convolution import receptive_field
from mmspec.errors import ModelError


class EnCodec:
    """An `EncodecModel` as a codec.

    Raises:
        ModelError: For the variant that cuts audio into chunks of one second and scales each (48 kHz): the loudness of
            a chunk is not part of its codes.
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
    """Runs the first convolution, and those after the LSTM, on overlapping chunks; the LSTM keeps its state."""

    def __init__(self, model: Any, hop: int, channels: int) -> None:
        first, self._lstm, *rest = model.decoder.layers
        after = torch.nn.Sequential(*rest)
        self._model = model
        self._state: tuple[Tensor, Tensor] | None = None
        # Causal layers look ahead too, at the beginning, where they are padded with a reflection of what follows.
        near, far = receptive_field(first), receptive_field(after)
        self._front = OverlapStream(CodecPart(first, 1, first.conv.out_channels), near, near)
        self._back = OverlapStream(CodecPart(after, hop, channels), far, far)

    @torch.inference_mode()
    def push(self, codes: Tensor) -> Tensor:
        latents = self._model.quantizer.decode(codes.to(self._model.device).transpose(0, 1))
        return self._back.push(self._run_lstm(self._front.push(latents))).float()

    @torch.inference_mode()
    def finish(self) -> Tensor:
        last = self._run_lstm(self._front.finish())
        return torch.cat([self._back.push(last), self._back.finish()], dim=-1).float()

    def _run_lstm(self, hidden: Tensor) -> Tensor:
        """`EncodecLSTM` with its state kept; its own forward starts from zeros at each call."""
        if not hidden.shape[-1]:
            return hidden
        steps = hidden.permute(2, 0, 1)
        out, self._state = self._lstm.lstm(steps, self._state)
        return (out + steps).permute(1, 2, 0)


class CodecPart:
    """Layers that `mmspec.audio.codec.OverlapStream` can run.

    Args:
        layers: Features [B, D, F] to [B, channels, F * hop].
        hop: Outputs per frame.
        channels: Channels of the outputs.
    """

    def __init__(self, layers: Callable[[Tensor], Tensor], hop: int, channels: int) -> None:
        self.hop = hop
        self.channels = channels
        self._layers = layers

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        return self._layers(codes)
