"""Audio in AAC, which libsndfile does not have, encoded by PyAV while it is generated."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.importing import install_extra

RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000)
_BIT_RATE = 64000  # per channel; at low sampling rates 4 bits per sample


def check_aac() -> None:
    """Checks that PyAV is installed.

    Raises:
        ArgumentError: If it is not.
    """
    if importlib.util.find_spec("av") is None:
        raise ArgumentError(f"the server needs PyAV for aac, which is not installed; {install_extra('aac')}")


class AacEncoder:
    """Turns chunks of audio into chunks of an AAC file (ADTS), each of which can be sent at once.

    Args:
        sampling_rate: One of `RATES`.
        channels: 1 or 2.
    """

    def __init__(self, sampling_rate: int, channels: int) -> None:
        import av

        self._sink = _Sink()
        self._file: Any = av.open(self._sink, "w", format="adts")
        self._rate, self._layout = sampling_rate, "mono" if channels == 1 else "stereo"
        bits = channels * min(_BIT_RATE, 4 * sampling_rate)
        self._stream: Any = self._file.add_stream("aac", rate=sampling_rate, layout=self._layout, bit_rate=bits)
        self._channels = channels

    def push(self, audio: NDArray[np.float32]) -> bytes:
        """Takes audio float32 [channels, n] in -1..1, and returns the bytes that are ready."""
        import av

        if audio.shape[1]:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(audio.clip(-1, 1)), "fltp", self._layout)
            frame.sample_rate = self._rate
            self._file.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        """The rest of the file."""
        self._file.mux(self._stream.encode(None))
        self.close()
        return self._sink.take()

    def close(self) -> None:
        """Ends the file; not to be called while another thread is in a method."""
        self._file.close()


class _Sink:
    """What PyAV writes to."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        """The bytes that have not been taken."""
        data = bytes(self._bytes)
        self._bytes.clear()
        return data
