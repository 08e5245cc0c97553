"""From files to the columns that metrics read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.audio.log_mel_distance import moments
from mmspec.metrics.audio.word_error_rate import edits, normalise
from mmspec.metrics.evaluation.media import is_audio, read_audio, read_image
from mmspec.metrics.evaluation.quality import RATES, Metric
from mmspec.metrics.extractors.audio import AudioExtractor, SpeechRecognizer
from mmspec.metrics.extractors.clap import ClapExtractor
from mmspec.metrics.extractors.clip import ClipExtractor
from mmspec.metrics.extractors.extractor import Extractor, extract, identity
from mmspec.metrics.extractors.inception import InceptionExtractor
from mmspec.metrics.extractors.names import SOUNDS, make_audio_extractor, make_extractor, make_speech_recognizer
from mmspec.metrics.extractors.shapes import ShapesExtractor
from mmspec.metrics.features import Features
from mmspec.metrics.image.attributes import attribute_scores
from mmspec.metrics.image.clip_score import clip_scores

_BATCH = 32
_LEAST_SOUND = 513  # samples that a log-mel frame needs

Columns = dict[str, Features]


class FeatureExtraction:
    """The extractors that some metrics need, loaded once.

    Args:
        metrics: What will be measured.
        weights: See `make_extractor`.
        device: Where extractors run.

    Raises:
        ModelError: When one cannot be loaded.
    """

    def __init__(self, metrics: Sequence[Metric], weights: Mapping[str, str], device: str = "cpu") -> None:
        self.metrics = metrics
        self.columns = {metric.column for metric in metrics}
        names = sorted({metric.extractor for metric in metrics if metric.extractor and metric.family not in RATES})
        self.images: dict[str, Extractor] = {
            name: make_extractor(name, weights, device) for name in names if name not in SOUNDS
        }
        self.sounds: dict[str, AudioExtractor] = {
            name: make_audio_extractor(name, weights, device) for name in names if name in SOUNDS
        }
        heard = {metric.extractor for metric in metrics if metric.family in RATES}
        self.recognizer: SpeechRecognizer | None = (
            make_speech_recognizer(heard.pop(), weights, device) if heard else None
        )

    def identity(self, metric: Metric) -> str:
        """Name and fingerprint of the metric's extractor, "" for none."""
        found = {**self.images, **self.sounds}.get(metric.extractor) if metric.family not in RATES else self.recognizer
        return identity(found) if found is not None else ""

    def check_kind(self, path: Path) -> None:
        """Checks that all metrics are of what the file holds.

        Raises:
            ArgumentError: When a metric is not of what this file holds.
        """
        sound = is_audio(path)
        for metric in self.metrics:
            if metric.of_audio is not None and metric.of_audio != sound:
                kinds = ("sound", "pictures") if metric.of_audio else ("pictures", "sound")
                raise ArgumentError(f"metric {metric.name!r} is of {kinds[0]}, and '{path}' is of {kinds[1]}")

    def extract(self, paths: Sequence[Path], prompts: Sequence[str] | None) -> Columns:
        """All columns of files, of one kind; what needs a prompt only where there are prompts.

        Features are [N, D], what is measured of each sample alone or with its prompt [N] or, of edits, [N, 2].

        Raises:
            ArgumentError: For a file that cannot be read, or images of different size.
        """
        if not paths:
            return {}
        self.check_kind(paths[0])
        if is_audio(paths[0]):
            return _joined(self._hear, paths, prompts)
        wanted = [extractor for name, extractor in self.images.items() if name in self.columns]
        features = {
            extractor.name: extract(extractor, map(read_image, paths), _BATCH, list(map(str, paths)))
            for extractor in wanted
        }
        return features | _joined(self._see, paths, prompts)

    def _see(self, paths: Sequence[Path], prompts: Sequence[str] | None) -> Iterator[tuple[str, Features]]:
        shapes, clip, inception = (self.images.get(name) for name in ("shapes", "clip", "inception"))
        scores = {f"{name} of samples" for name in ("attributes", "captions", "clip")} & self.columns
        if not scores and "logits" not in self.columns:
            return
        images = np.stack([read_image(path) for path in paths])
        if "logits" in self.columns and isinstance(inception, InceptionExtractor):
            yield "logits", inception.logits(images)
        if prompts is None:
            return
        if scores - {"clip of samples"} and isinstance(shapes, ShapesExtractor):
            attributes, captions = attribute_scores(images, prompts, shapes.classifier)
            yield "attributes of samples", attributes
            yield "captions of samples", captions
        if "clip of samples" in scores and isinstance(clip, ClipExtractor):
            yield "clip of samples", clip_scores(clip(images), clip.texts(prompts))

    def _hear(self, paths: Sequence[Path], prompts: Sequence[str] | None) -> Iterator[tuple[str, Features]]:
        sounds = [read_audio(path) for path in paths]
        for name, extractor in self.sounds.items():
            if name in self.columns:
                yield name, extractor(sounds)
        if "logmel" in self.columns:
            for path, sound in zip(paths, sounds, strict=True):
                if len(sound.wave) < _LEAST_SOUND:
                    raise ArgumentError(f"'{path}' has {len(sound.wave)} samples; 'logmel' needs {_LEAST_SOUND}")
            yield "logmel", np.stack([moments(sound.at(_LOG_MEL_RATE), _LOG_MEL_RATE) for sound in sounds])
        if prompts is None:
            return
        clap = self.sounds.get("clap")
        if "clap of samples" in self.columns and isinstance(clap, ClapExtractor):
            yield "clap of samples", clip_scores(clap(sounds), clap.texts(prompts))
        if self.recognizer is not None:
            heard = [normalise(text) for text in self.recognizer.transcribe(sounds)]
            wanted = [normalise(self.recognizer.wanted(text)) for text in prompts]
            words = [(edits(a.split(), b.split()), len(b.split())) for a, b in zip(heard, wanted, strict=True)]
            yield "wer of samples", np.array(words, dtype=np.float64)
            yield "cer of samples", np.array([(edits(a, b), len(b)) for a, b in zip(heard, wanted, strict=True)], float)


_LOG_MEL_RATE = 16_000


def _joined(
    extract: Callable[[Sequence[Path], Sequence[str] | None], Iterator[tuple[str, Features]]],
    paths: Sequence[Path],
    prompts: Sequence[str] | None,
) -> Columns:
    """What `extract` finds of all files, a few at a time."""
    found: dict[str, list[Features]] = {}
    for first in range(0, len(paths), _BATCH):
        last = first + _BATCH
        for column, values in extract(paths[first:last], None if prompts is None else prompts[first:last]):
            found.setdefault(column, []).append(values)
    return {column: np.concatenate(parts) for column, parts in found.items()}
