"""Inception score (Salimans et al. 2016): exp of the mean KL divergence of a sample's classes from the marginal."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.extractors.inception import InceptionExtractor
from mmspec.metrics.features import as_features
from mmspec.metrics.metric import Groups, Metric, Rows, SampleBatch, resample_halves


def inception_score(logits: Any, splits: int = 10) -> tuple[float, float | None]:
    """Mean and standard deviation of the score over equal, consecutive splits of the samples.

    The score depends on the number of samples per split: published ones have 5,000. If N is not divisible, the first
    splits get one sample more. Shuffle first if neighboring samples are alike.

    Args:
        logits: [N, C], before the softmax. For Inception, torch-fidelity and others leave out the bias of the last
            layer.
        splits: Number of splits.

    Returns:
        The mean, and the standard deviation or None for one split.

    Raises:
        ArgumentError: If `as_features` raises it, or if there is not at least one sample per split.
    """
    if splits < 1:
        raise ArgumentError(f"splits={splits} is not allowed; it must be 1 or more")
    found = as_features(logits, "logits", least=splits)
    shifted = found - found.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    scores = []
    for part in np.array_split(log_p, splits):
        marginal = np.exp(part).mean(0)
        # Where the marginal is 0 so is every p, and 0 log 0 counts as 0.
        log_marginal = np.log(np.where(marginal > 0, marginal, 1.0))
        scores.append(np.exp((np.exp(part) * (part - log_marginal)).sum(1).mean()))
    return float(np.mean(scores)), float(np.std(scores)) if splits > 1 else None


class InceptionScore(Metric):
    """`inception_score` of all samples in one split."""

    kind = "image"
    extractor = "inception"
    higher_is_better = True

    def extract(self, samples: SampleBatch, extractor: InceptionExtractor) -> Rows:
        return list(extractor.logits(samples.images))

    def measure(self, rows: Rows, reference: Any, groups: Groups = None) -> Estimate:
        logits = np.stack(rows)
        return resample_halves(lambda index: inception_score(logits[index], splits=1)[0], len(logits))


INCEPTION_SCORE = InceptionScore("is")
