"""Metrics of sets of features, compared with computations that share no formula with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.image.fid import _compute_fid
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import poly_mmd

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features
from mmspec.metrics.gaussian import Gaussian, fit
from mmspec.metrics.image.clip_score import clip_scores
from mmspec.metrics.image.cmmd import cmmd
from mmspec.metrics.image.frechet import frechet_distance
from mmspec.metrics.image.inception_score import inception_score
from mmspec.metrics.image.kid import kid, polynomial_mmd
from mmspec.metrics.image.precision_recall import precision_recall
from mmspec.metrics.reference import load_reference, reference_of, save_reference


def normal(count: int, width: int, seed: int, shift: float = 0.0) -> Features:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)) @ rng.normal(size=(width, width)) / math.sqrt(width) + shift


def by_eigenvalues(x: Features, y: Features) -> float:
    """The textbook form: the trace of the root of the product, by the eigenvalues of that asymmetric product."""
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(s @ t).astype(complex)).real.sum()
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(s) + np.trace(t) - 2 * roots)


def test_frechet_distance_equals_the_textbook_form_and_torchmetrics() -> None:
    x, y = normal(300, 12, 0), normal(200, 12, 1, shift=0.5)
    found = frechet_distance(x, y)
    assert found == pytest.approx(by_eigenvalues(x, y), abs=1e-8)
    theirs = _compute_fid(*(torch.from_numpy(m) for z in (x, y) for m in (z.mean(0), np.cov(z, rowvar=False))))
    assert found == pytest.approx(float(theirs), abs=1e-8)
    assert frechet_distance(fit(x), y) == pytest.approx(found, abs=1e-9)
    assert frechet_distance(torch.from_numpy(x), fit(y)) == pytest.approx(found, abs=1e-9)


def test_frechet_distance_of_diagonal_gaussians_is_known() -> None:
    a, b = np.array([1.0, 4.0, 9.0]), np.array([4.0, 0.0, 1.0])
    found = frechet_distance(Gaussian(np.zeros(3), np.diag(a)), Gaussian(np.ones(3), np.diag(b)))
    assert found == pytest.approx(3 + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum(), abs=1e-12)


def test_frechet_distance_of_fewer_samples_than_features() -> None:
    x, y = normal(20, 64, 0), normal(30, 64, 1)
    # The nuclear norm of the product of the centred samples themselves, by its own square.
    product = (x - x.mean(0)) @ (y - y.mean(0)).T / math.sqrt(19 * 29)
    nuclear = np.sqrt(np.clip(np.linalg.eigvalsh(product @ product.T), 0, None)).sum()
    traces = np.trace(np.cov(x, rowvar=False)) + np.trace(np.cov(y, rowvar=False))
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + traces - 2 * nuclear
    assert frechet_distance(x, y) == pytest.approx(expected, abs=1e-6)
    assert frechet_distance(fit(x), fit(y)) == pytest.approx(expected, abs=1e-6)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(fit(x), fit(x)) == pytest.approx(0, abs=1e-9)


def test_frechet_distance_is_accurate_far_from_the_origin() -> None:
    x, y = normal(300, 12, 0), normal(200, 12, 1)
    assert frechet_distance(x + 1e7, y + 1e7) == pytest.approx(frechet_distance(x, y), abs=1e-5)


def test_frechet_distance_grows_when_samples_are_few_and_kid_does_not() -> None:
    frechet, kernel = [], []
    for count in (50, 200, 800):
        x, y = (np.random.default_rng(seed).normal(size=(count, 32)) for seed in (0, 1))
        frechet.append(frechet_distance(x, y))
        kernel.append(kid(x, y).value)
    assert frechet[0] > 2 * frechet[1] > 4 * frechet[2] > 0
    assert max(map(abs, kernel)) < 0.05


def test_bfloat16_features_are_read_in_double() -> None:
    x = torch.from_numpy(normal(50, 4, 0)).bfloat16()
    y = torch.from_numpy(normal(50, 4, 1)).bfloat16()
    assert frechet_distance(x, y) == frechet_distance(x.double().numpy(), y.double().numpy())


def test_kid_equals_the_sum_over_pairs() -> None:
    x, y = normal(7, 5, 0), normal(9, 5, 1, shift=0.3)

    def kernel(a: Features, b: Features) -> float:
        return (sum(float(p) * float(q) for p, q in zip(a, b, strict=True)) / 5 + 1) ** 3

    xx = sum(kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j) / (7 * 6)
    yy = sum(kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j) / (9 * 8)
    xy = sum(kernel(a, b) for a in x for b in y) / 63
    found = kid(x, y)
    assert found.value == pytest.approx(xx + yy - 2 * xy, abs=1e-10)
    assert (found.subsets, found.spread, found.subset_size) == (1, 0.0, 9)
    same = normal(9, 5, 2)  # torchmetrics takes as many of both
    theirs = poly_mmd(torch.from_numpy(same), torch.from_numpy(y))
    assert kid(same, y).value == pytest.approx(float(theirs), abs=1e-10)


def test_kid_of_subsets_averages_to_that_of_all_and_is_reproducible() -> None:
    x, y = normal(60, 4, 0), normal(80, 4, 1, shift=0.5)
    found = kid(x, y, subsets=400, subset_size=20)
    assert found == kid(x, y, subsets=400, subset_size=20)
    assert (found.subset_size, found.subsets) == (20, 400)
    assert found.value == pytest.approx(polynomial_mmd(x, y), abs=4 * found.spread / math.sqrt(400))
    assert found.value != kid(x, y, subsets=400, subset_size=20, seed=1).value


@pytest.mark.filterwarnings("ignore:Metric `InceptionScore` will save all extracted features", r"ignore:std\(\)")
def test_inception_score_equals_the_definition_and_torchmetrics() -> None:
    logits = normal(23, 6, 0) * 3
    scores = []
    for first, last in ((0, 6), (6, 12), (12, 18), (18, 23)):
        p = [[math.exp(z) / sum(map(math.exp, row)) for z in row] for row in logits[first:last]]
        q = [sum(column) / len(p) for column in zip(*p, strict=True)]
        scores.append(math.exp(sum(a * math.log(a / b) for row in p for a, b in zip(row, q, strict=True)) / len(p)))
    whole = InceptionScore(torch.nn.Identity(), splits=1)  # with more than one split it shuffles first
    whole.update(torch.from_numpy(logits))
    assert inception_score(logits, splits=1)[0] == pytest.approx(float(whole.compute()[0]), abs=1e-6)
    mean, spread = inception_score(logits, splits=4)
    assert mean == pytest.approx(sum(scores) / 4, abs=1e-10)
    assert spread == pytest.approx(np.std(scores), abs=1e-10)


def test_inception_score_at_its_extremes() -> None:
    mean, spread = inception_score(np.zeros((8, 5)), splits=1)
    assert mean == pytest.approx(1, abs=1e-12) and spread is None
    sure = np.full((10, 5), -1e4)
    sure[np.arange(10), np.arange(10) % 5] = 1e4
    assert inception_score(sure, splits=2)[0] == pytest.approx(5, abs=1e-12)
    sure[:] = -np.float64(1e4)
    sure[:, 0] = 0  # every marginal but one is 0
    assert inception_score(sure, splits=1)[0] == pytest.approx(1, abs=1e-12)


def slow_coverage(points: Features, others: Features, k: int) -> list[bool]:
    def distance(a: Features, b: Features) -> float:
        return math.dist(a.tolist(), b.tolist())

    radii = [sorted(distance(a, b) for j, b in enumerate(others) if j != i)[k - 1] for i, a in enumerate(others)]
    return [any(distance(p, o) <= r for o, r in zip(others, radii, strict=True)) for p in points]


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_precision_and_recall_equal_the_definition(offset: float) -> None:
    x, y = normal(40, 3, 0), normal(30, 3, 1, shift=0.7)
    found = precision_recall(x + offset, y + offset, k=3)
    assert found.generated.tolist() == slow_coverage(x, y, 3)
    assert found.reference.tolist() == slow_coverage(y, x, 3)
    assert 0 < found.precision < 1 and 0 < found.recall < 1


def test_one_repeated_sample_has_full_precision_and_no_recall() -> None:
    y = normal(50, 4, 0)
    found = precision_recall(np.repeat(y[:1], 50, 0), y)
    assert found.precision == 1 and found.recall == pytest.approx(1 / 50)


def test_cmmd_equals_the_sum_over_pairs() -> None:
    x, y = normal(6, 4, 0), normal(8, 4, 1)

    def kernel(a: Features, b: Features) -> float:
        a, b = a / math.hypot(*a), b / math.hypot(*b)
        return math.exp(-(math.dist(a, b) ** 2) / 200)

    def mean(a: Features, b: Features) -> float:
        return sum(kernel(p, q) for p in a for q in b) / (len(a) * len(b))

    assert cmmd(x, y) == pytest.approx(1000 * (mean(x, x) + mean(y, y) - 2 * mean(x, y)), abs=1e-8)
    apart = [(len(z) ** 2 * mean(z, z) - len(z)) / (len(z) * (len(z) - 1)) for z in (x, y)]
    assert cmmd(x, y, unbiased=True) == pytest.approx(1000 * (sum(apart) - 2 * mean(x, y)), abs=1e-8)
    assert cmmd(x, 5 * x) == pytest.approx(0, abs=1e-12)


def test_clip_score_cuts_off_each_sample() -> None:
    images, texts = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]]), np.array([[-3.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(clip_scores(images, texts), [0.0, 100 / math.sqrt(2), 100.0], atol=1e-12)
    np.testing.assert_allclose(clip_scores(images, texts, weight=2.5), [0.0, 2.5 / math.sqrt(2), 2.5], atol=1e-12)


GOOD = normal(8, 3, 0)
METRICS: dict[str, Any] = {"frechet": frechet_distance, "kid": kid, "cmmd": cmmd, "precision_recall": precision_recall}


@pytest.mark.parametrize("name", METRICS)
def test_invalid_features_raise(name: str) -> None:
    metric = METRICS[name]
    hole = GOOD.copy()
    hole[5, 1] = np.nan
    for bad, message in [
        (hole, "generated has NaN or infinite values, first in sample 5"),
        (GOOD[:1], "generated has 1 samples; this metric needs at least"),
        (GOOD[:, :2], "generated has 2 features, reference has 3"),
        (GOOD[0], r"generated has shape \[3\]"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            metric(bad, GOOD)
    with pytest.raises(ArgumentError, match="reference has NaN"):
        metric(GOOD, hole)


def test_invalid_settings_raise() -> None:
    for call, message in [
        (lambda: kid(GOOD, GOOD, subset_size=1), "subset_size=1"),
        (lambda: precision_recall(GOOD, GOOD, k=0), "k=0"),
        (lambda: precision_recall(GOOD[:3], GOOD), "at least 4"),
        (lambda: inception_score(GOOD, splits=9), "logits has 8 samples; this metric needs at least 9"),
        (lambda: cmmd(GOOD, GOOD * 0), "length 0 in sample 0"),
        (lambda: cmmd(GOOD, GOOD, sigma=0), "sigma=0"),
        (lambda: clip_scores(GOOD, GOOD[:4]), "one text per image"),
        (lambda: frechet_distance(Gaussian(np.zeros(3), np.eye(2)), GOOD), r"\[D\] and \[D, D\]"),
        (lambda: frechet_distance(Gaussian(np.zeros(3), np.full((3, 3), np.nan)), GOOD), "NaN"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()


def test_reference_statistics_survive_saving_and_loading(tmp_path: Path) -> None:
    reference = reference_of(normal(50, 4, 0), "shapes-1")
    save_reference(reference, tmp_path / "ours.npz")
    found = load_reference(tmp_path / "ours.npz", "shapes-1")
    assert (found.extractor, found.gaussian.count) == ("shapes-1", 50)
    assert found.features is not None and reference.features is not None
    np.testing.assert_array_equal(found.features, reference.features)
    np.testing.assert_array_equal(found.gaussian.covariance, reference.gaussian.covariance)
    with pytest.raises(ArgumentError, match="made by extractor 'shapes-1', not by 'clip'"):
        load_reference(tmp_path / "ours.npz", "clip")
    save_reference(reference, tmp_path / "small.npz", keep_features=False)
    assert load_reference(tmp_path / "small.npz").features is None


def test_adm_statistics_load(tmp_path: Path) -> None:
    x = normal(50, 4, 0)
    sigma = np.cov(x, rowvar=False)
    np.savez(tmp_path / "adm.npz", mu=x.mean(0), sigma=sigma, mu_s=np.zeros(7), sigma_s=np.eye(7))
    found = load_reference(tmp_path / "adm.npz", "inception")
    assert (found.extractor, found.gaussian.count, found.features) == ("", None, None)
    assert frechet_distance(x, found.gaussian) == pytest.approx(0, abs=1e-9)
    np.savez(tmp_path / "images.npz", arr_0=np.zeros(3))
    (tmp_path / "text.npz").write_text("no archive")
    for name, message in [("images", "no mu and no sigma"), ("text", "cannot be read"), ("none", "cannot be read")]:
        with pytest.raises(ArgumentError, match=message):
            load_reference(tmp_path / f"{name}.npz")
