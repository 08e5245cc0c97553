"""Extractors by name. Which weights they use is said apart, once: none is ever fetched unasked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmspec.errors import ArgumentError, unknown_name
from mmspec.metrics.extractors.extractor import Extractor
from mmspec.metrics.extractors.sound import Listener, SoundExtractor

PICTURES = ("shapes", "inception", "clip", "dinov2")
LISTENERS = ("whisper", "spoken")
SOUNDS = ("clap", "wavlm", *LISTENERS)
EMBEDDED = ("shapes", "spoken")  # need no weights: they ship
NAMES = (*PICTURES, *SOUNDS)


def check_extractor(name: str, weights: Mapping[str, str]) -> None:
    """**Raises:** `UnknownNameError`, or `ArgumentError` where `weights` does not say what a network is to load."""
    if name not in NAMES:
        raise unknown_name("extractor", name, NAMES)
    if name not in EMBEDDED and not weights.get(name):
        kind = "the weights file" if name == "inception" else "a folder or Hub id"
        raise ArgumentError(f"extractor {name!r} needs weights; name {kind} with --{name}")


def make_extractor(name: str, weights: Mapping[str, str], device: str = "cpu") -> Extractor:
    """The extractor of pictures of that name.

    **Arguments:**

    - `weights`: by extractor, the folder, file or Hub id to load; `shapes` needs none.

    **Raises:** as `check_extractor`, and `ModelError` when it cannot be loaded.
    """
    check_extractor(name, weights)
    if name == "shapes":
        from mmspec.metrics.attributes import read_classifier
        from mmspec.metrics.extractors.shapes import ShapesExtractor

        return ShapesExtractor(read_classifier(Path(weights[name])) if weights.get(name) else None)
    if name == "clip":
        from mmspec.metrics.extractors.clip import ClipExtractor

        return ClipExtractor(weights[name], device)
    if name == "dinov2":
        from mmspec.metrics.extractors.dinov2 import Dinov2Extractor

        return Dinov2Extractor(weights[name], device)
    from mmspec.metrics.extractors.inception import InceptionExtractor

    return InceptionExtractor(weights[name], device)


def make_sound_extractor(name: str, weights: Mapping[str, str], device: str = "cpu") -> SoundExtractor:
    """The extractor of sounds of that name. **Raises:** as `make_extractor`."""
    check_extractor(name, weights)
    if name == "clap":
        from mmspec.metrics.extractors.clap import ClapExtractor

        return ClapExtractor(weights[name], device)
    if name == "wavlm":
        from mmspec.metrics.extractors.wavlm import WavLMExtractor

        return WavLMExtractor(weights[name], device)
    return make_listener(name, weights, device)


def make_listener(name: str, weights: Mapping[str, str], device: str = "cpu") -> Listener:
    """The recogniser of that name. **Raises:** as `make_extractor`."""
    check_extractor(name, weights)
    if name == "spoken":
        from mmspec.metrics.extractors.spoken import SpokenExtractor

        return SpokenExtractor()
    from mmspec.metrics.extractors.whisper import WhisperExtractor

    return WhisperExtractor(weights[name], device)
