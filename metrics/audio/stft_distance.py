"""Multi-resolution STFT distance (Yamamoto et al. 2020), between recordings that should be equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.audio.spectrum import RATE, as_waveform, magnitudes, waves_of
from mmspec.metrics.features import Features
from mmspec.metrics.metric import PairedMetric, Rows, SampleBatch

RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))  # transform, hop, window
FLOOR = 1e-7  # of power
LEAST = max(size for size, _, _ in RESOLUTIONS) // 2 + 1  # samples that can be reflected at both ends


def stft_distance(generated: Any, reference: Any) -> float:
    """Spectral convergence plus the mean difference of log magnitudes, averaged over three resolutions.

    Args:
        generated: A recording float [T], at least 1,025 samples.
        reference: A recording of the same length.

    Raises:
        ArgumentError: If a recording has another shape, is too short, or has values that are not finite, or if the
            lengths differ.
    """
    x, y = as_waveform(generated, "generated", LEAST), as_waveform(reference, "reference", LEAST)
    if len(x) != len(y):
        raise ArgumentError(f"generated has {len(x)} samples, reference has {len(y)}; they must be equally long")
    parts = []
    for size, hop, window in RESOLUTIONS:
        a, b = (np.sqrt(np.maximum(magnitudes(wave, size, hop, window) ** 2, FLOOR)) for wave in (x, y))
        parts.append(np.linalg.norm(b - a) / np.linalg.norm(b) + np.abs(np.log(b) - np.log(a)).mean())
    return float(np.mean(parts))


class StftDistance(PairedMetric):
    """The mean of `stft_distance` of recordings at 16 kHz."""

    kind = "audio"

    def extract(self, samples: SampleBatch, extractor: Any) -> Rows:
        return list(waves_of(samples, self.name, LEAST))

    def distance(self, generated: Features, reference: Features) -> float:
        if len(generated) != len(reference):
            raise ArgumentError(
                f"metric {self.name!r} compares recordings of equal length; at {RATE} Hz one has {len(generated)} "
                f"samples, its reference has {len(reference)}"
            )
        return stft_distance(generated, reference)


STFT = StftDistance("stft")
