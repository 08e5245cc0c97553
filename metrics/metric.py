"""The interface of metrics: one object per metric, found by name through `mmspec.metrics.registry`.

A metric turns each sample into a row (`Metric.extract`) and the rows of a set of samples into an estimate that has an
interval (`Metric.measure`). Intervals, paired differences, files, processes, weights and reports belong
to the evaluation. The base classes cover the usual cases:

- `MeanMetric`: a score per sample, averaged.
- `FeatureMetric`: any statistic of the features of an extractor.
- `DistanceMetric`: a distance between the features of two sets.
- `PairedMetric`: the distance of each sample from its reference sample, averaged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from mmspec.arguments import refused
from mmspec.errors import ArgumentError, PluginError
from mmspec.metrics.bootstrap import Index, Resampled, Statistic, resample
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.extractors.audio import SpeechRecognizer, Waveform
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.registry import AUDIO_EXTRACTORS, load_extractor
from mmspec.metrics.features import Features
from mmspec.metrics.reference import Reference, load_reference, reference_of
from mmspec.metrics.shares import share_of

Kind = Literal["image", "audio"]
NOUNS: Mapping[Kind, str] = {"image": "images", "audio": "audio"}
Rows = Sequence[Features]
"""One float64 array per sample, of any shape that the metric chooses."""
Groups = Sequence[str] | None
"""The prompt of each sample where several samples have the same prompt; None where each has its own."""

SET_RESAMPLES = 200  # of statistics that are slow to compute
T = TypeVar("T")


class SampleBatch:
    """A few samples of one kind, decoded.

    Args:
        paths: Their files, for error messages.
        prompts: One per sample; None if unknown, as for the files of a reference.
        images: uint8 [B, H, W, 3]; None for audio.
        audio: One waveform per sample; None for images.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        prompts: Sequence[str] | None = None,
        images: Images | None = None,
        audio: Sequence[Waveform] | None = None,
    ) -> None:
        self.paths = paths
        self.prompts: Sequence[str] = () if prompts is None else prompts
        self.images: Images = np.zeros((0, 0, 0, 3), dtype=np.uint8) if images is None else images
        self.audio: Sequence[Waveform] = () if audio is None else audio
        self._computed: dict[tuple[str, int], Any] = {}

    def features(self, extractor: Any) -> Features:
        """The features of an extractor, float64 [B, D], computed once for all metrics."""
        return self.cached("features", extractor, lambda: extractor(self.audio if len(self.audio) else self.images))

    def transcripts(self, recognizer: SpeechRecognizer) -> list[str]:
        """The words of each recording, transcribed once for all metrics."""
        return self.cached("transcripts", recognizer, lambda: recognizer.transcribe(self.audio))

    def cached(self, what: str, network: Any, compute: Callable[[], T]) -> T:
        """The result of `compute`, the same for all metrics that name it `what` and use the same network."""
        key = what, id(network)
        if key not in self._computed:
            self._computed[key] = compute()
        found: T = self._computed[key]
        return found


