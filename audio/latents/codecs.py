"""Codecs whose codes are latents [B, D, F], with the interface of `mmspec.audio.codec.Codec`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import CodecStream
from mmspec.audio.codecs.mimi import MimiStream
from mmspec.audio.codecs.stepped_stream import SteppedStream
from mmspec.audio.codecs.streamed_layers import StreamState, streamed


class PocketCodec:
    """The audio tokenizer of Pocket TTS and Gradium Phonon TTS.

    Args:
        model: A `PocketTTSAudioTokenizerModel`, which has the parts of Mimi.
        fade_in: Seconds over which audio is faded in; the decoder's first samples are a click.
    """

    channels = 1
    codebooks = 0
    codebook_size = 0

    def __init__(self, model: Any, fade_in: float = 0.0) -> None:
        self._model = model
        self.sampling_rate = int(model.config.sampling_rate)
        self.hop = int(model.config.frame_size)
        self.ramp = torch.linspace(0, 1, int(fade_in * self.sampling_rate))

    def features(self, latents: Tensor) -> Tensor:
        """The decoder's inputs for latents [B, D, F]."""
        return self._model.latent_proj(latents.to(self._model.device, self._model.dtype))

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        if not codes.shape[-1]:
            return torch.empty(len(codes), self.channels, 0)
        return fade_in(self._model.decoder(self.features(codes)).audio_values.float(), self.ramp, 0)

    def stream(self) -> CodecStream:
        return FadeInStream(MimiStream(self._model, self.features, self.channels), self.ramp)

    def tables(self) -> list[Tensor]:
        return []


def fade_in(audio: Tensor, ramp: Tensor, start: int) -> Tensor:
    """Multiplies audio [B, channels, n], whose first sample is number `start`, by the ramp of gains, up to its end."""
    gains = ramp[start : start + audio.shape[-1]].to(audio)
    return torch.cat([audio[..., : len(gains)] * gains, audio[..., len(gains) :]], dim=-1)


class FadeInStream:
    """A stream whose audio is faded in."""

    def __init__(self, stream: CodecStream, ramp: Tensor) -> None:
        self._stream = stream
        self._ramp = ramp
        self._returned = 0

    def push(self, codes: Tensor) -> Tensor:
        return self._fade_in(self._stream.push(codes))

    def finish(self) -> Tensor:
        return self._fade_in(self._stream.finish())

    def _fade_in(self, audio: Tensor) -> Tensor:
        out = fade_in(audio, self._ramp, self._returned)
        self._returned += audio.shape[-1]
        return out


class VibeVoiceCodec:
    """The acoustic tokenizer of VibeVoice.

    Args:
        model: A `VibeVoiceForConditionalGeneration`.
        sampling_rate: The sampling rate of its processor.
    """

    codebooks = 0
    codebook_size = 0

    def __init__(self, model: Any, sampling_rate: int = 24_000) -> None:
        self._model = model
        self.sampling_rate = sampling_rate
        self.channels = int(model.config.audio_config.channels)
        self.hop = int(model.config.audio_config.hop_length)

    def decode(self, codes: Tensor) -> Tensor:
        return self.stream().whole(codes, codes.shape[-1])

    def stream(self) -> SteppedStream:
        return VibeVoiceStream(self._model, self.channels)

    def tables(self) -> list[Tensor]:
        return []


class VibeVoiceStream(SteppedStream):
    """Streams the decoder: every convolution keeps its last inputs.

    Args:
        model: A `VibeVoiceForConditionalGeneration`.
        channels: Channels of the audio.
    """

    def __init__(self, model: Any, channels: int) -> None:
        inner, tower = model.model, model.model.audio_tower

        def build(state: StreamState) -> Callable[[Tensor], Tensor]:
            decoder = streamed(tower.decoder, state)

            def decode(codes: Tensor) -> Tensor:
                latents = codes.to(inner.latent_scaling_factor) / inner.latent_scaling_factor - inner.latent_bias_factor
                audio: Tensor = decoder(latents.to(tower.dtype)).audio
                return audio

            return decode

        super().__init__(tower, build, channels, tower.device)
