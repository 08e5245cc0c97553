"""From pitch and band energies to sound: a train of pulses and noise, each through a filter that changes every 10 ms.

A source-filter vocoder. Segment i of the excitation covers frames i and i + 1 under a Hann window; it is filtered in
the frequency domain with the minimum phase that belongs to its gains, and segments overlap by half. What is heard up
to a frame depends on nothing after the next one, so that sound can be made while frames arrive.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from mmspec.audio.spoken.analysis import SIZE, spread_filters
from mmspec.audio.spoken.config import FRAME, SAMPLING_RATE

_HIGHEST = 7800.0  # Hz, of the pulses' harmonics
_NOISE = 1024 * FRAME  # samples before the noise repeats


@cache
def _tables() -> tuple[Tensor, Tensor, Tensor]:
    """The window of a segment, what spreads bands over frequencies, and the noise: always the same."""
    with torch.inference_mode(False):  # they outlive this call, which may be one without gradients
        noise = torch.randn(_NOISE, generator=torch.Generator().manual_seed(0))
        return torch.hann_window(2 * FRAME), torch.from_numpy(spread_filters()), noise


class Vocoder:
    """Makes the sound of rows that grow together.

    Each call of `push` gives the sound of the frames that came before the last one; `finish` gives that of the last.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._phase: Tensor | None = None  # turns of the pulses so far, float64 [B]
        self._start = 0  # frames done
        self._waiting: Tensor | None = None  # parameters of the frame before, and of the one that is not done
        self._tail: Tensor | None = None  # what done segments leave after their frame
        self._excited: Tensor | None = None  # excitation of the frame that the next segment starts with
        self._window, self._spread, self._noise = (table.to(device) for table in _tables())

    def push(self, hertz: Tensor, pulses: Tensor, noise: Tensor) -> Tensor:
        """Takes frames.

        Args:
            hertz: Pitch at the end of each frame, float32 [B, n].
            pulses: Logarithms of the bands' gains, float32 [B, n, BANDS].
            noise: Logarithms of the bands' gains, float32 [B, n, BANDS].

        Returns:
            Sound float32 [B, samples], differentiable.
        """
        new = torch.cat([hertz[..., None], pulses, noise], dim=-1)
        known = torch.cat([new[:, :1] if self._waiting is None else self._waiting, new], dim=1)
        return self._render(known, known.shape[1] - 2)

    def finish(self) -> Tensor:
        """The sound of the last frame."""
        if self._waiting is None:
            return torch.empty(0, 0, device=self._device)
        known = torch.cat([self._waiting, self._waiting[:, -1:]], dim=1)
        return self._render(known, 1)

    def _render(self, known: Tensor, count: int) -> Tensor:
        """Sound of `count` frames; `known` are the frame before them, they themselves, and one after."""
        batch = len(known)
        self._waiting = known[:, -2:]
        if count <= 0:
            return known.new_zeros(batch, 0)
        if self._excited is None:
            self._phase = torch.zeros(batch, dtype=torch.float64, device=known.device)
            self._excited = self._excite(known[:, :2, 0], 0)
            self._tail = known.new_zeros(batch, 1, SIZE - FRAME)
        fresh = self._excite(known[:, 1 : count + 2, 0], self._start + 1)
        excitation = torch.cat([self._excited, fresh], dim=2)  # [B, 2, (count + 1) * FRAME]
        segments = excitation.unfold(2, 2 * FRAME, FRAME) * self._window
        gains = minimum_phase(known[:, 1 : count + 1, 1:].unflatten(-1, (2, -1)).transpose(1, 2) @ self._spread)
        filtered = torch.fft.irfft(torch.fft.rfft(segments, SIZE) * gains, SIZE).sum(1)  # [B, count, SIZE]
        length = (count - 1) * FRAME + SIZE
        sound = torch.nn.functional.fold(
            filtered.transpose(1, 2), (1, length), kernel_size=(1, SIZE), stride=(1, FRAME)
        )[:, 0, 0]
        assert self._tail is not None
        sound = sound + torch.nn.functional.pad(self._tail[:, 0], (0, length - SIZE + FRAME))
        self._tail = sound[:, None, count * FRAME :]
        self._excited = excitation[:, :, count * FRAME :]
        self._start += count
        return sound[:, : count * FRAME]

    def _excite(self, hertz: Tensor, start: int) -> Tensor:
        """Pulses and noise [B, 2, n * FRAME] of n frames from `start` on, given the pitch at their n + 1 ends."""
        assert self._phase is not None
        batch, frames = len(hertz), hertz.shape[1] - 1
        share = torch.arange(1, FRAME + 1, device=hertz.device) / FRAME
        pitch = (hertz[:, :-1, None] + (hertz[:, 1:] - hertz[:, :-1])[..., None] * share).flatten(1)
        turns = (pitch.double() / SAMPLING_RATE).cumsum(1) + self._phase[:, None]
        self._phase = turns[:, -1] % 1
        phase = ((turns + 0.5) % 1 - 0.5).float()
        harmonics = (_HIGHEST / pitch).floor()
        # The sum of 2 cos(2 pi k phase) over the harmonics k, in closed form.
        sine = torch.sin(math.pi * phase)
        near = sine.abs() < 1e-4
        closed = torch.sin((2 * harmonics + 1) * math.pi * phase) / torch.where(near, 1.0, sine) - 1
        train = torch.where(near, 2 * harmonics, closed) * (pitch / SAMPLING_RATE).sqrt()
        at = torch.arange(start * FRAME, (start + frames) * FRAME, device=hertz.device) % len(self._noise)
        return torch.stack([train, self._noise[at].expand(batch, -1)], dim=1)


def minimum_phase(log_gain: Tensor) -> Tensor:
    """The filter complex [..., SIZE // 2 + 1] whose gain is exp(`log_gain`) and whose answer comes soonest."""
    cepstrum = torch.fft.irfft(log_gain.to(torch.complex64), SIZE)
    fold = torch.zeros(SIZE, device=log_gain.device)
    fold[0], fold[SIZE // 2], fold[1 : SIZE // 2] = 1, 1, 2
    return torch.fft.rfft(cepstrum * fold).exp()