class Metric(ABC):
    """A metric of sets of images or recordings.

    Attributes:
        name: What users call it, and its key in results.
        kind: "image" or "audio"; None for both.
        extractor: The extractor that it reads, by its name in `mmspec.metrics.extractors.registry`; "" for none, or
            for a network of the metric's own (see `load_extractor`).
        weights: Names of the weights that `load_extractor` reads, beside those of `extractor`.
        variant: What else its values depend on, such as how texts are normalized; results name it beside the extractor.
        statistic: For a metric measured while a model generates, the field that it reads, such as "nll", of
            `mmspec.metrics.evaluation.journal.SampleRecord`; "" for a metric of files.
        needs_reference: Whether it compares samples with a reference.
        needs_prompts: Whether `extract` reads the prompts.
        higher_is_better: None for what is neither good nor bad; reports then draw no curve and color no difference.
        is_share: Whether its values are shares of 1, of which reports call a hundredth a point, and whose intervals
            are those of `mmspec.metrics.shares`.
        min_samples: The fewest samples for a value and its interval.
        min_samples_reason: Why, for the error message.
    """

    name: str
    kind: Kind | None = None
    extractor: str = ""
    weights: tuple[str, ...] = ()
    variant: str = ""
    statistic: str = ""
    needs_reference: bool = False
    needs_prompts: bool = False
    higher_is_better: bool | None = None
    is_share: bool = False
    min_samples: int = 2
    min_samples_reason: str = "its interval is resampled from them"

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def column(self) -> str:
        """A name for the rows of `extract`; metrics with equal names share the rows, and one of them computes them."""
        return self.name

    def load_extractor(self, weights: Mapping[str, str], device: str) -> Any:
        """Loads the argument `extractor` of `extract`; returns None if the metric has none.

        Override it for a network of the metric's own; if the network has `name` and `fingerprint`, results record them.

        Args:
            weights: For each extractor, the folder, file or Hub id that the user named.
            device: Where extractors run.
        """
        return load_extractor(self.extractor, weights, device) if self.extractor else None

    def check_prompts(  # noqa: B027 (most metrics read any prompt)
        self, prompts: Sequence[str], weights: Mapping[str, str]
    ) -> None:
        """Checks, before anything is loaded or generated, that the metric can read these prompts.

        Args:
            prompts: To be generated.

        Raises:
            PromptError: If it cannot.
        """

    def check_combination(self, metrics: Sequence[Metric]) -> None:  # noqa: B027 (most metrics go with any other)
        """Checks, before anything is generated, that the metric can be measured together with these.

        Raises:
            ArgumentError: If it cannot.
        """

    def check_count(self, count: int) -> None:
        """Checks that there are enough samples.

        Raises:
            ArgumentError: If there are too few for the metric and its interval.
        """
        if count < self.min_samples:
            raise ArgumentError(
                f"metric {self.name!r} needs at least {self.min_samples} samples (prompts times seeds): "
                f"{self.min_samples_reason}; there {'is' if count == 1 else 'are'} {count}"
            )

    def extract(self, samples: SampleBatch, extractor: Any) -> Rows:
        """One row per sample; never called if `statistic` is set.

        A sample's row must not depend on the batch that it is in.

        Args:
            samples: A batch of one kind.
            extractor: What `load_extractor` returned.

        Raises:
            PluginError: If the metric has neither `statistic` nor a method `extract`.
        """
        raise PluginError(f"metric {self.name!r} has neither `statistic` nor `extract`; its class must have one")

    @abstractmethod
    def measure(self, rows: Rows, reference: Any, groups: Groups = None) -> Estimate:
        """The metric of a set of samples, with what its interval follows from.

        Paired differences subtract bootstrap replicates, so that all sets must be resampled with the same settings and
        seed.

        Args:
            rows: The rows of all samples, in order; see `extract`.
            reference: The result of `make_reference` or `load_reference`; None unless `needs_reference`.
            groups: The samples of one prompt are one observation of a mean, and are resampled together.
        """

    def sample_scores(self, rows: Rows) -> Sequence[float] | None:
        """A score of each sample, by which reports find the prompts that lose; None for a metric of whole sets."""
        return None

    def make_reference(self, rows: Rows, extractor: str) -> Any:
        """The reference that `measure` compares with, from the rows of the reference samples.

        Args:
            rows: Of the reference samples in order.
            extractor: Name and fingerprint of the extractor, "" for none.
        """
        return reference_of(np.stack(rows), extractor)

    def load_reference(self, path: Path, extractor: str) -> Any:
        """The reference from a file of statistics; see `mmspec.metrics.reference`."""
        return load_reference(path, extractor)

    def _features_of(self, reference: Reference) -> Features:
        """The features of a reference, float64 [M, D]."""
        if reference.features is None:
            raise ArgumentError(
                f"metric {self.name!r} needs the reference's features, and its file has statistics only"
            )
        return reference.features


