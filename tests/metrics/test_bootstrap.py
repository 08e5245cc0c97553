"""Intervals have their nominal coverage, and pairing makes them narrower."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from train_shapes.render import render_batch, to_uint8

from mmspec.errors import ArgumentError, PromptError
from mmspec.metrics.bootstrap import bootstrap, mean_interval
from mmspec.metrics.image.attributes import attribute_scores
from mmspec.metrics.image.frechet import frechet_distance
from mmspec.vision.shapes.classifier import ShapesClassifier, score_captions
from mmspec.vision.shapes.domain import Caption, sample_scene
from mmspec.vision.shapes.grammar import describe
from mmspec.vision.shapes.grammar import parse as read_caption


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=400)
    half = 1.96 * values.std() / math.sqrt(400)
    whole = mean_interval(values, resamples=2000)
    halves = bootstrap(lambda i: float(values[i].mean()), 400, halves=True, resamples=2000)
    for found in (whole, halves):
        assert found.value == pytest.approx(values.mean(), abs=1e-12)
        assert found.high - found.value == pytest.approx(half, rel=0.1)
        assert found.value - found.low == pytest.approx(half, rel=0.1)


@pytest.mark.parametrize("halves", [False, True], ids=["with replacement", "halves"])
def test_intervals_have_their_nominal_coverage(halves: bool) -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for seed in range(120):
        values = rng.exponential(size=60)

        def mean(index: NDArray[np.int64], values: NDArray[np.float64] = values) -> float:
            return float(values[index].mean())

        found = bootstrap(mean, 60, halves=halves, resamples=200, level=0.9, seed=seed)
        inside += found.low <= 1 <= found.high
    assert 0.82 <= inside / 120 <= 0.96


def test_the_interval_of_a_distance_contains_its_value() -> None:
    """With replacement, a Frechet distance grows so much that its percentiles leave the value outside."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(100, 16)), rng.normal(size=(100, 16)) + 0.3
    found = bootstrap(lambda i: frechet_distance(x[i], y), 100, halves=True, resamples=100)
    assert found.low < found.value < found.high
    others = [frechet_distance(rng.normal(size=(100, 16)), y) for _ in range(100)]
    assert found.high - found.low == pytest.approx(np.subtract(*np.quantile(others, [0.975, 0.025])), rel=0.5)


def test_a_paired_difference_has_a_narrower_interval_than_its_parts() -> None:
    rng = np.random.default_rng(3)
    ease = rng.normal(size=200)
    a, b = ease + 0.1 * rng.normal(size=200), ease + 0.2 + 0.1 * rng.normal(size=200)
    paired = bootstrap(lambda i: float(b[i].mean() - a[i].mean()), 200)
    alone = mean_interval(b)
    assert paired.low > 0.1 and paired.high < 0.3
    assert alone.high - alone.low > 5 * (paired.high - paired.low)


def test_samples_of_one_group_are_resampled_together() -> None:
    prompts = np.repeat(np.arange(30), 10)
    values = np.repeat(np.random.default_rng(4).normal(size=30), 10)
    grouped = bootstrap(lambda i: float(values[i].mean()), 300, groups=prompts.tolist())
    assert grouped.high - grouped.value == pytest.approx(1.96 * values.std() / math.sqrt(30), rel=0.15)
    assert mean_interval(values).high - values.mean() < 0.5 * (grouped.high - values.mean())


def test_intervals_are_reproducible() -> None:
    values = np.arange(20.0)
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval(values) != mean_interval(values, seed=1)


def test_invalid_arguments_raise() -> None:
    for call, message in [
        (lambda: mean_interval([1.0]), "at least 2 samples to resample; there are 1"),
        (lambda: mean_interval([1.0, math.nan]), "finite"),
        (lambda: mean_interval([1.0, 2.0], level=1), "level=1"),
        (lambda: mean_interval([1.0, 2.0], resamples=1), "resamples=1"),
        (lambda: bootstrap(lambda i: 0.0, 3, groups=["a", "b"]), "2 labels for 3 samples"),
        (lambda: bootstrap(lambda i: 0.0, 3, groups=["a", "a", "a"]), "there are 1"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()


class Oracle(ShapesClassifier):
    """A classifier with given answers."""

    answers: list[Caption]

    def predict(self, images: torch.Tensor) -> list[Caption]:
        return self.answers[: len(images)]


def test_attribute_scores_are_those_of_each_image() -> None:
    scenes = [sample_scene(random.Random(seed)) for seed in range(4)]
    images = to_uint8(render_batch(scenes))
    prompts = [describe(scene.caption) for scene in scenes]
    classifier = Oracle(channels=4, hidden=4)
    classifier.answers = [scene.caption.canonical() for scene in scenes]
    classifier.answers[2] = read_caption("a large green star on a striped teal background")
    attributes, captions = attribute_scores(images, prompts, classifier)
    assert attributes[[0, 1, 3]].tolist() == [1, 1, 1] and captions.tolist() == [1, 1, 0, 1]
    single = score_captions([classifier.answers[2]], [read_caption(prompts[2])])["attributes"]
    assert attributes[2] == single < 1
    with pytest.raises(ArgumentError, match=r"there must be \[4, 64, 64, 3\]"):
        attribute_scores(images[:, :32], prompts, classifier)
    with pytest.raises(PromptError):
        attribute_scores(images[:1], ["a dog"], classifier)
