"""Audio files: reading, and writing as WAV and FLAC, at once or in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.files import replacing

FORMATS = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16")}


def read_audio(path: Path) -> tuple[NDArray[np.float32], int]:
    """The samples of an audio file, float32 [channels, samples] in -1..1, and its sampling rate.

    Raises:
        ArgumentError: For a missing file, an unknown format, or a file without samples.
    """
    import soundfile

    if not path.is_file():
        state = "is not a file" if path.exists() else "does not exist"
        raise ArgumentError(f"'{path}' {state}; name an audio file, such as WAV or FLAC")
    try:
        audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError, TypeError) as error:  # TypeError: a .raw file needs a sampling rate
        raise ArgumentError(f"cannot read '{path}': {error}") from error
    if not len(audio):
        raise ArgumentError(f"'{path}' contains no samples")
    return audio.T, int(rate)


def write_audio(audio: NDArray[np.float32], sampling_rate: int, path: Path) -> None:
    """Writes float32 [channels, samples] in -1..1 with 16 bits per sample; if it fails, no file is written.

    Raises:
        ArgumentError: For another suffix than .wav or .flac, another shape, or a file that cannot be written.
    """
    write_stream([audio], sampling_rate, path, len(audio) if audio.ndim == 2 else 0, whole=True)


def write_stream(
    chunks: Iterable[NDArray[np.float32]], sampling_rate: int, path: Path, channels: int = 1, whole: bool = False
) -> int:
    """Writes chunks float32 [channels, n] as they arrive and returns the number of samples per channel.

    If the iteration over the chunks raises, the samples written so far are kept as a valid file, unless `whole`.

    Args:
        chunks: The audio.
        sampling_rate: Samples per second.
        path: The file; its suffix is the format.
        channels: 1 or 2.
        whole: Keep no partial file.

    Raises:
        ArgumentError: For another suffix than .wav or .flac, another shape, or a file that cannot be written.
    """
    import soundfile

    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ArgumentError(f"'{path}' must end in {' or '.join(FORMATS)}")
    if channels not in (1, 2):
        raise ArgumentError(f"audio must be [channels, samples] with 1 or 2 channels; it has {channels} channels")
    samples = 0
    failure: BaseException | None = None
    with replacing(path) as partial:
        try:
            with soundfile.SoundFile(partial, "w", sampling_rate, channels, kind[1], format=kind[0]) as file:
                try:
                    for chunk in chunks:
                        if chunk.ndim != 2 or len(chunk) != channels:
                            raise ArgumentError(
                                f"audio has shape {list(chunk.shape)}; it must be [{channels}, samples]"
                            )
                        file.write(chunk.T)
                        samples += chunk.shape[1]
                except BaseException as error:
                    if whole or not samples:
                        raise
                    failure = error
        except soundfile.LibsndfileError as error:
            raise ArgumentError(f"cannot write '{path}': {error}") from error
    if failure is not None:
        raise failure
    return samples


def write_raw(chunks: Iterable[NDArray[np.float32]], stream: BinaryIO) -> int:
    """Writes chunks float32 [channels, n] as little-endian 16-bit samples and returns their number per channel.

    Channels are interleaved; samples outside -1..1 are clipped, as in files.
    """
    samples = 0
    for chunk in chunks:
        stream.write((chunk.T.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
        stream.flush()
        samples += chunk.shape[1]
    return samples
