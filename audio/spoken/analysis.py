"""Acoustic analysis: the energies of 36 frequency bands, every 10 ms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmspec.audio.spoken.config import FRAME, SAMPLING_RATE

SIZE = 512  # points of an FFT
WINDOW = 400  # samples
FLOOR = 1e-4  # smallest amplitude of a band

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
