"""What a pipeline needs of an audio codec, and how codes become sound while they still arrive."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Codec(Protocol):
    """Turns codes into a waveform.

    Attributes:
        sampling_rate: Samples per second.
        channels: 1 or 2.
        hop: Samples per frame, so that there are `sampling_rate / hop` frames per second.
        codebooks: K, codes per frame.
        codebook_size: V, each is below it.
    """

    sampling_rate: int
    channels: int
    hop: int
    codebooks: int
    codebook_size: int

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, F] to sound float32 [B, channels, F * hop] in -1..1, on the codec's own device."""
        ...

    def stream(self) -> CodecStream:
        """A decoder for frames that arrive bit by bit; what it gives in all is what `decode` gives at once."""
        ...

    def tables(self) -> list[Tensor]:
        """What the codes stand for: float [V, D] of each codebook."""
        ...


class Decoder(Protocol):
    """The part of a codec that `OverlapStream` asks for, or some layers of one: `hop` outputs of `channels` a frame."""

    channels: int
    hop: int

    def decode(self, codes: Tensor) -> Tensor:
        """[B, ..., F] to [B, channels, F * hop]."""
        ...


class CodecStream(Protocol):
    """Decodes one batch of rows that grow together."""

    def push(self, codes: Tensor) -> Tensor:
        """Takes the next frames int64 [B, K, f] and gives the sound that is certain by now, float32 [B, channels, n].

        It lags after the codes as far as a decoder looks ahead; n may be 0.
        """
        ...

    def finish(self) -> Tensor:
        """The rest of the sound, as it is when no more frames come."""
        ...


class OverlapStream:
    """Streams a codec whose sound at a frame depends on few frames around it: parts are decoded with these around them.

    Args:
        codec: Whose `decode` is called.
        before: Frames back that a frame's samples may depend on; None is all of them, at a cost that grows with them.
        after: Frames ahead that they may depend on.
    """

    def __init__(self, codec: Decoder, before: int | None, after: int) -> None:
        self._codec = codec
        self._before = before
        self._after = after
        self._codes: Tensor | None = None  # what later sound depends on
        self._given = 0  # frames of it whose sound was given

    def push(self, codes: Tensor) -> Tensor:
        self._codes = codes if self._codes is None else torch.cat([self._codes, codes], dim=-1)
        return self._give(self._codes.shape[-1] - self._after)

    def finish(self) -> Tensor:
        return self._give(0 if self._codes is None else self._codes.shape[-1])

    def _give(self, until: int) -> Tensor:
        """The sound of frames up to `until` that was not given yet."""
        codes, first, hop = self._codes, self._given, self._codec.hop
        if codes is None or until <= first:
            return torch.empty(0 if codes is None else len(codes), self._codec.channels, 0)
        sound = self._codec.decode(codes)[..., first * hop : until * hop]
        passed = 0 if self._before is None else max(until - self._before, 0)
        self._codes, self._given = codes[..., passed:], until - passed
        return sound
