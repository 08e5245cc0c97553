"""The codec of the spoken voice: one code per 20 ms, from 36 bands and the pitch and back to sound."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.audio.spoken.analysis import BANDS
from mmspec.audio.spoken.config import CODES, FRAMES_PER_TOKEN, HOP, SAMPLING_RATE
from mmspec.audio.spoken.vocoder import Vocoder

FEATURES = FRAMES_PER_TOKEN * (BANDS + 2)
_MIDDLE = 140.0  # Hz
BLOCK = 8  # tokens that the network sees at a time, and those around them


class Around(nn.Module):
    """A residual block that sees one step to each side and starts as the identity. [B, C, n] in and out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=1)
        self.mix = nn.Conv1d(channels, channels, 1)
        for p in self.mix.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.silu(self.conv(F.silu(x))))


class SpokenCodec(nn.Module):
    """Codes to sound; see `mmspec.audio.codec.Codec`.

    Args:
        channels: Width of the layers.
        depth: Blocks at each of the two rates; each sees one step to each side.
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
        self.reach = depth + -(-depth // FRAMES_PER_TOKEN)  # tokens to each side that a frame depends on
        self.register_buffer("book", torch.zeros(CODES, FEATURES))
        self.enter = nn.Conv1d(FEATURES, channels, 1)
        self.slow = nn.Sequential(*[Around(channels) for _ in range(depth)])
        self.widen = nn.Conv1d(channels, channels * FRAMES_PER_TOKEN, 1)
        self.fast = nn.Sequential(*[Around(channels) for _ in range(depth)])
        self.leave = nn.Conv1d(channels, 1 + 2 * BANDS, 1)

    def parameters_of(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pitch [B, n] in Hz and the logarithms of the gains of pulses and noise [B, n, BANDS], of n = 2 T frames."""
        x = self.slow(self.enter(self.book[codes].mT))
        x = self.widen(x).unflatten(1, (-1, FRAMES_PER_TOKEN)).mT.flatten(2)
        x = self.leave(self.fast(x)).mT
        hertz, pulses, noise = x.split([1, BANDS, BANDS], dim=-1)
        return _MIDDLE * hertz[..., 0].clamp(-1.5, 1.5).exp(), pulses - 4, noise - 6

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, 1, T] to sound float32 [B, 1, T * HOP]."""
        stream = self.stream()
        return torch.cat([stream.push(codes), stream.finish()], dim=-1)

    def stream(self) -> SpokenStream:
        return SpokenStream(self)

    def tables(self) -> list[Tensor]:
        return [self.book]


class SpokenStream:
    """Decodes codes that arrive bit by bit; see `mmspec.audio.codec.CodecStream`.

    The network always sees the same blocks of codes, however they arrive: rounding that depended on it would be added
    up in the phase of the pulses.
    """

    def __init__(self, codec: SpokenCodec) -> None:
        self._codec = codec
        self._vocoder = Vocoder(codec.book.device)
        self._codes = torch.empty(1, 0, dtype=torch.int64, device=codec.book.device)  # from `_first` on
        self._first = 0
        self._given = 0

    @torch.inference_mode()
    def push(self, codes: Tensor) -> Tensor:
        self._codes = torch.cat([self._codes.expand(len(codes), -1), codes[:, 0]], dim=1)
        return self._blocks(self._first + self._codes.shape[1] - self._codec.reach)

    @torch.inference_mode()
    def finish(self) -> Tensor:
        end = self._first + self._codes.shape[1]
        if end == 0:
            return torch.empty(1, 1, 0, device=self._codes.device)
        sound = torch.cat([self._blocks(end, whole=False), self._vocoder.finish()[:, None]], dim=-1)
        return sound.clamp(-1, 1)

    def _blocks(self, until: int, whole: bool = True) -> Tensor:
        """The sound up to token `until`, or of the `whole` blocks before it."""
        found = []
        while self._given < until and (not whole or self._given + BLOCK <= until):
            found.append(self._block(min(self._given + BLOCK, until)))
        if not found:
            return self._codes.new_empty(len(self._codes), 1, 0, dtype=torch.float32)
        frames = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return self._vocoder.push(*frames)[:, None].clamp(-1, 1)

    def _block(self, until: int) -> list[Tensor]:
        """What the vocoder needs from what was given up to token `until`."""
        reach, offset = self._codec.reach, self._first
        low = max(self._given - reach, 0)
        frames = self._codec.parameters_of(self._codes[:, low - offset : until + reach - offset])
        span = slice((self._given - low) * FRAMES_PER_TOKEN, (until - low) * FRAMES_PER_TOKEN)
        self._given = until
        self._codes, self._first = self._codes[:, max(until - reach, 0) - offset :], max(until - reach, 0)
        return [part[:, span] for part in frames]
