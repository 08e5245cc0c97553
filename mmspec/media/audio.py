"""Audio of any kind as float32 [channels, samples], of files and of arrays."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments import shown
from mmspec.errors import ArgumentError
from mmspec.files.documents import one_line
from mmspec.limits import VOICE_SECONDS, Limit

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".opus")
MAX_CHANNELS = 8
# Of real numbers in -1..1: loud passages exceed it a little, 16-bit integers as real numbers by far.
MAX_PEAK = 10
_BLOCK = 65536  # samples at a time


def read_audio(path: Path, limit: Limit = VOICE_SECONDS) -> tuple[NDArray[np.float32], int]:
    """The samples of an audio file, float32 [channels, samples] in -1..1, and its sampling rate.

    The header is read first, and no more than the limit is read, whatever the header says.

    Args:
        path: The file, of any format and sample format of libsndfile.
        limit: On its seconds.

    Raises:
        ArgumentError: For a missing file, an unknown format, a file without samples, longer than the limit or with more
            than `MAX_CHANNELS`, or with samples that are not finite or far outside -1..1.
    """
    import soundfile

    name = shown(str(path))
    if not path.is_file():
        state = "not a file" if path.exists() else "no such file"
        raise ArgumentError(f"{name} is not a readable recording ({state})")
    try:
        with soundfile.SoundFile(path) as file:
            rate, channels, most = file.samplerate, file.channels, file.samplerate * limit.value
            if channels > MAX_CHANNELS:
                raise ArgumentError(f"{name} has {channels} channels; at most {MAX_CHANNELS} are allowed")
            limit.check(name, ceil(file.frames / rate))
            blocks, samples = list[NDArray[np.float32]](), 0
            while samples <= most and len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
                blocks.append(block)
                samples += len(block)
    except ArgumentError:
        raise
    except soundfile.LibsndfileError as error:  # whose text has the path once more
        raise ArgumentError(f"{name} is not a readable recording ({error.error_string.rstrip('.')})") from error
    except (OSError, RuntimeError, ValueError, TypeError) as error:  # TypeError: a .raw file needs a sampling rate
        raise ArgumentError(f"{name} is not a readable recording ({one_line(error)})") from error
    limit.check(name, ceil(samples / rate))
    if not samples:
        raise ArgumentError(f"{name} is not a readable recording (it has no samples)")
    return check_samples(np.concatenate(blocks).T, name), int(rate)


def to_audio(audio: Any, name: str) -> NDArray[np.float32]:
    """Samples of any type as float32 [channels, samples] in -1..1.

    Integers are divided by their largest magnitude, and unsigned ones of 8 bits are centered first, as in WAV files.
    What has more than `MAX_CHANNELS` rows and at most as many columns is [samples, channels], as soundfile and SciPy
    read it.

    Args:
        audio: An array, a tensor or a list: [samples], [channels, samples] or [samples, channels].
        name: What it is called, for messages.

    Raises:
        ArgumentError: For another shape, and for another type than real numbers and integers of 8, 16 and 32 bits.
    """
    if isinstance(audio, Tensor):
        audio = audio.detach().cpu()
        audio = (audio.float() if audio.is_floating_point() else audio).numpy()  # NumPy has no bfloat16
    try:
        samples = np.asarray(audio)
    except ValueError:  # a list of lists of several lengths
        raise ArgumentError(f"{name} is not audio; it must be [channels, samples]") from None
    shape = list(samples.shape)
    if samples.ndim == 1:
        samples = samples[None]
    elif samples.ndim == 2 and shape[0] > MAX_CHANNELS >= shape[1]:
        samples = samples.T
    if samples.ndim != 2 or not 1 <= len(samples) <= MAX_CHANNELS:
        raise ArgumentError(
            f"{name} has shape {shape}; it must be [channels, samples] with at most {MAX_CHANNELS} channels"
        )
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    if samples.dtype in (np.int8, np.int16, np.int32):
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    if samples.dtype.kind != "f":
        raise ArgumentError(
            f"{name} is of {samples.dtype}; it must be of real numbers in -1..1, or of integers of 8, 16 or 32 bits"
        )
    with np.errstate(over="ignore"):  # becomes infinite, which `check_samples` refuses
        return samples.astype(np.float32)


def check_samples(audio: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """Checks float32 [channels, samples]; returns it.

    Raises:
        ArgumentError: If there are no samples, or some are not finite or far outside -1..1.
    """
    if not audio.size:
        raise ArgumentError(f"{name} has shape {list(audio.shape)}; it must be [channels, samples] with at least one")
    peak = max(float(audio.max()), -float(audio.min()))
    if not np.isfinite(peak):
        raise ArgumentError(f"{name} has samples that are not finite numbers; it must be in -1..1")
    if peak > MAX_PEAK:
        raise ArgumentError(
            f"{name} has samples as large as {peak:g}; it must be in -1..1: divide them by their full scale, such as "
            "32768"
        )
    return audio
