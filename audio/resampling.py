"""Resampling of audio, at once and in chunks."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.errors import ArgumentError

_ZEROS = 6  # zero crossings of the filter to each side, torchaudio's default
_LARGEST_FILTER = 2**24  # numbers


class Resampler:
    """Resamples audio that arrives in chunks; what it returns adds up to the resampled whole.

    Args:
        source: Sampling rate of the audio.
        target: Sampling rate of the result.

    Raises:
        ArgumentError: If torchaudio cannot be imported, a rate is not allowed, or the two have no common divisor that
            makes a filter of a reasonable size, such as 48000 and 47999.
    """

    def __init__(self, source: int, target: int) -> None:
        for rate in (source, target):
            if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or not 1 <= rate <= 768000:
                raise ArgumentError(f"sampling_rate={rate!r} is not allowed; it must be an integer, 1 to 768000")
        common = math.gcd(source, target)
        self._source, self._target = source // common, target // common
        # Samples before and after a block of `source` samples that its `target` samples depend on.
        reach = math.ceil(_ZEROS * self._source / (min(self._source, self._target) * 0.99))
        if self._target * (2 * reach + self._source) > _LARGEST_FILTER:
            raise ArgumentError(
                f"sampling_rate={source} cannot be converted to {target}, which has too few divisors in common with "
                "it; use a usual rate, such as 16000, 22050, 24000, 44100 or 48000"
            )
        try:
            from torchaudio.functional import resample
        except (ImportError, OSError, RuntimeError) as error:  # builds for another torch raise the latter two
            raise ArgumentError(
                f"sampling_rate={source} is not {target}, and torchaudio, which resamples, cannot be imported: {error}"
            ) from None
        self._resample = resample
        self._around = math.ceil(reach / self._source) + 1  # blocks
        self._buffer: NDArray[np.float32] | None = None
        self._returned = 0  # blocks of the buffer

    def push(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """Takes the next samples, float32 [channels, n], and returns what is final of the result, [channels, m]."""
        self._buffer = audio if self._buffer is None else np.concatenate([self._buffer, audio], axis=-1)
        until = self._buffer.shape[-1] // self._source - self._around
        if until <= self._returned:
            return self._buffer[:, :0]
        found = self._convert(self._buffer)[:, self._returned * self._target : until * self._target]
        dropped = max(until - self._around, 0)
        self._buffer, self._returned = self._buffer[:, dropped * self._source :], until - dropped
        return found

    def finish(self) -> NDArray[np.float32]:
        """The rest of the result, as if no samples follow."""
        if self._buffer is None or not self._buffer.shape[-1]:
            return np.zeros((1, 0), dtype=np.float32)
        return self._convert(self._buffer)[:, self._returned * self._target :]

    def _convert(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        samples = torch.from_numpy(np.ascontiguousarray(audio))
        found: NDArray[np.float32] = self._resample(samples, self._source, self._target).numpy()
        return found


def resample(audio: NDArray[np.float32], source: int, target: int) -> NDArray[np.float32]:
    """Audio float32 [channels, samples] at another sampling rate.

    Raises:
        ArgumentError: If `Resampler` refuses a rate.
    """
    if source == target:
        return audio
    resampler = Resampler(source, target)
    return np.concatenate([resampler.push(audio), resampler.finish()], axis=-1)
