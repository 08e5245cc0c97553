"""Interface of audio codecs, and streaming decoding of codes into audio."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmspec.errors import ModelError


class Codec(Protocol):
    """Decodes codes into a waveform.

    Attributes:
        sampling_rate: Samples per second.
        channels: 1 or 2.
        hop: Samples per frame; there are `sampling_rate / hop` frames per second.
        codebooks: K, codes per frame.
        codebook_size: V; codes are 0 to V - 1.
    """

    sampling_rate: int
    channels: int
    hop: int
    codebooks: int
    codebook_size: int

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes codes int64 [B, K, F] into audio float32 [B, channels, F * hop] in -1..1, on the codec's device."""
        ...

    def stream(self) -> CodecStream:
        """A decoder for frames that arrive in chunks; its chunks of audio add up to what `decode` returns."""
        ...

    def tables(self) -> list[Tensor]:
        """The vectors that codes stand for: float [V, D] of each codebook."""
        ...


def check_codec(codec: Codec, codebooks: int, codes: int) -> Codec:
    """The codec, after a check that it decodes a model's frames.

    Args:
        codebooks: Codebooks of the model.
        codes: Codes of each, without special tokens.

    Raises:
        ModelError: If it has fewer codebooks or codes.
    """
    if codec.codebooks < codebooks or codec.codebook_size < codes:
        raise ModelError(
            f"the codec has {codec.codebooks} codebooks of {codec.codebook_size}, the model {codebooks} of {codes}"
        )
    return codec


class FrameDecoder(Protocol):
    """The part of a codec, or some of its layers, that `OverlapStream` runs: `hop` outputs per frame and channel."""

    channels: int
    hop: int

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes frames [B, ..., F] into [B, channels, F * hop]."""
        ...


class CodecStream(Protocol):
    """Decodes one batch of rows whose frames arrive together."""

    def push(self, codes: Tensor) -> Tensor:
        """Takes the next frames int64 [B, K, f] and returns the audio that is final by now, float32 [B, channels, n].

        The audio lags the codes by as many frames as the decoder looks ahead; n may be 0.
        """
        ...

    def finish(self) -> Tensor:
        """The rest of the audio, decoded as if no frames follow."""
        ...


class OverlapStream:
    """Streams a codec with a finite receptive field: decodes chunks together with the frames around them.

    Args:
        codec: The decoder of a chunk.
        before: Frames back on which the samples of a frame may depend; None is all of them, at a cost that grows with
            their number.
        after: Frames ahead on which they may depend.
    """

    def __init__(self, codec: FrameDecoder, before: int | None, after: int) -> None:
        self._codec = codec
        self._before = before
        self._after = after
        self._codes: Tensor | None = None  # the frames that later audio depends on
        self._returned = 0  # how many of them have been returned as audio

    def push(self, codes: Tensor) -> Tensor:
        self._codes = codes if self._codes is None else torch.cat([self._codes, codes], dim=-1)
        return self._decode(self._codes.shape[-1] - self._after)

    def finish(self) -> Tensor:
        return self._decode(0 if self._codes is None else self._codes.shape[-1])

    def _decode(self, until: int) -> Tensor:
        """The audio of the frames before `until` that has not been returned yet."""
        codes, first, hop = self._codes, self._returned, self._codec.hop
        if codes is None or until <= first:
            return torch.empty(0 if codes is None else len(codes), self._codec.channels, 0)
        audio = self._codec.decode(codes)[..., first * hop : until * hop]
        dropped = 0 if self._before is None else max(until - self._before, 0)
        self._codes, self._returned = codes[..., dropped:], until - dropped
        return audio
