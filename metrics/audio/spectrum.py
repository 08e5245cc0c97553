"""Short-time spectra and mel bands, in float64 and without torchaudio, which cannot be imported everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features
from mmspec.metrics.metric import SampleBatch

RATE = 16_000  # Hz, of what spectral metrics read in an evaluation
LOG_MEL_SIZE = 1024  # samples, of the transforms of `log_mel`
SHORTEST = LOG_MEL_SIZE // 2 + 1  # samples that can be reflected at both ends


def as_waveform(values: Any, name: str, least: int = 1) -> Features:
    """Converts values to float64 [T] and validates them.

    Raises:
        ArgumentError: If there are other axes, fewer than `least` samples, or values that are not finite.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().double().cpu().numpy()
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1:
        raise ArgumentError(f"{name} has shape {list(found.shape)}; it must be [samples], one channel")
    if len(found) < least:
        raise ArgumentError(f"{name} has {len(found)} samples; at least {least} are needed")
    if not np.isfinite(found).all():
        raise ArgumentError(f"{name} has NaN or infinite values; all must be finite")
    return found


def waves_of(samples: SampleBatch, metric: str, least: int) -> Iterator[Features]:
    """The waves float64 [T] of a batch, resampled to `RATE`.

    Raises:
        ArgumentError: If a recording, before or after resampling, is shorter than `least` samples.
    """
    for path, clip in zip(samples.paths, samples.audio, strict=True):
        wave = clip.at(RATE)
        shortest = min(len(clip.wave), len(wave))
        if shortest < least:
            raise ArgumentError(f"'{path}' has {shortest} samples; {metric!r} needs {least}")
        yield wave


def magnitudes(waveform: Features, size: int, hop: int, window: int | None = None) -> Features:
    """Magnitudes of short-time Fourier transforms under a periodic Hann window.

    The signal is reflected at both ends, so that frame i is centered on sample i * hop.

    Args:
        waveform: float64 [T].
        size: Samples per transform.
        hop: Samples between frames.
        window: Samples of the window, which is centered in the transform; None is `size`.

    Returns:
        float64 [frames, size // 2 + 1].
    """
    width = window or size
    taper = np.zeros(size)
    start = (size - width) // 2
    taper[start : start + width] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / width)
    padded = np.pad(waveform, size // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    return np.abs(np.fft.rfft(frames * taper, axis=1))


def mel_filters(bands: int, size: int, rate: int) -> Features:
    """Triangular filters from 0 Hz to half the rate, evenly spaced on the mel scale of HTK, each with its peak at 1.

    Args:
        bands: Number of filters.
        size: Samples per transform.
        rate: Samples per second.

    Returns:
        float64 [size // 2 + 1, bands].

    Raises:
        ArgumentError: If a band is narrower than the resolution of the transform, which would make it empty.
    """
    mels = np.linspace(0, 2595 * float(np.log10(1 + rate / 2 / 700)), bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    bins = np.linspace(0, rate / 2, size // 2 + 1)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    filters = np.maximum(np.minimum(rising, falling), 0.0)
    if not filters.any(0).all():
        raise ArgumentError(f"bands={bands} is too many for transforms of {size} samples at {rate} Hz; use fewer")
    return filters


def log_mel(waveform: Features, rate: int, bands: int = 80) -> Features:
    """Natural logarithms of mel-band magnitudes, floored at 1e-5, float64 [frames, bands]."""
    return np.log(np.maximum(magnitudes(waveform, LOG_MEL_SIZE, 256) @ mel_filters(bands, LOG_MEL_SIZE, rate), 1e-5))
