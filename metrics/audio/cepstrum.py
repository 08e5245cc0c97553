"""Mel-cepstral distortion (Kubichek 1993) in dB, between recordings that should say the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.metrics.audio.spectrum import log_mel, read_waveform
from mmspec.metrics.features import Features


def mel_cepstra(waveform: Features, rate: int, order: int = 13) -> Features:
    """Mel-cepstral coefficients 1..order, [frames, order], of frames 16 ms apart at 16 kHz.

    The orthonormal DCT-II of natural-log mel magnitudes; the 0th, which is loudness, is left out. Toolkits that fit the
    coefficients (SPTK's mcep) give other numbers: compare only values of one implementation.
    """
    spectrum = log_mel(waveform, rate)
    bands = spectrum.shape[1]
    angles = np.pi * np.outer(np.arange(bands) + 0.5, np.arange(1, order + 1)) / bands
    return np.asarray(spectrum @ np.cos(angles) * np.sqrt(2 / bands))


def mel_cepstral_distortion(generated: Any, reference: Any, rate: int, align: bool = True) -> float:
    """10 / ln 10 * sqrt(2 * squared difference), averaged over frames.

    Args:
        generated: Recordings float [T], at least 513 samples.
        reference: Recordings float [T], at least 513 samples.
        align: By dynamic time warping, over whose path the mean is taken; otherwise frame by frame over the shorter.

    Raises:
        ArgumentError: For other shapes, or NaN.
    """
    a = mel_cepstra(read_waveform(generated, "generated", 513), rate)
    b = mel_cepstra(read_waveform(reference, "reference", 513), rate)
    if not align:
        shared = min(len(a), len(b))
        distances = np.linalg.norm(a[:shared] - b[:shared], axis=1)
        return float(_DB * distances.mean())
    cost = np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))
    total, steps = warp(cost)
    return float(_DB * total / steps)


_DB = 10 / np.log(10) * np.sqrt(2)


def warp(cost: Features) -> tuple[float, int]:
    """The cheapest path from corner to corner of cost [N, M] by steps right, down and both: its cost, its length.

    Among equally cheap paths the shortest is taken.
    """
    n, m = cost.shape
    # Filled along anti-diagonals, whose cells do not depend on each other; a border of infinities needs no cases.
    best = np.full((n + 1, m + 1), np.inf)
    length = np.zeros((n + 1, m + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for diagonal in range(2, n + m + 1):
        i = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        j = diagonal - i
        before = np.stack([best[i - 1, j - 1], best[i - 1, j], best[i, j - 1]])
        lengths = np.stack([length[i - 1, j - 1], length[i - 1, j], length[i, j - 1]])
        cheapest = before.min(0)
        best[i, j] = cost[i - 1, j - 1] + cheapest
        length[i, j] = 1 + np.where(before == cheapest, lengths, n + m).min(0)
    return float(best[n, m]), int(length[n, m])
