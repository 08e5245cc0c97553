"""Reading images and recordings for metrics."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

import numpy as np
from PIL import Image

from mmspec import limits
from mmspec.documents import one_line
from mmspec.errors import ArgumentError
from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.image import Images

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Opens an image whose header has been checked; its pixels are not decoded yet.

    Raises:
        ArgumentError: If the file cannot be read, there or inside the block, or has more pixels than `limits.PIXELS`.
    """
    if not path.is_file():
        raise ArgumentError(f"'{path}' is not a readable image (no such file)")
    try:
        with warnings.catch_warnings():
            # Pillow has two bounds of its own, a warning and an error.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as image:
                limits.PIXELS.check(f"'{path}'", image.width * image.height)
                yield image
    except Image.DecompressionBombError:
        raise ArgumentError(
            f"'{path}' is not a readable image: it exceeds the {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels of Pillow"
        ) from None
    except ArgumentError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:  # a broken PNG is a SyntaxError
        raise ArgumentError(f"'{path}' is not a readable image ({one_line(error)})") from error


def read_image(path: Path) -> Images:
    """An image as uint8 [H, W, 3].

    Raises:
        ArgumentError: If the file cannot be read, or has more pixels than `limits.PIXELS`.
    """
    with open_image(path) as image:
        return np.asarray(image.convert("RGB"))


def read_audio(path: Path) -> Waveform:
    """A recording, its channels mixed into one.

    Raises:
        ArgumentError: If the file cannot be read, is empty, is longer than `limits.AUDIO_SECONDS`, or has values that
            are not finite.
    """
    import soundfile

    if not path.is_file():
        raise ArgumentError(f"'{path}' is not a readable recording (no such file)")
    try:
        with soundfile.SoundFile(path) as file:
            rate, seconds = file.samplerate, limits.AUDIO_SECONDS.value
            limits.AUDIO_SECONDS.check(f"'{path}'", ceil(file.frames / rate))
            # A header may promise less than the file holds.
            wave = file.read(seconds * rate, dtype="float64", always_2d=True)
    except ArgumentError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # soundfile raises its own RuntimeErrors
        raise ArgumentError(f"'{path}' is not a readable recording ({one_line(error)})") from error
    if not len(wave) or not np.isfinite(wave).all():
        raise ArgumentError(f"'{path}' is not a readable recording (it is empty, or has values that are not finite)")
    return Waveform(np.asarray(wave.mean(1)), rate)


def is_audio(path: Path) -> bool:
    return path.suffix.lower() in AUDIO_SUFFIXES


def check_readable(path: Path) -> str | None:
    """Why a file cannot be read; None if it can."""
    try:
        read_audio(path) if is_audio(path) else read_image(path)
    except ArgumentError as error:
        return str(error)
    return None


def list_media(folder: Path, argument: str) -> list[Path]:
    """The images or recordings of a folder, sorted by name.

    Args:
        folder: Where they lie.
        argument: What the user calls the folder, for messages.

    Raises:
        ArgumentError: If there are none, or there are both.
    """
    if not folder.is_dir():
        raise ArgumentError(f"{argument}: '{folder}' is not a folder")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (*IMAGE_SUFFIXES, *AUDIO_SUFFIXES))
    if not paths:
        raise ArgumentError(
            f"{argument}: '{folder}' holds no image ({', '.join(IMAGE_SUFFIXES)}) and no recording "
            f"({', '.join(AUDIO_SUFFIXES)})"
        )
    if len({is_audio(path) for path in paths}) > 1:
        raise ArgumentError(f"{argument}: '{folder}' holds images and recordings; name a folder with one kind")
    return paths
