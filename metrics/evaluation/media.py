"""Images and recordings that metrics measure, and folders of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.limits import AUDIO_SECONDS
from mmspec.media import audio, images
from mmspec.media.listing import list_files, list_folders
from mmspec.metrics.extractors.audio import Waveform


def read_waveform(path: Path) -> Waveform:
    """A recording, its channels mixed into one.

    Raises:
        ArgumentError: As `mmspec.media.audio.read_audio`.
    """
    wave, rate = audio.read_audio(path, AUDIO_SECONDS)
    return Waveform(wave.astype(np.float64).mean(0), rate)


def is_audio(path: Path) -> bool:
    return path.suffix.lower() in audio.SUFFIXES


def check_readable(path: Path) -> str | None:
    """Why a file cannot be read; None if it can."""
    try:
        read_waveform(path) if is_audio(path) else images.read_image(path)
    except ArgumentError as error:
        return str(error)
    return None


def list_media(folder: Path, argument: str) -> list[Path]:
    """The images or recordings of a folder, in the natural order of their names.

    Args:
        folder: Where they lie; those in its folders do not count.
        argument: What the user calls the folder, for messages.

    Raises:
        ArgumentError: If there are none, or there are both.
    """
    if not folder.is_dir():
        raise ArgumentError(f"{argument}: '{folder}' is not a folder")
    paths = list_files(folder, (*images.SUFFIXES, *audio.SUFFIXES))
    if not paths:
        nested = (
            f"; it has folders, such as '{inner[0].name}': name one of them" if (inner := list_folders(folder)) else ""
        )
        raise ArgumentError(
            f"{argument}: '{folder}' holds no image ({', '.join(images.SUFFIXES)}) and no recording "
            f"({', '.join(audio.SUFFIXES)}){nested}"
        )
    if len({is_audio(path) for path in paths}) > 1:
        raise ArgumentError(f"{argument}: '{folder}' holds images and recordings; name a folder with one kind")
    return paths
