"""Mimi: residual codes, a transformer with a sliding window, and causal convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.audio.codec import CodecStream, OverlapStream
from mmspec.audio.codecs.codec_part import CodecPart
from mmspec.audio.codecs.convolution import receptive_field


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
        model = self._model

        def features(codes: Tensor) -> Tensor:
            return model.quantizer.decode(codes.to(model.device))

        return MimiStream(model.decoder, features, self.hop, self.channels)

    def tables(self) -> list[Tensor]:
        quantizer = self._model.quantizer
        groups = (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer)
        # In the decoder's space, after the projection that the codebooks of a group share.
        return [
            (
                group.output_proj(layer.codebook.embed.T[None])[0].T
                if group.output_proj is not None
                else layer.codebook.embed
            )
            .detach()
            .float()
            for group in groups
            for layer in group.layers
        ]


class MimiStream:
    """Runs upsampling and convolutions on overlapping chunks; the transformer between them keeps its KV cache.

    `MimiModel.decode` with `decoder_past_key_values` keeps the KV cache but not the inputs of the convolutions, so that
    every seam is audible.

    Args:
        decoder: A `MimiModel`, or a model with the same decoder parts.
        features: Maps codes to the features [B, C, F] that the decoder reads.
        hop: Samples per frame.
        channels: Channels of the audio.
    """

    def __init__(self, decoder: Any, features: Callable[[Tensor], Tensor], hop: int, channels: int) -> None:
        self._features = features
        self._transformer = decoder.decoder_transformer
        self._cache = DynamicCache(config=decoder.config)
        self._up: OverlapStream | None = None
        if decoder.upsample is not None:
            stride = decoder.upsample.conv.stride[0]
            self._up = OverlapStream(CodecPart(decoder.upsample, stride, decoder.upsample.conv.out_channels), 2, 0)
            hop //= stride
        # Causal convolutions padded with zeros need no later frames; the other modes pad with what follows.
        far = receptive_field(decoder.decoder_seanet)
        ahead = 0 if decoder.config.pad_mode == "constant" and decoder.config.use_causal_conv else far
        self._back = OverlapStream(CodecPart(decoder.decoder_seanet, hop, channels), far, ahead)

    @torch.inference_mode()
    def push(self, codes: Tensor) -> Tensor:
        latents = self._features(codes)
        hidden = latents if self._up is None else self._up.push(latents)
        out = self._transformer(hidden.transpose(1, 2), past_key_values=self._cache, use_cache=True)
        return self._back.push(out.last_hidden_state.transpose(1, 2)).float()

    @torch.inference_mode()
    def finish(self) -> Tensor:
        return self._back.finish().float()
