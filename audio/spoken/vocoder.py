"""A source-filter vocoder: a pulse train and noise, each through a filter that changes every 10 ms.

Segment i of the excitation covers frames i and i + 1 under a Hann window. It is filtered in the frequency domain by the
minimum-phase filter of its gains, and segments overlap by half. The audio of a frame depends on no frame after the next
one, so that audio is produced while frames arrive.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from mmspec.audio.spoken.analysis import SIZE, spread_filters
from mmspec.audio.spoken.config import FRAME, SAMPLING_RATE
from mmspec.sampling.probs import widest

_MAX_HARMONIC = 7800.0  # Hz
_NOISE = 1024 * FRAME  # samples before the noise repeats


@cache
def _tables() -> tuple[Tensor, Tensor, Tensor]:
    """Constants: the window of a segment, the filters that interpolate bands, and the noise."""
    with torch.inference_mode(False):  # they are reused by later calls with gradients
        noise = torch.randn(_NOISE, generator=torch.Generator().manual_seed(0))
        return torch.hann_window(2 * FRAME), torch.from_numpy(spread_filters()), noise


class Vocoder:
    """Synthesizes audio from frames that arrive in parts.

    The audio lags by one frame: `push` returns that of all frames but the last one, `finish` that of the last.

    Args:
        device: Device of the frames.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._phase: Tensor | None = None  # phase of the pulses in periods, float64 [B]
        self._start = 0  # frames synthesized
        self._waiting: Tensor | None = None  # inputs of the last two frames
        self._tail: Tensor | None = None  # of the synthesized segments, beyond their frame
        self._excited: Tensor | None = None  # excitation of the first frame of the next segment
        self._window, self._spread, self._noise = (table.to(device) for table in _tables())

    def push(self, hertz: Tensor, pulses: Tensor, noise: Tensor) -> Tensor:
        """Adds frames.

        Args:
            hertz: Pitch in Hz at the end of each frame, float32 [B, n].
            pulses: Log gains of the pulses by band, float32 [B, n, BANDS].
            noise: Log gains of the noise by band, float32 [B, n, BANDS].

        Returns:
            Audio float32 [B, samples], differentiable.
        """
        new = torch.cat([hertz[..., None], pulses, noise], dim=-1)
        frames = torch.cat([new[:, :1] if self._waiting is None else self._waiting, new], dim=1)
        return self._render(frames, frames.shape[1] - 2)

    def finish(self) -> Tensor:
        """Returns the audio of the last frame."""
        if self._waiting is None:
            return torch.empty(0, 0, device=self._device)
        frames = torch.cat([self._waiting, self._waiting[:, -1:]], dim=1)
        return self._render(frames, 1)

    def _render(self, frames: Tensor, count: int) -> Tensor:
        """Audio of `count` frames float32 [B, count + 2, 1 + 2 * BANDS], with the one before and the next one."""
        batch = len(frames)
        self._waiting = frames[:, -2:]
        if count <= 0:
            return frames.new_zeros(batch, 0)
        if self._excited is None:
            self._phase = torch.zeros(batch, dtype=widest(frames.device), device=frames.device)
            self._excited = self._excite(frames[:, :2, 0], 0)
            self._tail = frames.new_zeros(batch, 1, SIZE - FRAME)
        fresh = self._excite(frames[:, 1 : count + 2, 0], self._start + 1)
        excitation = torch.cat([self._excited, fresh], dim=2)  # [B, 2, (count + 1) * FRAME]
        segments = excitation.unfold(2, 2 * FRAME, FRAME) * self._window
        gains = minimum_phase(frames[:, 1 : count + 1, 1:].unflatten(-1, (2, -1)).transpose(1, 2) @ self._spread)
        filtered = torch.fft.irfft(torch.fft.rfft(segments, SIZE) * gains, SIZE).sum(1)  # [B, count, SIZE]
        length = (count - 1) * FRAME + SIZE
        audio = torch.nn.functional.fold(
            filtered.transpose(1, 2), (1, length), kernel_size=(1, SIZE), stride=(1, FRAME)
        )[:, 0, 0]
        assert self._tail is not None
        audio = audio + torch.nn.functional.pad(self._tail[:, 0], (0, length - SIZE + FRAME))
        self._tail = audio[:, None, count * FRAME :]
        self._excited = excitation[:, :, count * FRAME :]
        self._start += count
        return audio[:, : count * FRAME]

    def _excite(self, hertz: Tensor, start: int) -> Tensor:
        """Pulses and noise [B, 2, n * FRAME] of n frames from frame `start` on, from the pitch at their n + 1 ends."""
        assert self._phase is not None
        batch, count = len(hertz), hertz.shape[1] - 1
        share = torch.arange(1, FRAME + 1, device=hertz.device) / FRAME
        pitch = (hertz[:, :-1, None] + (hertz[:, 1:] - hertz[:, :-1])[..., None] * share).flatten(1)
        periods = (pitch.to(self._phase.dtype) / SAMPLING_RATE).cumsum(1) + self._phase[:, None]
        self._phase = periods[:, -1] % 1
        phase = ((periods + 0.5) % 1 - 0.5).float()
        harmonics = (_MAX_HARMONIC / pitch).floor()
        # The sum of 2 cos(2 pi k phase) over the harmonics k, in closed form.
        sine = torch.sin(math.pi * phase)
        near = sine.abs() < 1e-4
        closed = torch.sin((2 * harmonics + 1) * math.pi * phase) / torch.where(near, 1.0, sine) - 1
        train = torch.where(near, 2 * harmonics, closed) * (pitch / SAMPLING_RATE).sqrt()
        at = torch.arange(start * FRAME, (start + count) * FRAME, device=hertz.device) % len(self._noise)
        return torch.stack([train, self._noise[at].expand(batch, -1)], dim=1)


def minimum_phase(log_gain: Tensor) -> Tensor:
    """The minimum-phase filter with gain exp(`log_gain`), complex [..., SIZE // 2 + 1]."""
    cepstrum = torch.fft.irfft(log_gain.to(torch.complex64), SIZE)
    fold = torch.zeros(SIZE, device=log_gain.device)
    fold[0], fold[SIZE // 2], fold[1 : SIZE // 2] = 1, 1, 2
    log = torch.fft.rfft(cepstrum * fold)
    return torch.polar(log.real.exp(), log.imag)  # a sixth of the time of an exponential of complex numbers on a CPU
