"""Writes audio files in the formats of libsndfile, at once or in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.files import replacing

_BLOCK = 65536  # samples at a time


@dataclass(frozen=True)
class AudioFormat:
    """A file format of libsndfile.

    Attributes:
        container: Its name in libsndfile.
        coding: The coding of samples in it.
        rates: The sampling rates that it can have; empty for all.
    """

    container: str
    coding: str
    rates: tuple[int, ...] = ()


FORMATS = {
    ".wav": AudioFormat("WAV", "PCM_16"),
    ".flac": AudioFormat("FLAC", "PCM_16"),
    ".ogg": AudioFormat("OGG", "VORBIS"),
    ".opus": AudioFormat("OGG", "OPUS", (8000, 12000, 16000, 24000, 48000)),
    ".mp3": AudioFormat("MP3", "MPEG_LAYER_III", (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)),
}


def check_format(path: Path, sampling_rate: int | None = None) -> AudioFormat:
    """The format of a file to be written, by its suffix.

    Args:
        path: The file.
        sampling_rate: Samples per second, if known.

    Raises:
        ArgumentError: For another suffix than those of `FORMATS`, a sampling rate that the format does not have, and a
            format that the installed libsndfile cannot write.
    """
    import soundfile

    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ArgumentError(f"'{path}' must end in {', '.join(FORMATS)}")
    found = FORMATS[suffix]
    if not soundfile.check_format(found.container, found.coding):
        able = [name for name, each in FORMATS.items() if soundfile.check_format(each.container, each.coding)]
        raise ArgumentError(
            f"'{path}': libsndfile {soundfile.__libsndfile_version__} cannot write {suffix}; install a newer "
            f"soundfile, or use {', '.join(able)}"
        )
    if sampling_rate is not None and found.rates and sampling_rate not in found.rates:
        raise ArgumentError(
            f"'{path}': {suffix} files cannot have a sampling rate of {sampling_rate}; set sampling_rate=, or "
            f"--sampling-rate on the command line, to one of {', '.join(map(str, found.rates))}"
        )
    return found


def write_audio(audio: NDArray[np.float32], sampling_rate: int, path: Path) -> None:
    """Writes float32 [channels, samples] in -1..1, with 16 bits per sample in WAV and FLAC; if it fails, no file.

    Raises:
        ArgumentError: If `check_format` refuses; for another shape, no samples at all in a file other than .wav, and a
            file that cannot be written.
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
        path: The file; its suffix is the format, see `FORMATS`.
        channels: 1 or 2.
        whole: Keep no partial file.

    Raises:
        ArgumentError: If `check_format` refuses; for another shape, no samples at all in a file other than .wav, and a
            file that cannot be written.
    """
    import soundfile

    kind = check_format(path, sampling_rate)
    if channels not in (1, 2):
        raise ArgumentError(f"audio must be [channels, samples] with 1 or 2 channels; it has {channels} channels")
    samples = 0
    failure: BaseException | None = None
    with replacing(path) as partial:
        try:
            with soundfile.SoundFile(partial, "w", sampling_rate, channels, kind.coding, format=kind.container) as file:
                try:
                    for chunk in chunks:
                        if chunk.ndim != 2 or len(chunk) != channels:
                            raise ArgumentError(
                                f"audio has shape {list(chunk.shape)}; it must be [{channels}, samples]"
                            )
                        for start in range(0, chunk.shape[1], _BLOCK):  # Vorbis needs stack for each sample at once
                            file.write(chunk[:, start : start + _BLOCK].T)
                        samples += chunk.shape[1]
                except BaseException as error:
                    if whole or not samples:
                        raise
                    failure = error
        except soundfile.LibsndfileError as error:
            raise ArgumentError(f"cannot write '{path}': {error}") from error
        # libsndfile writes no header before the first sample, but in WAV.
        if not samples and path.suffix.lower() != ".wav":
            raise ArgumentError(
                f"audio has no samples, and a {path.suffix} file without any cannot be opened; use .wav"
            )
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
