"""What a metric's values mean: which direction is better, and whether they are shares of 1."""

from __future__ import annotations

from mmspec.errors import MMSpecError
from mmspec.metrics.registry import find_metric


def higher_is_better(metric: str) -> bool | None:
    """As `Metric.higher_is_better`; None for a metric of a package that is not installed."""
    try:
        return find_metric(metric).higher_is_better
    except MMSpecError:
        return None


def is_share(metric: str) -> bool:
    """As `Metric.is_share`; False for a metric of a package that is not installed."""
    try:
        return find_metric(metric).is_share
    except MMSpecError:
        return False
