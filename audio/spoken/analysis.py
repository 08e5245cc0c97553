"""Acoustic analysis: the energies of 36 frequency bands and the pitch, every 10 ms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmspec.audio.spoken.config import FRAME, SAMPLING_RATE

SIZE = 512  # points of an FFT
WINDOW = 400  # samples
FLOOR = 1e-4  # smallest amplitude of a band
_PITCH_WINDOW = 640

Floats = NDArray[np.float32]


def _edges() -> NDArray[np.float64]:
    """Edges of the bands in Hz: every 100 Hz at first, so that no band lies between two harmonics, then geometric."""
    return np.concatenate([np.arange(0, 1500, 100.0), np.geomspace(1500, 8000, 23)])


BANDS = len(_edges()) - 2


def band_filters() -> Floats:
    """Triangular filters [SIZE // 2 + 1, BANDS] with peaks of 1."""
    edges = _edges()
    bins = np.linspace(0, SAMPLING_RATE / 2, SIZE // 2 + 1)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(np.minimum(rising, falling), 0.0).astype(np.float32)


def spread_filters() -> Floats:
    """Triangular filters [BANDS, SIZE // 2 + 1] that sum to 1 at every frequency; they interpolate bands to bins."""
    centers = _edges()[1:-1]
    bins = np.linspace(0, SAMPLING_RATE / 2, SIZE // 2 + 1)
    return np.stack([np.interp(bins, centers, row) for row in np.eye(BANDS)]).astype(np.float32)


def frames(audio: Floats, window: int) -> Floats:
    """Windows [n, window] centered on each frame of `FRAME` samples; audio is zero-padded at both ends."""
    side = (window - FRAME) // 2
    padded = np.pad(audio, (side, side + FRAME))
    return np.lib.stride_tricks.sliding_window_view(padded, window)[::FRAME][: len(audio) // FRAME]


def log_bands(audio: Floats) -> Floats:
    """Natural logarithms [n, BANDS] of the amplitudes of bands, at least log(FLOOR)."""
    taper = (0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(WINDOW) + 0.5) / WINDOW)).astype(np.float32)
    power = np.abs(np.fft.rfft(frames(audio, WINDOW) * taper, SIZE)) ** 2 / taper.sum() ** 2
    filters = band_filters()
    return 0.5 * np.log(np.maximum(power.astype(np.float32) @ (filters / filters.sum(0)), FLOOR**2))


def pitch(audio: Floats, low: float, high: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Fundamental frequency by normalized autocorrelation.

    Args:
        audio: float32 [samples].
        low: Lowest frequency in Hz.
        high: Highest frequency in Hz.

    Returns:
        The frequency in Hz, float32 [n], interpolated where a frame is unvoiced, and bool [n], True for voiced frames.
    """
    windows = frames(audio, _PITCH_WINDOW)
    windows = windows - windows.mean(1, keepdims=True)
    length = 2 * _PITCH_WINDOW
    correlation = np.fft.irfft(np.abs(np.fft.rfft(windows, length)) ** 2, length)[:, :_PITCH_WINDOW]
    squares = np.cumsum(windows**2, axis=1)
    energy = squares[:, -1:]
    lags = np.arange(_PITCH_WINDOW)
    head = squares[:, ::-1]  # energy of the first `_PITCH_WINDOW - lag` samples
    tail = np.concatenate([energy, energy - squares[:, :-1]], axis=1)
    normal = correlation / np.sqrt(np.maximum(head * tail, 1e-12))
    first, last = int(SAMPLING_RATE / high), int(SAMPLING_RATE / low)
    inside = normal[:, first : last + 1] - 1e-4 * lags[first : last + 1]  # prefers the shorter period
    best = inside.argmax(1) + first
    rows = np.arange(len(best))
    left, middle, right = normal[rows, best - 1], normal[rows, best], normal[rows, best + 1]
    curve = left - 2 * middle + right
    shift = np.where(curve < -1e-6, 0.5 * (left - right) / np.where(curve < -1e-6, curve, 1.0), 0.0).clip(-0.5, 0.5)
    voiced = (middle > 0.6) & (energy[:, 0] > 1e-3 * max(float(energy.max()), 1e-6))
    hertz = SAMPLING_RATE / (best + shift)
    if not voiced.any():
        return np.full(len(best), (low * high) ** 0.5, dtype=np.float32), voiced
    return np.interp(rows, rows[voiced], hertz[voiced]).astype(np.float32), voiced
