"""Loads files and extracts the rows that metrics measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.media.images import read_image
from mmspec.metrics.evaluation.media import is_audio, read_waveform
from mmspec.metrics.extractors.extractor import identity
from mmspec.metrics.extractors.image import naming, stack_images
from mmspec.metrics.features import Features
from mmspec.metrics.metric import NOUNS, Metric, SampleBatch

_BATCH = 32

Columns = dict[str, list[Features]]
"""For each `Metric.column`, one row per sample."""


class FeaturePipeline:
    """The extractors of several metrics, loaded once, and the rows that they compute from files.

    Args:
        metrics: The metrics to be measured.
        weights: For each extractor, the folder, file or Hub id to load.
        device: Where extractors run.

    Raises:
        ModelError: If an extractor cannot be loaded.
    """

    def __init__(self, metrics: Sequence[Metric], weights: Mapping[str, str], device: str = "cpu") -> None:
        self.metrics = [metric for metric in metrics if not metric.statistic]
        self._extractors: dict[str, Any] = {}
        for metric in self.metrics:
            key = _key(metric)
            if key not in self._extractors:
                self._extractors[key] = metric.load_extractor(weights, device)

    def identity(self, metric: Metric) -> str:
        """Name and fingerprint of the metric's extractor, if it has these, and the metric's variant."""
        extractor: Any = self._extractors.get(_key(metric))
        named = identity(extractor) if hasattr(extractor, "fingerprint") else ""
        return ", ".join(filter(None, (named, metric.variant)))

    def extract(
        self, paths: Sequence[Path], prompts: Sequence[str] | None, metrics: Sequence[Metric] | None = None
    ) -> Columns:
        """The rows of files of one kind.

        Args:
            paths: The files.
            prompts: One per file; None leaves out the metrics that need them.
            metrics: Compute only the rows of these; None is all.

        Raises:
            ArgumentError: If a file cannot be read, an image has a size that an extractor does not read, or a metric is
                of the other kind.
        """
        if not paths:
            return {}
        self._check_kind(paths[0])
        chosen = self.metrics if metrics is None else [metric for metric in metrics if not metric.statistic]
        by_column = {metric.column: metric for metric in chosen if prompts is not None or not metric.needs_prompts}
        columns: Columns = {column: [] for column in by_column}
        first: tuple[int, ...] | None = None
        for samples in _batches(paths, prompts) if by_column else ():
            first = first or samples.images.shape[1:]
            for column, metric in by_column.items():
                with naming(repr(str(samples.paths[0])), samples.images, first):
                    rows = metric.extract(samples, self._extractors[_key(metric)])
                if (made := len(rows) if hasattr(rows, "__len__") else 0) != len(samples.paths):
                    raise ArgumentError(
                        f"metric {metric.name!r} returned {made} rows for {len(samples.paths)} samples; there must be "
                        "one for each"
                    )
                columns[column] += rows
        return columns

    def _check_kind(self, path: Path) -> None:
        """Refuses a file to which not all metrics apply."""
        kind = "audio" if is_audio(path) else "image"
        for metric in self.metrics:
            if metric.kind is not None and metric.kind != kind:
                raise ArgumentError(f"metric {metric.name!r} is of {NOUNS[metric.kind]}, and '{path}' is {kind}")


def _key(metric: Metric) -> str:
    """Metrics with equal keys share a loaded extractor."""
    return metric.extractor or f"of {metric.name}"


def _batches(paths: Sequence[Path], prompts: Sequence[str] | None) -> Iterator[SampleBatch]:
    """The decoded files, a few at a time, images of one size."""
    if is_audio(paths[0]):
        for first in range(0, len(paths), _BATCH):
            files = paths[first : first + _BATCH]
            texts = None if prompts is None else prompts[first : first + _BATCH]
            yield SampleBatch(files, texts, audio=[read_waveform(path) for path in files])
        return
    first = 0
    for images in stack_images(map(read_image, paths), _BATCH, list(map(str, paths))):
        last = first + len(images)
        yield SampleBatch(paths[first:last], None if prompts is None else prompts[first:last], images=images)
        first = last
