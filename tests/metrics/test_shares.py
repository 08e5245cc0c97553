"""Intervals of shares: those of Clopper and Pearson and the sign test, monotone, and with their nominal coverage."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.metrics.bootstrap import resample
from mmspec.metrics.comparisons import compare_all, detectable, simultaneous_ends, widening
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.evaluation.quality import difference_of, with_differences
from mmspec.metrics.exponential_sums import probability_above_zero
from mmspec.metrics.metric import resample_mean
from mmspec.metrics.shares import Share, ratio_of, share_of

Scores = NDArray[np.float64]


def scores(wrong: int, count: int) -> Scores:
    return np.array([0.0] * wrong + [1.0] * (count - wrong))


def at_least(right: int, count: int, share: float) -> float:
    """Probability of at least `right` successes."""
    return sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(right, count + 1))


@pytest.mark.parametrize(("wrong", "count"), [(0, 12), (1, 12), (6, 12), (12, 12), (0, 1000), (3, 100), (115, 1000)])
@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 45])
def test_the_limits_of_shares_of_right_and_wrong_are_those_of_clopper_and_pearson(
    wrong: int, count: int, level: float
) -> None:
    found, tail = share_of(scores(wrong, count)).interval(level), (1 - level) / 2
    assert found.value == pytest.approx(1 - wrong / count)
    if wrong < count:
        assert at_least(count - wrong, count, found.low) == pytest.approx(tail, rel=1e-5)
    else:
        assert found.low == 0
    if wrong:
        assert at_least(wrong, count, 1 - found.high) == pytest.approx(tail, rel=1e-5)
    else:
        assert found.high == 1 and found.low == pytest.approx(tail ** (1 / count), abs=1e-8)


@pytest.mark.parametrize("lost", [1, 2, 5, 6, 20])
def test_the_p_value_of_losses_alone_is_that_of_the_sign_test(lost: int) -> None:
    difference = share_of(scores(lost, 100)).minus(share_of(np.ones(100)))
    assert difference.p_value() == pytest.approx(min(1.0, 2 * 0.5**lost), rel=1e-6)
    assert (difference.interval().high < 0) == (difference.p_value() < 0.05)
    assert share_of(np.ones(100)).minus(share_of(scores(lost, 100))).p_value() == pytest.approx(difference.p_value())


def test_limits_rise_with_every_score_and_no_fault_narrows_them() -> None:
    """A bootstrap gives a recipe with one small fault an interval far narrower than that of a faultless one."""
    faults = [0.0, 1e-6, 0.01, 0.1, 0.5, 1.0]
    found = [share_of(np.array([1 - fault, *[1.0] * 99])).interval() for fault in faults]
    lows, highs = [one.low for one in found], [one.high for one in found]
    assert lows == sorted(lows, reverse=True) and highs == sorted(highs, reverse=True)
    assert found[0].high - found[0].low == pytest.approx(0.0362, abs=1e-4) and lows[1] == pytest.approx(lows[0])
    by_resampling = resample_mean(np.array([0.99, *[1.0] * 99])).interval()
    assert by_resampling.high - by_resampling.low < 5e-4
    assert resample(lambda index: 1.0, 100).interval().low == 1.0


def test_differences_that_are_all_zero_have_an_interval_and_wider_ones_for_several_recipes() -> None:
    plain, relaxed, *_ = with_differences([share_of(np.ones(100))] * 46, [100] * 46, comparisons=45)
    difference = relaxed.difference
    assert plain.difference is None and difference is not None and difference.value == 0 and difference.p == 1
    unseen = 1 - 0.025 ** (1 / 100)
    assert difference.high == -difference.low == pytest.approx(unseen, rel=1e-6)
    assert difference.simultaneous is not None
    together = 1 - (0.025 / 45) ** (1 / 100)
    record = asdict(difference)
    assert record["simultaneous"]["comparisons"] == 45
    assert simultaneous_ends(record, 45)[1] == pytest.approx(together, rel=1e-6)
    assert together > 1.15 * widening(45) * unseen  # what a normal tail would give is too narrow
    # For one alone the 95 % interval; for fewer the same; for more than was known, at least what is right.
    assert simultaneous_ends(record, 1)[1] == difference.high and simultaneous_ends(record, 9)[1] == pytest.approx(
        together, rel=1e-6
    )
    assert simultaneous_ends(record, 450)[1] >= 1 - (0.025 / 450) ** (1 / 100)


def test_samples_of_one_prompt_are_one_observation() -> None:
    right = np.repeat(scores(4, 12), 8)
    by_prompt = share_of(right, groups=[str(i // 8) for i in range(96)]).interval()
    apart = share_of(scores(4, 12)).interval()
    assert (by_prompt.low, by_prompt.high) == pytest.approx((apart.low, apart.high), abs=1e-6)
    assert share_of(right).interval().low > by_prompt.low + 0.1
    with pytest.raises(ArgumentError, match="at least 2 samples, or prompts; there are 1"):
        share_of(np.ones(3), groups=["a"] * 3)
    with pytest.raises(ArgumentError, match="2 labels for 3 samples"):
        share_of(np.ones(3), groups=["a", "b"])


def test_rates_of_errors_are_ratios_of_sums_and_may_exceed_one() -> None:
    wrong, words = np.array([0.0, 1, 7, 2]), np.array([4.0, 5, 4, 7])
    found = ratio_of(wrong, words)
    assert found.value == pytest.approx(0.5) and found.most == 7 / 4
    assert 0 < found.interval().low < 0.5 < found.interval().high < 7 / 4
    faultless = ratio_of(np.zeros(12), np.full(12, 7.0)).interval()
    assert (faultless.low, faultless.high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 12)), abs=1e-6)
    difference = found.minus(ratio_of(np.zeros(4), words))
    assert difference.least == -7 / 4 and difference.value == pytest.approx(0.5)
    with pytest.raises(ArgumentError, match="of the same prompts"):
        found.minus(ratio_of(wrong, words[::-1].copy()))
    with pytest.raises(ArgumentError, match=r"shares from 0 to 1.5 are not allowed; they must be 0 to 1"):
        share_of([0.0, 1.5])
    with pytest.raises(ArgumentError, match="level=1"):
        found.interval(1)


def test_errors_where_nothing_may_be_wrong_count_as_those_of_one_word() -> None:
    """A prompt without a word, of which a recognizer hears three: the interval was that of a rate of up to 3,000."""
    found = ratio_of(np.array([3.0, 1, 0, 0]), np.array([0.0, 5, 6, 4]))
    assert found.most == 3 and found.interval().high < 3
    assert ratio_of(np.zeros(3), np.zeros(3)).interval().high == pytest.approx(0, abs=1e-9)
    for wrong in (np.nan, np.inf, -1.0):
        with pytest.raises(ArgumentError, match="parts from .* are not allowed; give finite ones"):
            ratio_of(np.array([wrong, 1.0]), np.ones(2))


def test_tails_of_many_different_variables_are_those_of_few_points_of_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The integral ends where nothing is left of it: of 5,000 variables long before the end of the path."""
    points: list[int] = []
    logarithm = np.log

    def counted(x: NDArray[np.complex128]) -> NDArray[np.complex128]:
        points.append(x.shape[-1])
        return logarithm(x)

    weights = np.random.default_rng(0).normal(size=5000)
    monkeypatch.setattr("mmspec.metrics.exponential_sums.np.log", counted)
    early = probability_above_zero(weights, np.ones(5000))
    assert sum(points) < 60
    monkeypatch.setattr("mmspec.metrics.exponential_sums._NOTHING", 0.0)
    assert early == pytest.approx(probability_above_zero(weights, np.ones(5000)), rel=1e-9) and sum(points) > 200


