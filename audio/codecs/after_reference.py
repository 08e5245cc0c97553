"""A codec that decodes frames as a continuation of others, whose audio is not returned."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.audio.codec import Codec, CodecStream


class AfterReference:
    """A codec whose audio continues that of reference frames.

    Args:
        reference: int64 [K, F], the frames before those that are decoded.
    """

    def __init__(self, codec: Codec, reference: Tensor) -> None:
        self._codec, self._reference = codec, reference
        self.sampling_rate, self.channels, self.hop = codec.sampling_rate, codec.channels, codec.hop
        self.codebooks, self.codebook_size = codec.codebooks, codec.codebook_size

    def decode(self, codes: Tensor) -> Tensor:
        return self._codec.decode(after(self._reference, codes))[..., self._reference.shape[1] * self.hop :]

    def stream(self) -> CodecStream:
        return AfterReferenceStream(self._codec, self._reference)

    def tables(self) -> list[Tensor]:
        return self._codec.tables()


class AfterReferenceStream:
    """Streams an `AfterReference`: the reference is decoded with the first frames."""

    def __init__(self, codec: Codec, reference: Tensor) -> None:
        self._stream, self._reference = codec.stream(), reference
        self._dropped = reference.shape[1] * codec.hop  # samples of the reference that are still to come
        self._begun = False

    def push(self, codes: Tensor) -> Tensor:
        if not self._begun:
            codes, self._begun = after(self._reference, codes), True
        return self._rest(self._stream.push(codes))

    def finish(self) -> Tensor:
        return self._rest(self._stream.finish())

    def _rest(self, audio: Tensor) -> Tensor:
        """The part of the audio that is not the reference's."""
        dropped = min(self._dropped, audio.shape[-1])
        self._dropped -= dropped
        return audio[..., dropped:]


def after(reference: Tensor, codes: Tensor) -> Tensor:
    """Frames int64 [B, K, F] after reference frames int64 [K, R]: [B, K, R + F]."""
    return torch.cat([reference.to(codes.device).expand(len(codes), -1, -1), codes], dim=-1)
