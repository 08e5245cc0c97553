"""Opinion scores by networks that lie in packages of their own; nothing is fetched when they are loaded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.importing import extra
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch

RATE = 16_000
Score = Callable[[NDArray[np.float32]], float]


class PackagedScore(MeanMetric):
    """The mean of a score of each recording, from 1 to 5; the extra that installs the package has the metric's name."""

    kind = "audio"
    higher_is_better = True

    @abstractmethod
    def load(self, device: str) -> Score:
        """The package's score of a recording at `RATE`, -1 to 1; called once, it has imported all that it needs."""

    def load_extractor(self, weights: Mapping[str, str], device: str) -> Any:
        with extra(self.name, f"metric {self.name!r}"):
            return self.load(device)

    def scores(self, samples: SampleBatch, extractor: Score) -> Features:
        waves = [np.clip(clip.at(RATE), -1, 1).astype(np.float32) for clip in samples.audio]
        return np.array([extractor(wave) for wave in waves])


class DNSMOSMetric(PackagedScore):
    """DNSMOS (Reddy et al. 2022): the overall quality that listeners would hear, by Microsoft's networks."""

    def load(self, device: str) -> Score:
        from speechmos import dnsmos

        def score(wave: NDArray[np.float32]) -> float:
            return float(dnsmos.run(wave, sr=RATE)["ovrl_mos"])

        score(np.zeros(RATE, dtype=np.float32))  # the package imports librosa only now
        return score


class DistillMOSMetric(PackagedScore):
    """DistillMOS (Stahl and Gamper 2025): a small network that was taught the scores of a large one, of Microsoft."""

    def load(self, device: str) -> Score:
        from contextlib import redirect_stdout
        from io import StringIO

        import torch
        from distillmos import ConvTransformerSQAModel

        with redirect_stdout(StringIO()):  # it prints where its weights are
            network = ConvTransformerSQAModel().eval().to(device)

        @torch.no_grad()
        def score(wave: NDArray[np.float32]) -> float:
            return float(network(torch.from_numpy(wave)[None].to(device)))

        return score


DNSMOS = DNSMOSMetric("dnsmos")
DISTILLMOS = DistillMOSMetric("distillmos")
