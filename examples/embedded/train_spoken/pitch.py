"""The pitch of speech, every 10 ms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmspec.audio.spoken.analysis import Floats, frames
from mmspec.audio.spoken.config import SAMPLING_RATE

_WINDOW = 640


def pitch(audio: Floats, low: float, high: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Fundamental frequency by normalized autocorrelation.

    Args:
        audio: float32 [samples].
        low: Lowest frequency in Hz.
        high: Highest frequency in Hz.

    Returns:
        The frequency in Hz, float32 [n], interpolated where a frame is unvoiced, and bool [n], True for voiced frames.
    """
    windows = frames(audio, _WINDOW)
    windows = windows - windows.mean(1, keepdims=True)
    length = 2 * _WINDOW
    correlation = np.fft.irfft(np.abs(np.fft.rfft(windows, length)) ** 2, length)[:, :_WINDOW]
    squares = np.cumsum(windows**2, axis=1)
    energy = squares[:, -1:]
    lags = np.arange(_WINDOW)
    head = squares[:, ::-1]  # energy of the first `_WINDOW - lag` samples
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
