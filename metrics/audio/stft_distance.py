"""Multi-resolution STFT distance (Yamamoto et al. 2020), between recordings that should be the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.audio.spectrum import magnitudes, read_waveform

RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))  # transform, hop, window
FLOOR = 1e-7  # of power


def stft_distance(generated: Any, reference: Any) -> float:
    """Spectral convergence plus the mean difference of log magnitudes, averaged over three resolutions.

    Args:
        generated: Recordings float [T] of the same length, at least 1,025 samples.
        reference: Recordings float [T] of the same length, at least 1,025 samples.

    Raises:
        ArgumentError: For other shapes, different lengths, NaN.
    """
    least = max(size for size, _, _ in RESOLUTIONS) // 2 + 1
    x, y = read_waveform(generated, "generated", least), read_waveform(reference, "reference", least)
    if len(x) != len(y):
        raise ArgumentError(f"generated has {len(x)} samples, reference has {len(y)}; they must be equally long")
    parts = []
    for size, hop, window in RESOLUTIONS:
        a, b = (np.sqrt(np.maximum(magnitudes(wave, size, hop, window) ** 2, FLOOR)) for wave in (x, y))
        parts.append(np.linalg.norm(b - a) / np.linalg.norm(b) + np.abs(np.log(b) - np.log(a)).mean())
    return float(np.mean(parts))
