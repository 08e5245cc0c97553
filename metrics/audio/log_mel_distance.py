"""The Frechet distance between the log-mel frames of two sets of recordings: one that needs no network and no weights.

It sees timbre, loudness and noise, not words or melody, and is comparable only at equal settings and equal numbers of
frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.audio.spectrum import log_mel, read_waveform
from mmspec.metrics.features import Features
from mmspec.metrics.image.frechet import Gaussian, frechet_distance


def log_mel_distance(generated: Sequence[Any], reference: Sequence[Any], rate: int, bands: int = 80) -> float:
    """The distance of recordings, each float [T], at `rate` samples per second.

    Raises:
        ArgumentError: For a set that is empty, or a recording shorter than 513 samples.
    """
    frames = []
    for name, recordings in (("generated", generated), ("reference", reference)):
        if not len(recordings):
            raise ArgumentError(f"{name} holds no recording; this metric needs at least one")
        waves = [read_waveform(wave, f"{name}[{i}]", least=513) for i, wave in enumerate(recordings)]
        frames.append(np.concatenate([log_mel(wave, rate, bands) for wave in waves]))
    return frechet_distance(frames[0], frames[1])


def moments(waveform: Features, rate: int, bands: int = 80) -> Features:
    """Of the frames of one recording: their number, sum and sum of products, float64 [1 + bands + bands ** 2].

    Recordings are added up by adding their moments; `pooled` makes the Gaussian of their frames of those.
    """
    frames = log_mel(read_waveform(waveform, "waveform", least=513), rate, bands) - _CENTRE
    return np.concatenate([[len(frames)], frames.sum(0), (frames.T @ frames).ravel()])


_CENTRE = -5.0  # near what log-mel frames lie around, so that sums of products keep their digits


def pooled(rows: Features) -> Gaussian:
    """The Gaussian of all frames of recordings, from their moments [N, 1 + D + D ** 2]."""
    total = rows.sum(0)
    count, bands = total[0], round(((4 * len(total) - 3) ** 0.5 - 1) / 2)
    mean = total[1 : bands + 1] / count
    products = total[bands + 1 :].reshape(bands, bands)
    return Gaussian(mean + _CENTRE, (products - count * np.outer(mean, mean)) / (count - 1), int(count))
