"""Extractors by name. Weights are named by the user, one place per extractor, and never downloaded implicitly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError, unknown_name

EXTRACTORS: Mapping[str, str] = {
    "shapes": "mmspec.metrics.extractors.shapes:load",
    "scenes": "mmspec.metrics.extractors.scenes:load",
    "inception": "mmspec.metrics.extractors.inception:InceptionExtractor",
    "clip": "mmspec.metrics.extractors.clip:ClipExtractor",
    "dinov2": "mmspec.metrics.extractors.dinov2:Dinov2Extractor",
    "clap": "mmspec.metrics.extractors.clap:ClapExtractor",
    "wavlm": "mmspec.metrics.extractors.wavlm:WavLMExtractor",
    "whisper": "mmspec.metrics.extractors.whisper:WhisperExtractor",
    "hpsv2": "mmspec.metrics.extractors.preference:hpsv2",
    "pickscore": "mmspec.metrics.extractors.preference:pickscore",
    "imagereward": "mmspec.metrics.extractors.image_reward:ImageReward",
    "hpsv3": "mmspec.metrics.extractors.hpsv3:HPSv3",
    "resemblyzer": "mmspec.metrics.extractors.resemblyzer:ResemblyzerExtractor",
    "utmos": "mmspec.metrics.extractors.utmos:UTMOS",
    "detector": "mmspec.metrics.extractors.detector:ObjectDetector",
    "spoken": "mmspec.metrics.extractors.spoken:load",
}
"""Name -> "module:function" of (weights, device)."""

SPEECH_RECOGNIZERS = ("whisper", "spoken")
VOICE_ENCODERS = ("wavlm", "resemblyzer")
AUDIO_EXTRACTORS = ("clap", "utmos", *VOICE_ENCODERS, *SPEECH_RECOGNIZERS)
CAPTION_READERS = ("shapes", "scenes")
WITH_WEIGHTS = (*CAPTION_READERS, "spoken", "resemblyzer")  # their weights ship with mmspec, or with their package


def check_extractor(name: str, weights: Mapping[str, str]) -> None:
    """Checks that the extractor exists and that its weights are named.

    Args:
        name: The extractor's name.
        weights: For each extractor, the folder, file or Hub id to load; those of `WITH_WEIGHTS` need none.

    Raises:
        UnknownNameError: If there is no extractor of that name.
        ArgumentError: If `weights` does not name what the extractor loads.
    """
    if name not in EXTRACTORS:
        raise unknown_name("extractor", name, EXTRACTORS)
    if name not in WITH_WEIGHTS and not weights.get(name):
        kind = "the weights file" if name == "inception" else "a folder or Hub id"
        raise ArgumentError(f"extractor {name!r} needs weights; name {kind} with --{name}")


def load_extractor(name: str, weights: Mapping[str, str], device: str = "cpu") -> Any:
    """Loads the extractor of that name, an `ImageExtractor` or an `AudioExtractor`.

    Args:
        name: The extractor's name.
        device: Where the network runs.

    Raises:
        UnknownNameError: If there is no extractor of that name.
        ArgumentError: If `weights` does not name what the extractor loads.
        ModelError: If it cannot be loaded.
    """
    check_extractor(name, weights)
    return resolve(EXTRACTORS[name])(weights.get(name, ""), device)
