"""Entropy and negative log-likelihood, in bits per token: measured on the target distribution while a model generates.

Entropy is the mean entropy of the target distribution along the emitted tokens; nll is the mean of minus the logarithm
of the probability that the target distribution gives the emitted tokens. They are equal in expectation where the target
distribution is kept. Measuring them takes time in every target call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmspec.metrics.estimate import Estimate
from mmspec.metrics.metric import Groups, Metric, Rows, resample_mean


class Likelihood(Metric):
    """The mean of a statistic that the pipeline reports per sample; the metric bears the statistic's name.

    Args:
        statistic: "entropy" or "nll".
        higher_is_better: None for what is neither good nor bad.
    """

    def __init__(self, statistic: str, higher_is_better: bool | None) -> None:
        super().__init__(statistic)
        self.statistic = statistic
        self.higher_is_better = higher_is_better

    def measure(self, rows: Rows, reference: Any, groups: Groups = None) -> Estimate:
        return resample_mean(np.stack(rows), groups)

    def sample_scores(self, rows: Rows) -> Sequence[float]:
        return [float(value) for value in rows]


ENTROPY = Likelihood("entropy", higher_is_better=None)
NLL = Likelihood("nll", higher_is_better=False)
