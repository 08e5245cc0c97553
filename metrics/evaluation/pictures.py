"""From pictures on the disk to the columns that metrics read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mmspec.errors import ArgumentError
from mmspec.metrics.attributes import attribute_scores
from mmspec.metrics.clip_score import clip_scores
from mmspec.metrics.evaluation.quality import Metric
from mmspec.metrics.extractors.clip import ClipExtractor
from mmspec.metrics.extractors.extractor import Extractor, Images, extract, identity
from mmspec.metrics.extractors.inception import InceptionExtractor
from mmspec.metrics.extractors.names import make_extractor
from mmspec.metrics.extractors.shapes import ShapesExtractor
from mmspec.metrics.features import Features

_BATCH = 32
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


class Reader:
    """The extractors that some metrics need, loaded once.

    **Arguments:**

    - `metrics`: what will be measured; `weights`: see `make_extractor`; `device`: where extractors run.

    **Raises:** `ModelError` when one cannot be loaded.
    """

    def __init__(self, metrics: Sequence[Metric], weights: Mapping[str, str], device: str = "cpu") -> None:
        self.columns = {metric.column for metric in metrics}
        names = {metric.extractor for metric in metrics if metric.extractor}
        if any(metric.family in ("attributes", "captions") for metric in metrics):
            names.add("shapes")
        self.extractors: dict[str, Extractor] = {name: make_extractor(name, weights, device) for name in sorted(names)}

    def identity(self, metric: Metric) -> str:
        """Name and fingerprint of the metric's extractor, "" for none."""
        name = "shapes" if metric.family in ("attributes", "captions") else metric.extractor
        return identity(self.extractors[name]) if name else ""

    def features(self, paths: Sequence[Path]) -> dict[str, Features]:
        """Features [N, D] of pictures by extractor, for the columns that read them."""
        wanted = [extractor for name, extractor in self.extractors.items() if name in self.columns]
        return {extractor.name: extract(extractor, map(read_picture, paths), _BATCH) for extractor in wanted}

    def scores(self, paths: Sequence[Path], prompts: Sequence[str]) -> dict[str, Features]:
        """What is measured of each picture alone or with its prompt: numbers [N], and Inception's logits [N, C]."""
        found: dict[str, list[Features]] = {}
        for first in range(0, len(paths), _BATCH):
            images = np.stack([read_picture(path) for path in paths[first : first + _BATCH]])
            for column, values in self._scores(images, prompts[first : first + _BATCH]):
                found.setdefault(column, []).append(values)
        return {column: np.concatenate(parts) for column, parts in found.items()}

    def _scores(self, images: Images, prompts: Sequence[str]) -> Iterator[tuple[str, Features]]:
        shapes, clip, inception = (self.extractors.get(name) for name in ("shapes", "clip", "inception"))
        if self.columns & {"attributes of samples", "captions of samples"} and isinstance(shapes, ShapesExtractor):
            attributes, captions = attribute_scores(images, prompts, shapes.classifier)
            yield "attributes of samples", attributes
            yield "captions of samples", captions
        if "clip of samples" in self.columns and isinstance(clip, ClipExtractor):
            yield "clip of samples", clip_scores(clip(images), clip.texts(prompts))
        if "logits" in self.columns and isinstance(inception, InceptionExtractor):
            yield "logits", inception.logits(images)


def read_picture(path: Path) -> Images:
    """A picture as uint8 [H, W, 3]. **Raises:** `ArgumentError` naming a file that is none."""
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow calls a broken PNG a syntax error
        reason = " ".join(str(error).split())
        raise ArgumentError(f"'{path}' is no picture that can be read ({reason}); delete it and run again") from error


def list_pictures(folder: Path) -> list[Path]:
    """The pictures of a folder by name. **Raises:** `ArgumentError` when there is none."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise ArgumentError(f"--reference: '{folder}' holds no picture ({', '.join(SUFFIXES)})")
    return found
