"""The metrics of an evaluation by name, each with its interval and its paired difference from plain decoding.

| name | of | what |
|---|---|---|
| `attributes`, `captions` | images | on `shapes`: share of stated attributes shown, share of prompts shown wholly |
| `clip` | images | CLIP score, needs weights of CLIP |
| `cmmd` | images | CMMD to the reference, needs weights of CLIP |
| `fid`, `kid`, `is` | images | as everybody defines them, need weights of Inception |
| `wer`, `cer` | speech | word and character error rate, heard by Whisper; `wer@spoken` by the embedded recogniser |
| `speaker` | speech | cosine of voices by WavLM, with the reference's recording of the same prompt, or its only one |
| `clap` | sound | CLAP score, needs weights of CLAP |
| `logmel` | sound | Frechet distance of log-mel frames to the reference; needs no weights |
| `fd@X`, `kd@X` | both | Frechet and kernel distance over features of extractor X |
| `precision@X`, `recall@X` | both | shares of samples covered, over features of X |
| `entropy`, `nll` | both | bits per token, of the target distribution and of what was emitted; slow calls down a little |

Intervals of distances are over the recipe's samples, the reference as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.errors import ArgumentError, unknown_name
from mmspec.metrics.audio.log_mel_distance import pooled
from mmspec.metrics.audio.speaker import speaker_similarity
from mmspec.metrics.bootstrap import Index, Interval, Resampled, Statistic, resample
from mmspec.metrics.extractors.names import NAMES, SOUNDS, SPEECH_RECOGNIZERS, check_extractor
from mmspec.metrics.features import Features
from mmspec.metrics.image.cmmd import cmmd
from mmspec.metrics.image.frechet import frechet_distance, rooted
from mmspec.metrics.image.inception_score import inception_score
from mmspec.metrics.image.kid import kid
from mmspec.metrics.image.precision_recall import precision_recall
from mmspec.metrics.reference import Reference

SET_RESAMPLES = 200  # of quantities that take long for each
MEANS = {"attributes": "shapes", "captions": "shapes", "clip": "clip", "clap": "clap"}  # and their extractors
LIKELIHOODS = ("entropy", "nll")
RATES = ("wer", "cer")  # of edits over what was wanted, all samples together
ALIASES = {
    "fid": "fd@inception", "kid": "kd@inception", "is": "is@inception", "cmmd": "cmmd@clip", "speaker": "speaker@wavlm",
    "wer": "wer@whisper", "cer": "cer@whisper",
}  # fmt: skip
GENERATE_ADAPTERS = ("fd", "kd", "precision", "recall")
HIGHER_IS_BETTER = ("attributes", "captions", "clip", "clap", "is", "precision", "recall", "speaker")


@dataclass(frozen=True)
class Metric:
    """A metric as named, its family, and the extractor it reads ("" for none)."""

    name: str
    family: str
    extractor: str

    @property
    def of_samples(self) -> bool:
        """Whether it is a mean or a rate over samples, with no reference."""
        return self.family in (*MEANS, *LIKELIHOODS, *RATES)

    @property
    def needs_reference(self) -> bool:
        return not self.of_samples and self.family != "is"

    @property
    def column(self) -> str:
        """Which of the columns of a `Table` it reads."""
        if self.of_samples:
            return f"{self.family} of samples"
        return {"is": "logits", "logmel": "logmel"}.get(self.family, self.extractor)

    @property
    def of_audio(self) -> bool | None:
        """Whether it is of sounds or of images; None for both."""
        if self.family in LIKELIHOODS:
            return None
        return self.family == "logmel" or self.extractor in SOUNDS

    @property
    def higher_is_better(self) -> bool | None:
        """None for what is neither good nor bad."""
        return None if self.family == "entropy" else self.family in HIGHER_IS_BETTER


Table = Mapping[str, Features]  # by column, of one set of samples: features [N, D], or numbers [N]


@dataclass(frozen=True)
class Quality:
    """A metric of one recipe: value and 95 % interval, `n` samples, and the paired difference from plain's.

    Attributes:
        extractor: Name and fingerprint, "" where there is none.
    """

    value: float
    low: float
    high: float
    n: int
    extractor: str
    difference: Interval | None


def read_metric(name: str) -> Metric:
    """The metric of that name.

    Raises:
        UnknownNameError: When there is no metric of that name.
    """
    family, at, extractor = ALIASES.get(name, name).partition("@")
    plain = {**MEANS, **dict.fromkeys((*LIKELIHOODS, "logmel"), "")}
    if name in plain:
        extractor = plain[name]
    elif name not in ALIASES and (family not in (*GENERATE_ADAPTERS, *RATES) or not at):
        raise unknown_name("metric", name, [*plain, *ALIASES, *(f"{one}@EXTRACTOR" for one in GENERATE_ADAPTERS)])
    known = SPEECH_RECOGNIZERS if family in RATES else NAMES
    if extractor and extractor not in known:
        raise unknown_name("extractor", extractor, known)
    return Metric(name, family, extractor)


def read_metrics(names: Sequence[str], weights: Mapping[str, str], count: int) -> list[Metric]:
    """The metrics of those names, for so many samples.

    Raises:
        UnknownNameError: When there is no metric of one of the names.
        ArgumentError: When weights are not named, samples are too few, or metrics of images are mixed with metrics of
            sound.
    """
    found = [read_metric(name) for name in names]
    for metric in found:
        if metric.extractor:
            check_extractor(metric.extractor, weights)
        check_count(metric, count)
    heard = {metric.extractor for metric in found if metric.family in RATES}
    if len(heard) > 1:
        raise ArgumentError(f"error rates by {' and '.join(sorted(heard))} do not go together; ask for one of them")
    kinds = {metric.of_audio: metric.name for metric in found if metric.of_audio is not None}
    if len(kinds) > 1:
        raise ArgumentError(f"metric {kinds[True]!r} is of sound and {kinds[False]!r} of images; ask for one kind")
    return found


def check_count(metric: Metric, count: int) -> None:
    """Checks that there are enough samples for the metric.

    Raises:
        ArgumentError: When so many samples are too few for the metric and its interval.
    """
    least, why = 2, "its interval is taken of draws of them"
    if metric.needs_reference and metric.family != "speaker":
        least, why = 4, "its interval is taken of halves of them, and a half needs 2"
    if metric.family in ("precision", "recall"):
        least, why = 4, "it asks for the third nearest neighbour of each"
    if count < least:
        raise ArgumentError(
            f"metric {metric.name!r} needs at least {least} samples (prompts times seeds): {why}; "
            f"there {'is' if count == 1 else 'are'} {count}"
        )


def measure(metric: Metric, table: Table, reference: Reference | None) -> Resampled:
    """The metric of one set of samples, and of their resamples.

    Raises:
        ArgumentError: For too few samples, or a reference that lacks what the metric reads.
    """
    found = table[metric.column]
    count = len(found)
    check_count(metric, count)
    if metric.family in RATES:
        return _rate(found)
    if metric.of_samples:
        return _means(found)
    if metric.family == "is":
        return _halves(lambda index: inception_score(found[index], splits=1)[0], count)
    assert reference is not None
    if metric.family in ("fd", "logmel"):
        other = rooted(reference.gaussian, "reference")
        if metric.family == "logmel":
            return _halves(lambda index: frechet_distance(pooled(found[index]), other), count)
        return _halves(lambda index: frechet_distance(found[index], other), count)
    features = reference.features
    if features is None:
        raise ArgumentError(f"metric {metric.name!r} needs the reference's features, and its file has statistics only")
    if metric.family == "speaker":
        return _means(speaker_similarity(found, _voices(features, count)))
    if metric.family in ("kd", "cmmd"):
        distance = cmmd if metric.family == "cmmd" else _kid
        return _halves(lambda index: distance(found[index], features), count)
    covered = precision_recall(found, features)
    return _means((covered.generated if metric.family == "precision" else covered.reference).astype(np.float64))


def _voices(features: Features, count: int) -> Features:
    if len(features) not in (1, count):
        raise ArgumentError(
            f"metric 'speaker' compares each sample with its own voice: the reference must hold one recording, or "
            f"{count} in the order of the samples; it holds {len(features)}"
        )
    return np.broadcast_to(features, (count, features.shape[1]))


def _kid(generated: Features, reference: Features) -> float:
    return kid(generated, reference, subsets=10).value


def _means(values: Features) -> Resampled:
    def mean(index: Index) -> float:
        return float(values[index].mean())

    return resample(mean, len(values))


def _rate(edits: Features) -> Resampled:
    """Of edits and what was wanted, [N, 2]."""

    def rate(index: Index) -> float:
        wrong, wanted = edits[index].sum(0)
        return float(wrong / max(wanted, 1))

    return resample(rate, len(edits))


def _halves(statistic: Statistic, count: int) -> Resampled:
    return resample(statistic, count, halves=True, resamples=SET_RESAMPLES)


def compare(
    metric: Metric, tables: Sequence[Table], reference: Reference | None, extractor: str = "", paired: bool = True
) -> list[Quality]:
    """The metric of every set; the first is what the others are compared with, and has no difference.

    Args:
        paired: Sample i of each set is of the same prompt and seed; otherwise no differences are told.

    Raises:
        ArgumentError: As `measure`.
    """
    found = [measure(metric, table, reference) for table in tables]
    compared: list[Quality] = []
    for i, (one, table) in enumerate(zip(found, tables, strict=True)):
        own = one.interval()
        difference = one.minus(found[0]).interval() if i and paired else None
        compared.append(Quality(own.value, own.low, own.high, len(table[metric.column]), extractor, difference))
    return compared