class MeanMetric(Metric):
    """The mean of a score of each sample."""

    @abstractmethod
    def scores(self, samples: SampleBatch, extractor: Any) -> Features:
        """One finite score per sample, float64 [B]; the arguments are those of `Metric.extract`."""

    def extract(self, samples: SampleBatch, extractor: Any) -> Rows:
        found = self.scores(samples, extractor)
        try:
            scores = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError):  # words, or lists of several lengths
            scores = np.zeros(())
        if scores.shape != (len(samples.paths),):
            raise refused(f"metric {self.name!r}", f"a number for each sample, float64 [{len(samples.paths)}]", found)
        for path, score in zip(samples.paths, scores, strict=True):
            if not np.isfinite(score):
                raise ArgumentError(f"metric {self.name!r} returned {score} for '{path}'; scores must be finite")
        return list(scores)

    def measure(self, rows: Rows, reference: Any, groups: Groups = None) -> Estimate:
        scores = np.stack(rows)
        return share_of(scores, groups) if self.is_share else resample_mean(scores, groups)

    def sample_scores(self, rows: Rows) -> Sequence[float]:
        return [float(score) for score in rows]


class FeatureMetric(Metric):
    """A statistic of the features of an extractor.

    Args:
        name: The metric's name.
        extractor: The extractor's name, which decides whether the metric is one of images or of audio.
    """

    def __init__(self, name: str, extractor: str) -> None:
        super().__init__(name)
        self.extractor = extractor
        self.kind = "audio" if extractor in AUDIO_EXTRACTORS else "image"

    @property
    def column(self) -> str:
        return f"features of {self.extractor or self.name}"

    def extract(self, samples: SampleBatch, extractor: Any) -> Rows:
        return list(samples.features(extractor))


class DistanceMetric(FeatureMetric):
    """A distance between the features of the samples and those of the reference."""

    needs_reference = True
    higher_is_better = False
    min_samples = 4
    min_samples_reason = "its interval is computed on halves of them, and a half needs 2"

    @abstractmethod
    def distance(self, generated: Features, reference: Features) -> float:
        """The distance of float64 [N, D] from float64 [M, D]."""

    def measure(self, rows: Rows, reference: Reference, groups: Groups = None) -> Estimate:
        features, others = np.stack(rows), self._features_of(reference)
        return resample_halves(lambda index: self.distance(features[index], others), len(features))


class PairedMetric(Metric):
    """The mean distance of each sample from its reference sample; their rows may differ in size."""

    needs_reference = True
    higher_is_better = False

    @abstractmethod
    def distance(self, generated: Features, reference: Features) -> float:
        """The distance of a sample's row from that of its reference."""

    def measure(self, rows: Rows, reference: Rows, groups: Groups = None) -> Estimate:
        others = pair_references(self.name, reference, len(rows))
        return resample_mean(np.array([self.distance(a, b) for a, b in zip(rows, others, strict=True)]), groups)

    def make_reference(self, rows: Rows, extractor: str) -> Any:
        return rows

    def load_reference(self, path: Path, extractor: str) -> Any:
        raise ArgumentError(f"--reference: metric {self.name!r} compares single samples; '{path}' must be a folder")


def pair_references(metric: str, reference: Rows, count: int) -> Rows:
    """The reference sample of each of `count` samples.

    Raises:
        ArgumentError: If the reference has neither one sample, which then serves all, nor `count`.
    """
    if len(reference) not in (1, count):
        raise ArgumentError(
            f"metric {metric!r} compares each sample with its reference sample: the reference must hold one sample, "
            f"or {count} in the order of the samples; it holds {len(reference)}"
        )
    return [reference[0]] * count if len(reference) == 1 else reference


def resample_mean(values: Features, groups: Groups = None) -> Resampled:
    """The mean of values [N], one per sample."""

    def mean(index: Index) -> float:
        return float(values[index].mean())

    return resample(mean, len(values), groups=groups)


def resample_halves(statistic: Statistic, count: int) -> Resampled:
    """A statistic of a whole set of `count` samples, resampled on halves of it.

    Samples of one prompt are not kept together: the prompts of a set are those of its reference, and half of them would
    be another set.
    """
    return resample(statistic, count, halves=True, resamples=SET_RESAMPLES)
