"""Mel-cepstral distortion (Kubichek 1993) in dB, between recordings of the same text."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.metrics.audio.spectrum import RATE, SHORTEST, as_waveform, log_mel, waves_of
from mmspec.metrics.features import Features
from mmspec.metrics.metric import PairedMetric, Rows, SampleBatch

_DB = 10 / np.log(10) * np.sqrt(2)


def mel_cepstra(waveform: Features, rate: int, order: int = 13) -> Features:
    """Mel-cepstral coefficients 1..order, [frames, order], of frames 16 ms apart at 16 kHz.

    The orthonormal DCT-II of natural-log mel magnitudes, without coefficient 0, which is loudness. Toolkits that fit
    the coefficients (SPTK's mcep) give other numbers: compare only values of one implementation.
    """
    spectrum = log_mel(waveform, rate)
    bands = spectrum.shape[1]
    angles = np.pi * np.outer(np.arange(bands) + 0.5, np.arange(1, order + 1)) / bands
    return np.asarray(spectrum @ np.cos(angles) * np.sqrt(2 / bands))


def mel_cepstral_distortion(generated: Any, reference: Any, rate: int, align: bool = True) -> float:
    """10 / ln 10 * sqrt(2 * squared difference) of the mel-cepstra, averaged over frames.

    Args:
        generated: A recording float [T], at least 513 samples.
        reference: A recording float [T], at least 513 samples.
        rate: Samples per second of both.
        align: Average over the path of dynamic time warping; otherwise frame by frame over the shorter recording.

    Raises:
        ArgumentError: If a recording has another shape, is too short, or has values that are not finite.
    """
    a = mel_cepstra(as_waveform(generated, "generated", SHORTEST), rate)
    b = mel_cepstra(as_waveform(reference, "reference", SHORTEST), rate)
    if not align:
        shared = min(len(a), len(b))
        distances = np.linalg.norm(a[:shared] - b[:shared], axis=1)
        return float(_DB * distances.mean())
    return aligned_distortion(a, b)


def aligned_distortion(a: Features, b: Features) -> float:
    """Mel-cepstral distortion of cepstra [N, order] and [M, order], averaged over the path of dynamic time warping."""
    cost = np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))
    total, steps = warp(cost)
    return float(_DB * total / steps)


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


class MelCepstralDistortion(PairedMetric):
    """Mel-cepstral distortion of recordings at 16 kHz, aligned by dynamic time warping."""

    kind = "audio"

    def extract(self, samples: SampleBatch, extractor: Any) -> Rows:
        return [mel_cepstra(wave, RATE) for wave in waves_of(samples, self.name, SHORTEST)]

    def distance(self, generated: Features, reference: Features) -> float:
        return aligned_distortion(generated, reference)


MCD = MelCepstralDistortion("mcd")
