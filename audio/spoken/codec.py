"""The codec of the voice: one code per 20 ms, which stands for 36 band energies and the pitch of two frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.audio.spoken.analysis import BANDS
from mmspec.audio.spoken.config import CODES, FRAMES_PER_TOKEN, HOP, SAMPLING_RATE
from mmspec.audio.spoken.vocoder import Vocoder

FEATURES = FRAMES_PER_TOKEN * (BANDS + 2)
_CENTER_PITCH = 140.0  # Hz
BLOCK = 8  # tokens that the network decodes at a time, besides their context


class ResidualConv(nn.Module):
    """A residual convolution [B, C, n] -> [B, C, n] of width 3, initialized as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=1)
        self.mix = nn.Conv1d(channels, channels, 1)
        for p in self.mix.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.silu(self.conv(F.silu(x))))


class SpokenCodec(nn.Module):
    """The decoder of the codec; see `mmspec.audio.codec.Codec`.

    Args:
        channels: Width of the layers.
        depth: Number of residual convolutions at each of the two rates, of tokens and of frames.
    """

    book: Tensor

    def __init__(self, channels: int = 160, depth: int = 2) -> None:
        super().__init__()
        self.config = {"channels": channels, "depth": depth}
        self.sampling_rate = SAMPLING_RATE
        self.channels = 1
        self.hop = HOP
        self.codebooks = 1
        self.codebook_size = CODES
        self.reach = depth + -(-depth // FRAMES_PER_TOKEN)  # receptive field, in tokens to each side
        self.register_buffer("book", torch.zeros(CODES, FEATURES))
        self.enter = nn.Conv1d(FEATURES, channels, 1)
        self.slow = nn.Sequential(*[ResidualConv(channels) for _ in range(depth)])
        self.widen = nn.Conv1d(channels, channels * FRAMES_PER_TOKEN, 1)
        self.fast = nn.Sequential(*[ResidualConv(channels) for _ in range(depth)])
        self.leave = nn.Conv1d(channels, 1 + 2 * BANDS, 1)

    def vocoder_inputs(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of the vocoder for n = 2 * T frames, from codes [B, T].

        Returns:
            Pitch in Hz [B, n], log gains of the pulses and log gains of the noise, both [B, n, BANDS].
        """
        x = self.slow(self.enter(self.book[codes].mT))
        x = self.widen(x).unflatten(1, (-1, FRAMES_PER_TOKEN)).mT.flatten(2)
        x = self.leave(self.fast(x)).mT
        hertz, pulses, noise = x.split([1, BANDS, BANDS], dim=-1)
        return _CENTER_PITCH * hertz[..., 0].clamp(-1.5, 1.5).exp(), pulses - 4, noise - 6

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """Decodes codes int64 [B, 1, T] to audio float32 [B, 1, T * HOP]."""
        stream = self.stream()
        return torch.cat([stream.push(codes), stream.finish()], dim=-1)

    def stream(self) -> SpokenStream:
        return SpokenStream(self)

    def tables(self) -> list[Tensor]:
        return [self.book]


class SpokenStream:
    """Decodes codes that arrive in parts; see `mmspec.audio.codec.CodecStream`.

    The network always decodes the same blocks of codes, however they arrive. Otherwise its rounding errors would depend
    on the parts, and they accumulate in the phase of the pulses.
    """

    def __init__(self, codec: SpokenCodec) -> None:
        self._codec = codec
        self._vocoder = Vocoder(codec.book.device)
        self._codes = torch.empty(1, 0, dtype=torch.int64, device=codec.book.device)  # from token `_first` on
        self._first = 0
        self._decoded = 0  # tokens

    @torch.inference_mode()
    def push(self, codes: Tensor) -> Tensor:
        self._codes = torch.cat([self._codes.expand(len(codes), -1), codes[:, 0].to(self._codes.device)], dim=1)
        return self._decode_blocks(self._first + self._codes.shape[1] - self._codec.reach)

    @torch.inference_mode()
    def finish(self) -> Tensor:
        end = self._first + self._codes.shape[1]
        if end == 0:
            return torch.empty(1, 1, 0, device=self._codes.device)
        audio = torch.cat([self._decode_blocks(end, whole=False), self._vocoder.finish()[:, None]], dim=-1)
        return audio.clamp(-1, 1)

    def _decode_blocks(self, until: int, whole: bool = True) -> Tensor:
        """Audio of the next tokens up to `until`; only of whole blocks if `whole`."""
        blocks = []
        while self._decoded < until and (not whole or self._decoded + BLOCK <= until):
            blocks.append(self._decode_block(min(self._decoded + BLOCK, until)))
        if not blocks:
            return self._codes.new_empty(len(self._codes), 1, 0, dtype=torch.float32)
        frames = (torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True))
        return self._vocoder.push(*frames)[:, None].clamp(-1, 1)

    def _decode_block(self, until: int) -> list[Tensor]:
        """The inputs of the vocoder for the next tokens up to `until`."""
        reach, offset = self._codec.reach, self._first
        low = max(self._decoded - reach, 0)
        frames = self._codec.vocoder_inputs(self._codes[:, low - offset : until + reach - offset])
        span = slice((self._decoded - low) * FRAMES_PER_TOKEN, (until - low) * FRAMES_PER_TOKEN)
        self._decoded = until
        self._codes, self._first = self._codes[:, max(until - reach, 0) - offset :], max(until - reach, 0)
        return [part[:, span] for part in frames]
