"""Audio of a speech model's tokens, as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.audio.adapter import codec_of_part
from mmspec.audio.codec import CodecStream
from mmspec.audio.resampling import Resampler
from mmspec.serving.generation import CallOutput


class AudioRenderer:
    """Decodes the tokens of a text, part after part, into audio.

    Args:
        pipe: The speech pipeline.
        parts: The parts of the text, see `mmspec.audio.adapter.PreparedText`.
        first: Frames in the first chunk of each part.
        every: Frames in the later chunks.
        sampling_rate: Samples per second of the audio.
    """

    def __init__(self, pipe: Any, parts: Sequence[Any], first: int, every: int, sampling_rate: int) -> None:
        self._pipe, self._parts, self._first, self._every = pipe, parts, first, every
        self._resampler = None if sampling_rate == pipe.sampling_rate else Resampler(pipe.sampling_rate, sampling_rate)
        self._part = 0
        self._tokens: list[torch.Tensor] = []
        self._sent = 0  # frames of the part
        self._stream = self._new_stream()

    def push(self, outputs: Sequence[CallOutput], last: bool) -> NDArray[np.float32]:
        """Takes what has been committed since, and returns the audio that is ready, float32 [channels, n].

        Args:
            outputs: In order.
            last: Whether nothing follows.
        """
        chunks: list[NDArray[np.float32]] = []
        with torch.inference_mode():
            for output in outputs:
                if output.part != self._part:
                    chunks += self._finish_part()
                    self._part = output.part
                    self._stream = self._new_stream()
                self._tokens.append(output.tokens)
            chunks += self._finish_part() if last else self._decode(last=False)
        audio = np.concatenate(chunks or [np.zeros((self._pipe.adapter.codec.channels, 0), np.float32)], axis=-1)
        if self._resampler is None:
            return audio
        parts = [self._resampler.push(audio)] + ([self._resampler.finish()] if last else [])
        return np.concatenate(parts, axis=-1)

    def _decode(self, last: bool) -> list[NDArray[np.float32]]:
        if not self._tokens:
            return []
        codes = self._pipe.adapter.codes(torch.cat(self._tokens))
        new = codes.shape[-1] - self._sent
        if not new or (not last and new < (self._every if self._sent else self._first)):
            return []
        audio = self._stream.push(codes[None, :, self._sent :])
        self._sent = codes.shape[-1]
        return [audio[0].cpu().numpy()]

    def _finish_part(self) -> list[NDArray[np.float32]]:
        chunks = self._decode(last=True)
        if self._sent:
            chunks.append(self._stream.finish()[0].cpu().numpy())
        self._tokens, self._sent = [], 0
        return chunks

    def _new_stream(self) -> CodecStream:
        return codec_of_part(self._pipe.adapter, self._parts[self._part]).stream()
