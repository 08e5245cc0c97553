"""Extractors by name. Which weights they use is said apart, once: none is ever fetched unasked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmspec.errors import ArgumentError, unknown_name
from mmspec.metrics.extractors.audio import AudioExtractor, SpeechRecognizer
from mmspec.metrics.extractors.extractor import Extractor

IMAGES = ("shapes", "inception", "clip", "dinov2")
SPEECH_RECOGNIZERS = ("whisper", "spoken")
SOUNDS = ("clap", "wavlm", *SPEECH_RECOGNIZERS)
EMBEDDED = ("shapes", "spoken")  # need no weights: they ship
NAMES = (*IMAGES, *SOUNDS)


def check_extractor(name: str, weights: Mapping[str, str]) -> None:
    """Checks that there is such an extractor, and weights for it.

    Raises:
        UnknownNameError: When there is no extractor of that name.
        ArgumentError: Where `weights` does not say what a network is to load.
    """
    if name not in NAMES:
        raise unknown_name("extractor", name, NAMES)
    if name not in EMBEDDED and not weights.get(name):
        kind = "the weights file" if name == "inception" else "a folder or Hub id"
        raise ArgumentError(f"extractor {name!r} needs weights; name {kind} with --{name}")


def make_extractor(name: str, weights: Mapping[str, str], device: str = "cpu") -> Extractor:
    """The extractor of images of that name.

    Args:
        weights: By extractor, the folder, file or Hub id to load; `shapes` needs none.

    Raises:
        UnknownNameError: As `check_extractor`.
        ArgumentError: As `check_extractor`.
        ModelError: When it cannot be loaded.
    """
    check_extractor(name, weights)
    if name == "shapes":
        from mmspec.metrics.extractors.shapes import ShapesExtractor
        from mmspec.metrics.image.attributes import read_classifier

        return ShapesExtractor(read_classifier(Path(weights[name])) if weights.get(name) else None)
    if name == "clip":
        from mmspec.metrics.extractors.clip import ClipExtractor

        return ClipExtractor(weights[name], device)
    if name == "dinov2":
        from mmspec.metrics.extractors.dinov2 import Dinov2Extractor

        return Dinov2Extractor(weights[name], device)
    from mmspec.metrics.extractors.inception import InceptionExtractor

    return InceptionExtractor(weights[name], device)


def make_audio_extractor(name: str, weights: Mapping[str, str], device: str = "cpu") -> AudioExtractor:
    """The extractor of sounds of that name.

    Raises:
        UnknownNameError: As `make_extractor`.
        ArgumentError: As `make_extractor`.
        ModelError: As `make_extractor`.
    """
    check_extractor(name, weights)
    if name == "clap":
        from mmspec.metrics.extractors.clap import ClapExtractor

        return ClapExtractor(weights[name], device)
    if name == "wavlm":
        from mmspec.metrics.extractors.wavlm import WavLMExtractor

        return WavLMExtractor(weights[name], device)
    return make_speech_recognizer(name, weights, device)


def make_speech_recognizer(name: str, weights: Mapping[str, str], device: str = "cpu") -> SpeechRecognizer:
    """The recogniser of that name.

    Raises:
        UnknownNameError: As `make_extractor`.
        ArgumentError: As `make_extractor`.
        ModelError: As `make_extractor`.
    """
    check_extractor(name, weights)
    if name == "spoken":
        from mmspec.metrics.extractors.spoken import SpokenExtractor

        return SpokenExtractor()
    from mmspec.metrics.extractors.whisper import WhisperExtractor

    return WhisperExtractor(weights[name], device)
