"""The Frechet distance between the log-mel frames of two sets of recordings: one that needs no network and no weights.

It sees timbre, loudness and noise, not words or melody, and is comparable only at equal settings and equal numbers of
frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.frechet import frechet_distance
from mmspec.metrics.sound.spectrum import log_mel, read_waveform


def log_mel_distance(generated: Sequence[Any], reference: Sequence[Any], rate: int, bands: int = 80) -> float:
    """The distance of recordings, each float [T], at `rate` samples per second.

    **Raises:** `ArgumentError` for a set that is empty, or a recording shorter than 513 samples.
    """
    frames = []
    for name, recordings in (("generated", generated), ("reference", reference)):
        if not len(recordings):
            raise ArgumentError(f"{name} holds no recording; this metric needs at least one")
        waves = [read_waveform(wave, f"{name}[{i}]", least=513) for i, wave in enumerate(recordings)]
        frames.append(np.concatenate([log_mel(wave, rate, bands) for wave in waves]))
    return frechet_distance(frames[0], frames[1])
