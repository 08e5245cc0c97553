"""Metrics of an evaluation, each with its interval and its paired difference from plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.arguments import refused
from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError
from mmspec.metrics.comparisons import LEVEL
from mmspec.metrics.estimate import Estimate, Interval
from mmspec.metrics.extractors.registry import check_extractor
from mmspec.metrics.metric import NOUNS, Groups, Kind, Metric, Rows
from mmspec.metrics.registry import find_metric
from mmspec.metrics.shares import Share
from mmspec.metrics.values import Count, Quantity, Real

Table = Mapping[str, Rows]
"""The rows of one set of samples, by `Metric.column`."""


@dataclass(frozen=True)
class SimultaneousEnds:
    """The ends of an interval that is wide enough for several of them to hold at once (Bonferroni).

    Attributes:
        low: Lower end.
        high: Upper end.
        comparisons: The number of intervals of which all hold, with the probability of a single one alone.
    """

    low: Real
    high: Real
    comparisons: Count


@dataclass(frozen=True)
class Difference(Interval):
    """A paired difference from plain decoding, with its 95 % interval.

    For a share of 1 it brings what does not follow from the ends of the interval; None for other metrics, whose
    differences are taken to be normal, and in results of earlier versions.

    Attributes:
        p: Two-sided p-value of no difference.
        sample_effect: How much a prompt that differs changes the value, on average.
        simultaneous: The ends of the interval that holds together with those of the other relaxed recipes.
    """

    p: Quantity | None = None
    sample_effect: Quantity | None = None
    simultaneous: SimultaneousEnds | None = None


@dataclass(frozen=True)
class Quality:
    """A metric of one recipe, with its 95 % interval.

    Attributes:
        value: Of all samples.
        low: Lower end of the interval.
        high: Upper end of the interval.
        n: Number of samples.
        extractor: Name and fingerprint, "" if there is none.
        difference: The paired difference from plain decoding; None for plain itself, and where nothing pairs.
    """

    value: Real
    low: Real
    high: Real
    n: Count
    extractor: str
    difference: Difference | None


def find_metrics(names: Sequence[str], weights: Mapping[str, str], count: int) -> list[Metric]:
    """The metrics of these names, checked before any work.

    Args:
        names: Names of metrics.
        weights: For each extractor, the weights that the user named.
        count: Number of samples.

    Raises:
        UnknownNameError: If there is no metric, or no extractor, of one of the names.
        ArgumentError: If weights are not named, samples are too few, metrics cannot be combined, or metrics of images
            are mixed with metrics of audio.
    """
    found = [find_metric(name) for name in names]
    for metric in found:
        if metric.extractor:
            check_extractor(metric.extractor, weights)
        metric.check_count(count)
    for metric in found:
        metric.check_combination(found)
    kinds = {metric.kind: metric.name for metric in found if metric.kind is not None}
    if len(kinds) > 1:
        raise ArgumentError(f"metric {kinds['audio']!r} is of audio and {kinds['image']!r} of images; ask for one kind")
    return found


def refuse_unread_weights(metrics: Sequence[Metric], weights: Mapping[str, str]) -> None:
    """Checks that each of the weights that the user named is read.

    Raises:
        ArgumentError: If no metric reads them.
    """
    unread = weights.keys() - {name for metric in metrics for name in (metric.extractor, *metric.weights)}
    if unread:
        options, names = ", ".join(f"--{name}" for name in sorted(unread)), ",".join(metric.name for metric in metrics)
        raise ArgumentError(f"{options} is read by none of the metrics {names}; leave it out")


def check_kind(metrics: Sequence[Metric], kind: Kind) -> None:
    """Checks that metrics can be computed from what a model generates.

    Raises:
        ArgumentError: If one is of the other kind.
    """
    for metric in metrics:
        if metric.kind is not None and metric.kind != kind:
            raise ArgumentError(
                f"metric {metric.name!r} is of {NOUNS[metric.kind]}, and the model generates {NOUNS[kind]}"
            )


def check_statistics(metrics: Sequence[Metric], stats: Stats) -> None:
    """Checks that a call measured what metrics read.

    Raises:
        ArgumentError: If it did not.
    """
    for metric in metrics:
        parts: Sequence[object] = stats.rows or [stats]
        if metric.statistic and any(getattr(part, metric.statistic, 0) is None for part in parts):
            raise ArgumentError(f"metric {metric.name!r} is not possible: this model's pipeline does not measure it")


def compare(
    metric: Metric, tables: Sequence[Table], reference: Any, extractor: str = "", paired: bool = True
) -> list[Quality]:
    """The metric of every set of samples, and the differences from the first set.

    Args:
        metric: What to measure.
        tables: The rows of each set.
        reference: What the metric compares with; None unless it needs a reference.
        extractor: Name and fingerprint of the metric's extractor.
        paired: Whether sample i of each set has the same prompt and seed; otherwise there are no differences.

    Raises:
        ArgumentError: If samples are too few, or the reference lacks what the metric reads.
    """
    estimates = [measure(metric, table, reference) for table in tables]
    counts = [len(table[metric.column]) for table in tables]
    return with_differences(estimates, counts, extractor, paired, len(tables) - 1)


def measure(metric: Metric, table: Table, reference: Any, groups: Groups = None) -> Estimate:
    """The metric of one set of samples; the arguments are those of `compare` and of `Metric.measure`.

    Raises:
        ArgumentError: As `compare`.
    """
    rows = table[metric.column]
    metric.check_count(len(rows))
    found = metric.measure(rows, reference, groups)
    if not isinstance(found, Estimate):
        raise refused(f"`measure` of the metric {metric.name!r}", "a mmspec.metrics.estimate.Estimate", found)
    return found


def with_differences(
    estimates: Sequence[Estimate],
    counts: Sequence[int],
    extractor: str = "",
    paired: bool = True,
    comparisons: int = 1,
) -> list[Quality]:
    """A metric of sets of so many samples, and the differences from the first set; see `compare`.

    Args:
        estimates: Of each set.
        counts: The number of samples of each.
        extractor: Name and fingerprint of the metric's extractor.
        paired: Whether there are differences.
        comparisons: The number of differences that a reader picks from, whose intervals are to hold at once.
    """
    compared: list[Quality] = []
    for i, (estimate, count) in enumerate(zip(estimates, counts, strict=True)):
        own = estimate.interval()
        difference = difference_of(estimate.minus(estimates[0]), comparisons) if i and paired else None
        compared.append(Quality(own.value, own.low, own.high, count, extractor, difference))
    return compared


def difference_of(estimate: Estimate, comparisons: int = 1) -> Difference:
    """A paired difference as results hold it; see `with_differences`."""
    own = estimate.interval()
    if not isinstance(estimate, Share):
        return Difference(own.value, own.low, own.high)
    count = max(comparisons, 1)
    wide = estimate.interval(1 - LEVEL / count)
    ends = SimultaneousEnds(wide.low, wide.high, count)
    return Difference(own.value, own.low, own.high, estimate.p_value(), estimate.sample_effect, ends)
