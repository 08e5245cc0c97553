"""Mimi: residual codes, a transformer with a sliding window, and causal convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import CodecStream
from mmspec.audio.codecs.stepped_stream import SteppedStream
from mmspec.audio.codecs.streamed_layers import SlidingKeys, StreamState, streamed


class Mimi:
    """A `MimiModel` as a codec."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._model = model
        self.sampling_rate = int(config.sampling_rate)
        self.channels = int(config.audio_channels)
        self.hop = round(config.sampling_rate / config.frame_rate)
        self.codebooks = int(config.num_quantizers)
        self.codebook_size = int(config.codebook_size)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        return self._model.decode(codes.to(self._model.device)).audio_values.float()

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        """Mono audio float32 [samples] to frames int64 [F, codebooks]."""
        wave = audio[None, None].to(self._model.device, self._model.dtype)
        codes: Tensor = self._model.encode(wave).audio_codes
        return codes[0].T.cpu().clone()

    def stream(self) -> CodecStream:
        for group in self._groups():
            for layer in group.layers:
                _ = layer.codebook.embed  # a table that its first use makes, and that graphs refer to
        return MimiStream(self._model, self._model.quantizer.decode, self.channels)

    def tables(self) -> list[Tensor]:
        # In the decoder's space, after the projection that the codebooks of a group share.
        return [
            (
                group.output_proj(layer.codebook.embed.T[None])[0].T
                if group.output_proj is not None
                else layer.codebook.embed
            )
            .detach()
            .float()
            for group in self._groups()
            for layer in group.layers
        ]

    def _groups(self) -> tuple[Any, Any]:
        """The codebook of the first code, and those of the others."""
        quantizer = self._model.quantizer
        return quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer


class MimiStream(SteppedStream):
    """Streams the decoder of Mimi: every layer keeps what it needs of the frames before.

    `MimiModel.decode` with `decoder_past_key_values` keeps the KV cache but not the inputs of the convolutions, so that
    every seam is audible.

    Args:
        model: A `MimiModel`, or a model with the same decoder parts.
        features: Maps codes to the features [B, C, F] that the decoder reads.
        channels: Channels of the audio.
    """

    def __init__(self, model: Any, features: Callable[[Tensor], Tensor], channels: int) -> None:
        def build(state: StreamState) -> Callable[[Tensor], Tensor]:
            decoder = streamed(model.decoder, state)
            keys = SlidingKeys(decoder.decoder_transformer, state)

            def decode(codes: Tensor) -> Tensor:
                hidden = features(codes)
                hidden = (hidden if decoder.upsample is None else decoder.upsample(hidden)).transpose(1, 2)
                out = decoder.decoder_transformer(hidden, **keys.next(hidden)).last_hidden_state
                audio: Tensor = decoder.decoder_seanet(out.transpose(1, 2))
                return audio

            return decode

        super().__init__(model, build, channels, model.device)
