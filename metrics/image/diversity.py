"""Diversity between seeds: how far the samples of one prompt lie apart in the features of an extractor."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.features import Features
from mmspec.metrics.metric import FeatureMetric, Groups, Rows, SampleBatch, resample_mean


def pairwise_distances(features: Features) -> Features:
    """The Euclidean distances of all pairs of rows of float64 [N, D], float64 [N * (N - 1) / 2]."""
    first, second = np.triu_indices(len(features), 1)
    return np.asarray(np.linalg.norm(features[first] - features[second], axis=1))


class Diversity(FeatureMetric):
    """The mean over prompts of the mean distance between samples of that prompt with different seeds.

    A rule that makes samples of one prompt alike lowers it, even where every single sample is good. The interval is
    over prompts.

    Args:
        extractor: The extractor's name.
    """

    needs_prompts = True
    higher_is_better = True
    min_samples = 4
    min_samples_reason = "two prompts with two seeds each are the fewest that differ"

    def __init__(self, extractor: str) -> None:
        super().__init__(f"diversity@{extractor}", extractor)

    @property
    def column(self) -> str:
        return self.name  # the rows name their prompts, unlike the features that other metrics share

    def extract(self, samples: SampleBatch, extractor: Any) -> Rows:
        """The features of each sample after a number that identifies its prompt, float64 [1 + D]."""
        marks = [_mark(prompt) for prompt in samples.prompts]
        return [np.concatenate([[mark], row]) for mark, row in zip(marks, samples.features(extractor), strict=True)]

    def measure(self, rows: Rows, reference: Any, groups: Groups = None) -> Estimate:
        by_prompt: dict[float, list[Features]] = {}
        for row in rows:
            by_prompt.setdefault(float(row[0]), []).append(row[1:])
        spread = [pairwise_distances(np.stack(found)).mean() for found in by_prompt.values() if len(found) > 1]
        if len(spread) < 2:
            raise ArgumentError(f"metric {self.name!r} needs two prompts with two seeds each; use more --seeds")
        return resample_mean(np.array(spread))


def _mark(prompt: str) -> float:
    """A whole number below 2**53, which a float64 holds exactly."""
    return float(int(hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:13], 16))
