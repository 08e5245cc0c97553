"""Short-time spectra and mel bands, in float64 and without torchaudio, which is not importable everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features


def read_waveform(values: Any, name: str, least: int = 1) -> Features:
    """`values` as float64 [T].

    Raises:
        ArgumentError: For other axes, fewer than `least` samples, or NaN.
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


def magnitudes(waveform: Features, size: int, hop: int, window: int | None = None) -> Features:
    """Magnitudes [frames, size // 2 + 1] of short-time Fourier transforms.

    The signal is reflected at both ends, so that frame i is centred on sample i * hop.

    Args:
        size: Of the transform.
        window: Of the periodic Hann window in its middle, None is `size`.
    """
    width = window or size
    taper = np.zeros(size)
    start = (size - width) // 2
    taper[start : start + width] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / width)
    padded = np.pad(waveform, size // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    return np.abs(np.fft.rfft(frames * taper, axis=1))


def mel_filters(bands: int, size: int, rate: int, low: float = 0.0, high: float | None = None) -> Features:
    """Triangular filters [size // 2 + 1, bands], evenly spaced on the mel scale of HTK, each with its peak at 1.

    Args:
        rate: Samples per second.
        low: The lower end in Hz.
        high: The upper end in Hz; None is half the rate.

    Raises:
        ArgumentError: When a band is narrower than the transform resolves, which would make it empty.
    """
    bottom, top = (2595 * float(np.log10(1 + end / 700)) for end in (low, rate / 2 if high is None else high))
    mels = np.linspace(bottom, top, bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    bins = np.linspace(0, rate / 2, size // 2 + 1)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    filters = np.maximum(np.minimum(rising, falling), 0.0)
    if not filters.any(0).all():
        raise ArgumentError(f"bands={bands} is too many for transforms of {size} samples at {rate} Hz; use fewer")
    return filters


def log_mel(waveform: Features, rate: int, bands: int = 80, size: int = 1024, hop: int = 256) -> Features:
    """Natural logarithms [frames, bands] of mel-band magnitudes, floored at 1e-5."""
    return np.log(np.maximum(magnitudes(waveform, size, hop) @ mel_filters(bands, size, rate), 1e-5))
