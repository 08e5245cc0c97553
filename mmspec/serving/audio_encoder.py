"""Audio in a file format, encoded while it is generated."""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mmspec.audio.wave import FORMATS, check_format
from mmspec.errors import ArgumentError
from mmspec.serving.aac_encoder import RATES, AacEncoder, check_aac

PCM = "pcm"
AAC, FLAC = "aac", "flac"
MEDIA_TYPES = {
    "wav": "audio/wav", "mp3": "audio/mpeg", FLAC: "audio/flac", "opus": "audio/ogg", AAC: "audio/aac",
    PCM: "audio/pcm",
}  # fmt: skip
_BLOCK = 65536  # samples at a time


class AudioEncoder:
    """Turns chunks of audio into chunks of a file.

    libsndfile writes the header again at the end, with the length. The beginning of a stream has been sent by then, so
    that these writes are dropped, unless the whole file is kept. A stream in WAV therefore has the largest length in
    its header, and one in MP3 a constant bit rate, from which players compute it. A FLAC file without its length is one
    that libsndfile and others cannot read, so that it is kept.

    Args:
        format: A key of `MEDIA_TYPES`, but not "aac"; see `new_encoder`.
        sampling_rate: Samples per second of the audio; see `encoder_rate`.
        channels: 1 or 2.
        whole: Whether `finish` returns the file at once, with its length in the header.
    """

    def __init__(self, format: str, sampling_rate: int, channels: int, whole: bool = False) -> None:
        self._sink = _Sink(whole or format == FLAC)
        self._file = None
        self._samples = 0
        if format == "wav" and not whole:
            self._sink.write(_endless_wav(sampling_rate, channels))
        elif format != PCM:
            import soundfile

            kind = FORMATS[f".{format}"]
            constant = format == "mp3" and not whole
            mode, level = ("CONSTANT", 0.5) if constant else (None, None)
            self._file = soundfile.SoundFile(
                self._sink,
                "w",
                sampling_rate,
                channels,
                kind.coding,
                format=kind.container,
                bitrate_mode=mode,
                compression_level=level,  # fmt: skip
            )

    def push(self, audio: NDArray[np.float32]) -> bytes:
        """Takes audio float32 [channels, n] in -1..1, and returns the bytes that are ready."""
        if self._file is None:
            self._sink.write((audio.T.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
        else:
            self._samples += audio.shape[1]
            for start in range(0, audio.shape[1], _BLOCK):
                self._file.write(audio[:, start : start + _BLOCK].T)
        return self._sink.take()

    def finish(self) -> bytes:
        """The rest of the file; one sample of silence if there is none, as a file without samples cannot be opened."""
        if self._file is not None and not self._samples:
            self.push(np.zeros((self._file.channels, 1), dtype=np.float32))
        self.close()
        return self._sink.take(all=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the file; not to be called while another thread is in a method."""
        if self._file is not None:
            self._file.close()


def new_encoder(format: str, sampling_rate: int, channels: int, whole: bool = False) -> AudioEncoder | AacEncoder:
    """The encoder of a format; for the arguments see `AudioEncoder`."""
    if format == AAC:
        return AacEncoder(sampling_rate, channels)
    return AudioEncoder(format, sampling_rate, channels, whole)


def _endless_wav(sampling_rate: int, channels: int) -> bytes:
    """The header of a WAV file of 16-bit samples whose length is not known."""
    most, step = 2**32 - 1, 2 * channels
    parts = (
        b"RIFF",
        most,
        b"WAVE",
        b"fmt ",
        16,
        1,
        channels,
        sampling_rate,
        sampling_rate * step,
        step,
        16,
        b"data",
        most,
    )
    return struct.pack("<4sI4s4sIHHIIHH4sI", *parts)


class _Sink:
    """A file in memory for libsndfile, whose bytes are taken as they become final.

    Args:
        whole: Keep all bytes until the end.
    """

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._bytes = bytearray()
        self._taken = 0  # bytes before the first of `_bytes`
        self._at = 0

    def write(self, data: bytes) -> int:
        data = bytes(data)
        skipped = max(self._taken - self._at, 0)  # bytes of a header that has been sent
        kept, start = data[skipped:], max(self._at - self._taken, 0)
        if kept:
            if start > len(self._bytes):
                self._bytes.extend(bytes(start - len(self._bytes)))
            self._bytes[start : start + len(kept)] = kept
        self._at += len(data)
        return len(data)

    def read(self, count: int = -1) -> bytes:
        return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        end = self._taken + len(self._bytes)
        self._at = offset + (0 if whence == 0 else self._at if whence == 1 else end)
        return self._at

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def take(self, all: bool = False) -> bytes:
        """The bytes that have not been taken, none as long as the whole file is kept."""
        if self._whole and not all:
            return b""
        data = bytes(self._bytes)
        self._taken += len(data)
        self._bytes.clear()
        return data


def encoder_rate(format: str, sampling_rate: int) -> int:
    """The sampling rate of a file: the model's, or the next higher one that the format has.

    Raises:
        ArgumentError: If what is installed cannot write the format.
    """
    if format == PCM:
        return sampling_rate
    try:
        if format == AAC:
            check_aac()
        rates = RATES if format == AAC else check_format(Path(f"speech.{format}")).rates
    except ArgumentError as error:
        raise ArgumentError(f"response_format={format!r} is not possible: {error}") from None
    if not rates or sampling_rate in rates:
        return sampling_rate
    return next((rate for rate in rates if rate > sampling_rate), rates[-1])
