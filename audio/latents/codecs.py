"""The codecs of models of latents after `mmspec.audio.codec.Codec`; what stands for codes are latents, [B, D, F]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import CodecStream
from mmspec.audio.codecs.mimi import MimiStream


class PocketCodec:
    """The audio tokenizer of Pocket TTS and Gradium Phonon TTS.

    Args:
        model: A `PocketTTSAudioTokenizerModel`, which is built like Mimi.
        fade_in: Seconds in which a sound rises from silence; a decoder that has read nothing begins with a click.
    """

    channels = 1
    codebooks = 0
    codebook_size = 0

    def __init__(self, model: Any, fade_in: float = 0.0) -> None:
        self._model = model
        self.sampling_rate = int(model.config.sampling_rate)
        self.hop = int(model.config.frame_size)
        self.rise = torch.linspace(0, 1, int(fade_in * self.sampling_rate))

    def features(self, latents: Tensor) -> Tensor:
        """What the decoder reads of latents [B, D, F]."""
        return self._model.latent_proj(latents.to(self._model.device, self._model.dtype))

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        if not codes.shape[-1]:
            return torch.empty(len(codes), self.channels, 0)
        return faded(self._model.decoder(self.features(codes)).audio_values.float(), self.rise, 0)

    def stream(self) -> CodecStream:
        return Rising(MimiStream(self._model.decoder, self.features, self.hop, self.channels), self.rise)

    def tables(self) -> list[Tensor]:
        return []


def faded(sound: Tensor, rise: Tensor, given: int) -> Tensor:
    """Sound [B, channels, n] that follows `given` samples, times `rise` as far as that goes."""
    here = rise[given : given + sound.shape[-1]].to(sound)
    return torch.cat([sound[..., : len(here)] * here, sound[..., len(here) :]], dim=-1)


class Rising:
    """A stream that rises from silence."""

    def __init__(self, stream: CodecStream, rise: Tensor) -> None:
        self._stream = stream
        self._rise = rise
        self._given = 0

    def push(self, codes: Tensor) -> Tensor:
        return self._pass(self._stream.push(codes))

    def finish(self) -> Tensor:
        return self._pass(self._stream.finish())

    def _pass(self, sound: Tensor) -> Tensor:
        out = faded(sound, self._rise, self._given)
        self._given += sound.shape[-1]
        return out


class VibeVoiceCodec:
    """The acoustic tokenizer of a VibeVoice.

    Args:
        model: A `VibeVoiceForConditionalGeneration`.
        sampling_rate: As its processor says.
    """

    codebooks = 0
    codebook_size = 0

    def __init__(self, model: Any, sampling_rate: int = 24_000) -> None:
        self._model = model
        self.sampling_rate = sampling_rate
        self.channels = int(model.config.audio_config.channels)
        self.hop = int(model.config.audio_config.hop_length)

    def decode(self, codes: Tensor) -> Tensor:
        return self.stream().push(codes)

    def stream(self) -> CodecStream:
        return VibeVoiceStream(self._model, self.channels)

    def tables(self) -> list[Tensor]:
        return []


class VibeVoiceStream:
    """Causal convolutions that remember."""

    def __init__(self, model: Any, channels: int) -> None:
        self._model = model.model
        self._channels = channels
        self._memory: Any = None

    @torch.inference_mode()
    def push(self, codes: Tensor) -> Tensor:
        model, frames = self._model, codes.mT
        if not frames.shape[1]:
            return self.finish()
        latents = frames.to(model.latent_scaling_factor) / model.latent_scaling_factor - model.latent_bias_factor
        made = model.audio_tower.decode(latents.to(model.audio_tower.dtype), padding_cache=self._memory, use_cache=True)
        self._memory = made.padding_cache
        return made.audio.float()

    def finish(self) -> Tensor:
        return torch.empty(1, self._channels, 0)