def test_tails_of_sums_of_exponential_variables() -> None:
    def above(*weights: float) -> float:
        return probability_above_zero(np.array(weights), np.ones(len(weights)))

    for a in (0.001, 0.5, 3.0, 1e6):  # of two, P(E > a F) = 1 / (1 + a)
        assert above(1.0, -a) == pytest.approx(1 / (1 + a), rel=1e-6)
    for k in (1, 3, 30, 200):  # a sum of k is exceeded by one more with probability 2^-k
        assert probability_above_zero(np.array([1.0, -1.0]), np.array([1.0, k])) == pytest.approx(0.5**k, rel=1e-6)
    assert above(1.0, 0.0) == 1 and above(-1.0, 0.0) == 0 and above(0.0) == 0
    # Many small weights, whose pole is of a high order, and few large ones, whose poles lie nearer.
    weights = np.repeat([-1.962, -0.962, 0.038, 1.038, 4.038], [2, 6, 38, 4, 1])
    drawn = np.random.default_rng(1).exponential(size=(100_000, 51)) @ weights
    assert above(*weights) == pytest.approx((drawn > 0).mean(), abs=0.006)


def test_the_difference_that_would_have_been_seen_is_seen_in_four_of_five_runs() -> None:
    """What a normal distribution gives is far too small where all samples are alike."""
    none = difference_of(share_of(np.ones(200)).minus(share_of(np.ones(200))))
    interval = {"value": 0.0, "low": none.low, "high": none.high, "p": none.p, "sample_effect": none.sample_effect}
    rng = np.random.default_rng(0)

    def seen(loss: float) -> float:
        found = [share_of(scores(int(rng.binomial(200, loss)), 200)).minus(share_of(np.ones(200))) for _ in range(400)]
        return float(np.mean([one.p_value() * 45 < 0.05 for one in found]))

    assert 0.8 < seen(detectable(interval, 45)) < 1
    assert seen(0.5 * detectable(interval, 45)) < 0.5
    assert seen(detectable({**interval, "sample_effect": None}, 45)) < 0.4
    assert not compare_all([interval] * 45)[0].significant


