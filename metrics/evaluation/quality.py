"""The metrics of an evaluation by name, each with its interval and its paired difference from plain decoding.

| name | what |
|---|---|
| `attributes`, `captions` | on `shapes`: share of stated attributes shown, share of prompts shown wholly |
| `clip` | CLIP score, needs weights of CLIP |
| `cmmd` | CMMD to the reference, needs weights of CLIP |
| `fid`, `kid`, `is` | as everybody defines them, need weights of Inception |
| `fd@X`, `kd@X` | Frechet and kernel distance over features of extractor X |
| `precision@X`, `recall@X` | shares of pictures covered, over features of X |
| `entropy` | bits per token of the target's law; measuring it makes every call slower |

Intervals of distances are over the recipe's pictures, the reference as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.errors import ArgumentError, unknown_name
from mmspec.metrics.cmmd import cmmd
from mmspec.metrics.extractors.names import check_extractor
from mmspec.metrics.features import Features
from mmspec.metrics.frechet import frechet_distance, rooted
from mmspec.metrics.inception_score import inception_score
from mmspec.metrics.interval import Index, Interval, Resampled, Statistic, resample
from mmspec.metrics.kid import kid
from mmspec.metrics.manifold import coverage
from mmspec.metrics.reference import Reference

SET_RESAMPLES = 200  # of quantities that take long for each
SAMPLE_METRICS = {"attributes": "", "captions": "", "entropy": "", "clip": "clip"}
ALIASES = {"fid": "fd@inception", "kid": "kd@inception", "cmmd": "cmmd@clip", "is": "is@inception"}
FAMILIES = ("fd", "kd", "precision", "recall")
HIGHER_IS_BETTER = ("attributes", "captions", "clip", "is", "precision", "recall")


@dataclass(frozen=True)
class Metric:
    """A metric as named, its family, and the extractor it reads ("" for none)."""

    name: str
    family: str
    extractor: str

    @property
    def of_samples(self) -> bool:
        """Whether it is a mean over samples, with no reference."""
        return self.family in SAMPLE_METRICS

    @property
    def needs_reference(self) -> bool:
        return not self.of_samples and self.family != "is"

    @property
    def column(self) -> str:
        """Which of the columns of a `Table` it reads."""
        if self.of_samples:
            return f"{self.family} of samples"
        return "logits" if self.family == "is" else self.extractor

    @property
    def higher_is_better(self) -> bool | None:
        """None for what is neither good nor bad."""
        return None if self.family == "entropy" else self.family in HIGHER_IS_BETTER


Table = Mapping[str, Features]  # by column, of one set of samples: features [N, D], or numbers [N]


@dataclass(frozen=True)
class Quality:
    """A metric of one recipe: value and 95 % interval, `n` samples, and the paired difference from plain's.

    - `extractor`: name and fingerprint, "" where there is none.
    """

    value: float
    low: float
    high: float
    n: int
    extractor: str
    difference: Interval | None


def read_metric(name: str, weights: Mapping[str, str]) -> Metric:
    """The metric of that name. **Raises:** `UnknownNameError`, or `ArgumentError` when weights are not named."""
    family, at, extractor = ALIASES.get(name, name).partition("@")
    if name in SAMPLE_METRICS:
        extractor = SAMPLE_METRICS[name]
    elif name not in ALIASES and (family not in FAMILIES or not at):
        known = [*SAMPLE_METRICS, *ALIASES, *(f"{one}@EXTRACTOR" for one in FAMILIES)]
        raise unknown_name("metric", name, known)
    if extractor:
        check_extractor(extractor, weights)
    return Metric(name, family, extractor)


def check_count(metric: Metric, count: int) -> None:
    """**Raises:** `ArgumentError` when so many samples are too few for the metric and its interval."""
    least = 2 if metric.of_samples or metric.family == "is" else 4
    if count < least:
        raise ArgumentError(
            f"metric {metric.name!r} needs at least {least} samples (prompts times seeds), its interval is taken of "
            f"halves or draws of them; there {'is' if count == 1 else 'are'} {count}"
        )


def measure(metric: Metric, table: Table, reference: Reference | None) -> Resampled:
    """The metric of one recipe's samples, and of their resamples.

    **Raises:** `ArgumentError` for too few samples, or a reference that lacks what the metric reads.
    """
    found = table[metric.column]
    count = len(found)
    check_count(metric, count)
    if metric.of_samples:
        return _means(found)
    if metric.family == "is":
        return _halves(lambda index: inception_score(found[index], splits=1)[0], count)
    assert reference is not None
    if metric.family == "fd":
        other = rooted(reference.gaussian, "reference")
        return _halves(lambda index: frechet_distance(found[index], other), count)
    features = reference.features
    if features is None:
        raise ArgumentError(f"metric {metric.name!r} needs the reference's features, and its file has statistics only")
    if metric.family in ("kd", "cmmd"):
        distance = cmmd if metric.family == "cmmd" else _kid
        return _halves(lambda index: distance(found[index], features), count)
    covered = coverage(found, features)
    return _means((covered.generated if metric.family == "precision" else covered.reference).astype(np.float64))


def _kid(generated: Features, reference: Features) -> float:
    return kid(generated, reference, subsets=10).value


def _means(values: Features) -> Resampled:
    def mean(index: Index) -> float:
        return float(values[index].mean())

    return resample(mean, len(values))


def _halves(statistic: Statistic, count: int) -> Resampled:
    return resample(statistic, count, halves=True, resamples=SET_RESAMPLES)


def compare(metric: Metric, tables: Sequence[Table], reference: Reference | None, extractor: str = "") -> list[Quality]:
    """The metric of every recipe; the first is plain decoding, and has no difference.

    **Raises:** `ArgumentError` as `measure`.
    """
    found = [measure(metric, table, reference) for table in tables]
    compared: list[Quality] = []
    for i, (one, table) in enumerate(zip(found, tables, strict=True)):
        own = one.interval()
        difference = one.minus(found[0]).interval() if i else None
        compared.append(Quality(own.value, own.low, own.high, len(table[metric.column]), extractor, difference))
    return compared
