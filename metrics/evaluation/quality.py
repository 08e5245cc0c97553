"""Metrics of an evaluation, each with its interval and its paired difference from plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError
from mmspec.metrics.bootstrap import Estimate, Interval
from mmspec.metrics.extractors.registry import check_extractor
from mmspec.metrics.metric import NOUNS, Kind, Metric, Rows
from mmspec.metrics.registry import find_metric
from mmspec.metrics.values import Count, Real

Table = Mapping[str, Rows]
"""The rows of one set of samples, by `Metric.column`."""


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
    difference: Interval | None


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
    return with_differences(estimates, counts, extractor, paired, metric.is_share)


def measure(metric: Metric, table: Table, reference: Any) -> Estimate:
    """The metric of one set of samples; the arguments are those of `compare`.

    Raises:
        ArgumentError: As `compare`.
    """
    rows = table[metric.column]
    metric.check_count(len(rows))
    return metric.measure(rows, reference)


def with_differences(
    estimates: Sequence[Estimate],
    counts: Sequence[int],
    extractor: str = "",
    paired: bool = True,
    share: bool = False,
) -> list[Quality]:
    """A metric of sets of so many samples, and the differences from the first set; see `compare`.

    With `share`, whether the values are shares of 1, samples that are all alike have an interval too.
    """
    compared: list[Quality] = []
    for i, (estimate, count) in enumerate(zip(estimates, counts, strict=True)):
        own = estimate.interval_of_share() if share else estimate.interval()
        difference = None
        if i and paired:
            minus = estimate.minus(estimates[0])
            difference = minus.interval_of_share(-1.0) if share else minus.interval()
        compared.append(Quality(own.value, own.low, own.high, count, extractor, difference))
    return compared
