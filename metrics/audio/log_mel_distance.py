"""The Frechet distance between the log-mel frames of two sets of recordings, which needs no network and no weights.

It is sensitive to timbre, loudness and noise, not to words or melody, and is comparable only at equal settings and
equal numbers of frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.audio.spectrum import RATE, SHORTEST, as_waveform, log_mel, waves_of
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.features import Features
from mmspec.metrics.gaussian import Gaussian, gaussian_root
from mmspec.metrics.image.frechet import frechet_distance
from mmspec.metrics.metric import Groups, Metric, Rows, SampleBatch, resample_halves
from mmspec.metrics.reference import Reference

_CENTER = -5.0  # near the mean of log-mel frames, so that sums of products keep their digits


def log_mel_distance(generated: Sequence[Any], reference: Sequence[Any], rate: int, bands: int = 80) -> float:
    """The distance between two sets of recordings, each float [T], at `rate` samples per second.

    Raises:
        ArgumentError: If a set is empty, or a recording is shorter than 513 samples.
    """
    frames = []
    for name, recordings in (("generated", generated), ("reference", reference)):
        if not len(recordings):
            raise ArgumentError(f"{name} holds no recording; this metric needs at least one")
        waves = [as_waveform(wave, f"{name}[{i}]", least=SHORTEST) for i, wave in enumerate(recordings)]
        frames.append(np.concatenate([log_mel(wave, rate, bands) for wave in waves]))
    return frechet_distance(frames[0], frames[1])


def moments(waveform: Features, rate: int, bands: int = 80) -> Features:
    """Number, sum and sum of products of the frames of one recording, float64 [1 + bands + bands ** 2].

    The moments of several recordings are the sum of theirs; `pooled` fits the Gaussian of all frames to them.
    """
    frames = log_mel(as_waveform(waveform, "waveform", least=SHORTEST), rate, bands) - _CENTER
    return np.concatenate([[len(frames)], frames.sum(0), (frames.T @ frames).ravel()])


def pooled(rows: Features) -> Gaussian:
    """The Gaussian of all frames of recordings, from their moments [N, 1 + D + D ** 2]."""
    total = rows.sum(0)
    count, bands = total[0], round(((4 * len(total) - 3) ** 0.5 - 1) / 2)
    mean = total[1 : bands + 1] / count
    products = total[bands + 1 :].reshape(bands, bands)
    return Gaussian(mean + _CENTER, (products - count * np.outer(mean, mean)) / (count - 1), int(count))


class LogMelDistance(Metric):
    """The log-mel distance of recordings at 16 kHz, 80 bands."""

    kind = "audio"
    needs_reference = True
    higher_is_better = False
    min_samples = 4
    min_samples_reason = "its interval is computed on halves of them, and a half needs 2"

    def extract(self, samples: SampleBatch, extractor: Any) -> Rows:
        return [moments(wave, RATE) for wave in waves_of(samples, self.name, SHORTEST)]

    def make_reference(self, rows: Rows, extractor: str) -> Reference:
        return Reference(pooled(np.stack(rows)))

    def measure(self, rows: Rows, reference: Reference, groups: Groups = None) -> Estimate:
        values, root = np.stack(rows), gaussian_root(reference.gaussian, "reference")
        return resample_halves(lambda index: frechet_distance(pooled(values[index]), root), len(values))


LOG_MEL = LogMelDistance("logmel")
