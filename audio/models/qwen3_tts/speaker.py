"""Voices of reference audio, as vectors of Qwen3-TTS's speaker encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.audio_utils import mel_filter_bank

from mmspec.audio.models.qwen3_tts.model import Qwen3TTS
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.errors import ArgumentError

# Of the mel spectrogram that the encoder reads: HiFi-GAN's, at 24 kHz.
FFT, HOP, HIGHEST = 1024, 256, 12000.0
SMALLEST = 1e-5
MIN_SAMPLES = 3 * HOP  # its convolutions reflect two frames at each end


def mel_spectrogram(wave: Tensor, sampling_rate: int, bands: int) -> Tensor:
    """The logarithmic mel spectrogram float32 [F, bands] of a waveform float32 [samples]."""
    padding = (FFT - HOP) // 2
    padded = F.pad(wave[None, None], (padding, padding), mode="reflect")[0]
    window = torch.hann_window(FFT, device=wave.device)
    spectrum = torch.stft(padded, FFT, HOP, FFT, window, center=False, return_complex=True)[0]
    magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + 1e-9)
    filters = mel_filter_bank(FFT // 2 + 1, bands, 0.0, HIGHEST, sampling_rate, norm="slaney", mel_scale="slaney")
    mel = torch.from_numpy(filters).float().T.to(wave.device) @ magnitude
    return mel.clamp(min=SMALLEST).log().T


def embed_voice(model: Qwen3TTS, reference: ReferenceAudio) -> Tensor:
    """The vector [D] of the voice in reference audio.

    Raises:
        ArgumentError: If the model has no speaker encoder, or the audio is too short for it.
    """
    if model.speaker_encoder is None:
        raise ArgumentError(
            f"this model does not accept reference audio: it is a {model.config.kind} model, and base ones clone"
        )
    sizes = model.config.speaker_encoder
    wave = reference.mono(int(sizes.sample_rate)).to(model.device)
    if len(wave) < MIN_SAMPLES:
        raise ArgumentError(f"audio has {len(wave)} samples, which is too short for a voice; give a second or more")
    mel = mel_spectrogram(wave, int(sizes.sample_rate), int(sizes.mel_dim))
    with torch.inference_mode():
        vector: Tensor = model.speaker_encoder(mel[None].to(model.dtype)).flatten()
    return vector
