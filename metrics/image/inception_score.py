"""Inception score (Salimans et al. 2016): exp of the mean KL divergence of a sample's classes from those of all."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.features import read_features


def inception_score(logits: Any, splits: int = 10) -> tuple[float, float | None]:
    """Mean and standard deviation over `splits` equal runs of samples, in the order given; None for one split.

    The score depends on the number of samples in a split: published ones have 5,000. Samples left over when N is not
    divisible go to the first splits, one each. Shuffle before where neighbours are alike.

    Args:
        logits: [N, C], before the softmax. Of Inception, torch-fidelity and others leave out the bias of its last
            layer.

    Raises:
        ArgumentError: As `read_features`, or when there is not at least one sample per split.
    """
    if splits < 1:
        raise ArgumentError(f"splits={splits} is not allowed; it must be 1 or more")
    found = read_features(logits, "logits", least=splits)
    shifted = found - found.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    scores = []
    for part in np.array_split(log_p, splits):
        marginal = np.exp(part).mean(0)
        # Where the marginal is 0 so is every p, and 0 log 0 counts as 0.
        log_marginal = np.log(np.where(marginal > 0, marginal, 1.0))
        scores.append(np.exp((np.exp(part) * (part - log_marginal)).sum(1).mean()))
    return float(np.mean(scores)), float(np.std(scores)) if splits > 1 else None