def binary(rng: np.random.Generator) -> tuple[Scores, float]:
    return (rng.random(60) < 0.97).astype(float), 0.97


def attributes(rng: np.random.Generator) -> tuple[Scores, float]:
    """Three of four samples are faultless, the others lose a share of a tenth on average."""
    return 1 - (rng.random(100) < 0.25) * rng.beta(1, 9, 100), 1 - 0.025


def rare(rng: np.random.Generator) -> tuple[Scores, float]:
    """One sample in a hundred loses everything: 100 samples often show none."""
    return 1 - (rng.random(100) < 0.01).astype(float), 0.99


CASES = [(binary, 0.9), (attributes, 0.95), (rare, 0.8)]


@pytest.mark.slow
@pytest.mark.parametrize(("sample", "resampled"), CASES, ids=lambda v: getattr(v, "__name__", None))
def test_intervals_of_shares_cover_the_truth(
    sample: Callable[[np.random.Generator], tuple[Scores, float]], resampled: float
) -> None:
    """Of 2,000 samples of a share, at least 95 % are covered.

    Power: a coverage of 93 % falls below the limit of 94 % with a probability of 96 %, one of 95 % with 2 %. The
    bootstrap, without what was not seen, covers less than `resampled`.
    """
    rng = np.random.default_rng(0)

    def coverage(estimate: Callable[[Scores], Estimate], runs: int) -> float:
        found = [(estimate(values).interval(), truth) for values, truth in (sample(rng) for _ in range(runs))]
        return float(np.mean([one.low <= truth <= one.high for one, truth in found]))

    assert coverage(share_of, 2000) > 0.94
    assert coverage(resample_mean, 300) < resampled


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0.0, 0.01, 0.1])
def test_intervals_of_paired_differences_cover_the_truth(lost: float) -> None:
    """Of 2,000 pairs of recipes, correlated by prompt, with four seeds for each of 50 prompts; power as above."""
    rng = np.random.default_rng(1)
    prompts = [str(i // 4) for i in range(200)]
    covered = []
    for _ in range(2000):
        ease = np.repeat(rng.beta(19, 1, 50), 4)
        plain = (rng.random(200) < ease).astype(float)
        relaxed = (rng.random(200) < ease * (1 - lost)).astype(float)
        difference: Share = share_of(relaxed, prompts).minus(share_of(plain, prompts))
        found = difference.interval()
        covered.append(found.low <= -0.95 * lost <= found.high)
    assert np.mean(covered) > 0.94
