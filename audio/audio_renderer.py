"""Audio of a speech model's tokens, as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.audio.adapter import SpeechAdapter
from mmspec.audio.codec import CodecStream
from mmspec.audio.resampling import Resampler


class PartTokens(Protocol):
    """Tokens of a part of a text.

    Attributes:
        tokens: The tokens, [n, *cell].
        part: The index of the part; parts come in order.
        prompt: The prompt of the part as it was decoded, a `mmspec.audio.text_parts.PartPrompt`.
    """

    @property
    def tokens(self) -> torch.Tensor: ...

    @property
    def part(self) -> int: ...

    @property
    def prompt(self) -> Any: ...


class AudioRenderer:
    """Decodes the tokens of a text, part after part, into audio.

    Args:
        adapter: The model.
        first: Frames in the first chunk of each part.
        every: Frames in the later chunks.
        sampling_rate: Samples per second of the audio.
        silences: What follows each part, float32 [channels, n]; may be empty.
    """

    def __init__(
        self,
        adapter: SpeechAdapter,
        first: int,
        every: int,
        sampling_rate: int,
        silences: Sequence[NDArray[np.float32]] = (),
    ) -> None:
        self._adapter, self._first, self._every = adapter, first, every
        own = adapter.codec.sampling_rate
        self._resampler = None if sampling_rate == own else Resampler(own, sampling_rate)
        self._silences = silences
        self._part = 0
        self._tokens: list[torch.Tensor] = []
        self._sent = 0  # frames of the part
        self._stream: CodecStream | None = None  # of the part

    def push(self, outputs: Sequence[PartTokens], last: bool) -> list[NDArray[np.float32]]:
        """Takes what has been committed since, and returns the audio that is ready, in chunks float32 [channels, n].

        Args:
            outputs: In order.
            last: Whether nothing follows.
        """
        chunks: list[NDArray[np.float32]] = []
        with torch.inference_mode():
            for output in outputs:
                while self._part < output.part:  # a part without tokens has no output
                    chunks += self._finish_part()
                    self._part, self._stream = self._part + 1, None
                if self._stream is None:
                    self._stream = output.prompt.codec().stream()
                self._tokens.append(output.tokens)
            chunks += self._finish_part() if last else self._decode(last=False)
        if self._resampler is not None:
            chunks = [self._resampler.push(chunk) for chunk in chunks] + ([self._resampler.finish()] if last else [])
        return [chunk for chunk in chunks if chunk.shape[-1]]

    def _decode(self, last: bool) -> list[NDArray[np.float32]]:
        if self._stream is None:
            return []
        codes = self._adapter.codes(torch.cat(self._tokens))
        new = codes.shape[-1] - self._sent
        if not new or (not last and new < (self._every if self._sent else self._first)):
            return []
        audio = self._stream.push(codes[None, :, self._sent :])
        self._sent = codes.shape[-1]
        return [audio[0].cpu().numpy()]

    def _finish_part(self) -> list[NDArray[np.float32]]:
        chunks = self._decode(last=True)
        if self._stream is not None and self._sent:
            chunks.append(self._stream.finish()[0].cpu().numpy())
        self._tokens, self._sent = [], 0
        return chunks + list(self._silences[self._part : self._part + 1])
