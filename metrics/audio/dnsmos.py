"""DNSMOS (Reddy et al. 2022): the overall quality of speech that listeners would hear, by Microsoft's networks.

The networks are in the package `speechmos`; nothing is fetched when they are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mmspec.environment.importing import install_extra
from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch

RATE = 16_000


class DNSMOSMetric(MeanMetric):
    """The mean of the overall score, from 1 to 5."""

    kind = "audio"
    higher_is_better = True

    def load_extractor(self, weights: Mapping[str, str], device: str) -> Any:
        """The package's function, called once, since it imports librosa only then.

        Raises:
            ArgumentError: If the package is not installed, or what it imports.
        """
        try:
            from speechmos import dnsmos

            dnsmos.run(np.zeros(RATE, dtype=np.float32), sr=RATE)
        except ImportError as error:
            raise ArgumentError(
                f"metric {self.name!r} needs the package speechmos; {install_extra('dnsmos')} ({error})"
            ) from None
        return dnsmos.run

    def scores(self, samples: SampleBatch, extractor: Any) -> Features:
        waves = [np.clip(clip.at(RATE), -1, 1).astype(np.float32) for clip in samples.audio]
        return np.array([float(extractor(wave, sr=RATE)["ovrl_mos"]) for wave in waves])


DNSMOS = DNSMOSMetric("dnsmos")
