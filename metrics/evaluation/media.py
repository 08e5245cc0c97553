"""What a pipeline gives, as files: images become PNG, recordings WAV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmspec.errors import ArgumentError
from mmspec.files import replacing
from mmspec.metrics.extractors.audio import Sound
from mmspec.metrics.extractors.extractor import Images
from mmspec.vision.png import write_png

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")


@dataclass(frozen=True)
class AudioClip:
    """Sound as a pipeline gives it: float32 [channels, samples] in -1..1, at `rate` samples per second."""

    wave: NDArray[np.float32]
    rate: int

    @property
    def seconds(self) -> float:
        return self.wave.shape[1] / self.rate


Medium = Image.Image | AudioClip


def media_of(output: Any, count: int) -> list[Medium]:
    """The images or recordings of a call with so many prompts.

    Images are the output's `images`. A recording is a mapping with `audio`, float [channels, samples] or [samples],
    and `sampling_rate`; the output is a list of those, or, of a single prompt, is one.

    Raises:
        ArgumentError: For what is neither, as the tokens of a model without a tokenizer.
    """
    found: Any = getattr(output, "images", output)
    if isinstance(found, Mapping):
        found = [found]
    if not isinstance(found, (list, tuple)) or len(found) != count:
        raise ArgumentError(f"the model gives {type(found).__name__} for {count} prompts, not images or recordings")
    return [_medium(one) for one in found]


def _medium(one: Any) -> Medium:
    if isinstance(one, Image.Image):
        return one.convert("RGB")
    if isinstance(one, Mapping) and {"audio", "sampling_rate"} <= set(one):
        wave = np.asarray(one["audio"], dtype=np.float32)
        return AudioClip(wave[None] if wave.ndim == 1 else wave, int(one["sampling_rate"]))
    raise ArgumentError(f"the model gives {type(one).__name__}, no image and no recording; it has no tokenizer")


def suffix_of(medium: Medium) -> str:
    return ".wav" if isinstance(medium, AudioClip) else ".png"


def write_medium(medium: Medium, path: Path, notes: Mapping[str, str]) -> None:
    """Writes the file whole or not at all; a PNG holds the notes.

    Raises:
        ArgumentError: When refused.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(medium, AudioClip):
        import soundfile

        with replacing(path) as partial:
            soundfile.write(partial, medium.wave.T.clip(-1, 1), medium.rate, format="WAV", subtype="PCM_16")
    else:
        write_png(medium, path, notes)


def read_image(path: Path) -> Images:
    """An image as uint8 [H, W, 3].

    Raises:
        ArgumentError: Naming a file that is none.
    """
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow calls a broken PNG a syntax error
        raise ArgumentError(f"'{path}' is no image that can be read ({_reason(error)})") from error


def read_audio(path: Path) -> Sound:
    """A recording, its channels mixed into one.

    Raises:
        ArgumentError: Naming a file that is none.
    """
    import soundfile

    try:
        wave, rate = soundfile.read(path, dtype="float64", always_2d=True)
    except (OSError, RuntimeError, ValueError) as error:  # soundfile's own errors are runtime errors
        raise ArgumentError(f"'{path}' is no recording that can be read ({_reason(error)})") from error
    if not len(wave) or not np.isfinite(wave).all():
        raise ArgumentError(
            f"'{path}' is no recording that can be read (it is empty, or has values that are not finite)"
        )
    return Sound(np.asarray(wave.mean(1)), rate)


def is_audio(path: Path) -> bool:
    return path.suffix.lower() in AUDIO_SUFFIXES


def check_readable(path: Path) -> str | None:
    """Why a file cannot be read; None when it can."""
    try:
        read_audio(path) if is_audio(path) else read_image(path)
    except ArgumentError as error:
        return str(error)
    return None


def list_media(folder: Path, argument: str) -> list[Path]:
    """The images or recordings of a folder, by name.

    Raises:
        ArgumentError: Naming `argument` when there is none, or there are both.
    """
    if not folder.is_dir():
        raise ArgumentError(f"{argument}: '{folder}' is no folder")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (*IMAGE_SUFFIXES, *AUDIO_SUFFIXES))
    if not paths:
        raise ArgumentError(
            f"{argument}: '{folder}' holds no image ({', '.join(IMAGE_SUFFIXES)}) and no recording "
            f"({', '.join(AUDIO_SUFFIXES)})"
        )
    if len({is_audio(path) for path in paths}) > 1:
        raise ArgumentError(f"{argument}: '{folder}' holds images and recordings; name a folder with one kind")
    return paths


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
