"""The inputs of a window that are numbers, which the host and the device both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rng import CounterRNG, WindowRNG

RECENT = 2  # tokens before a window that a draft model may not have read, see `BatchState.recent`


@dataclass(frozen=True)
class WindowInputs:
    """What a window that has begun has on the device.

    Attributes:
        before: [B], the position of each row's last token.
        recent: [B, RECENT], the positions of its last tokens.
        positions: [B, W], those of the window.
        iterations: [B, W], those of its random numbers.
    """

    before: Numbers
    recent: Numbers
    positions: Numbers
    iterations: Numbers

    def draws(self, rng: CounterRNG) -> WindowRNG:
        """The random numbers of the window, from those of the rows."""
        return WindowRNG(rng, self.positions, self.iterations)

    def positions_after(self, length: NDArray[np.int64], depth: NDArray[np.int64]) -> Numbers:
        """Positions [B, n] at depths after the tokens so far, from those on the device where they are there.

        Args:
            length: Host int64 [B], the number of tokens of each row.
            depth: Host int64 [B or 1, n].
        """
        positions, first, count = length[:, None] + depth, int(depth[0, 0]), depth.shape[1]
        if depth.max() >= self.positions.host.shape[1]:
            return Numbers(positions)
        if (depth == first + np.arange(count)).all():
            return self.positions.part(np.s_[:, first : first + count])
        there = self.positions.there
        if there is None or (depth != first).any():
            return Numbers(positions)
        return Numbers(positions, there[:, first : first + 1].expand(positions.shape))

    def next(self, numbers: Sequence[Tensor], length: NDArray[np.int64], width: int) -> WindowInputs:
        """The window after this one, whose numbers are on the device.

        Args:
            numbers: The numbers on the device, split by `split_numbers`.
            length: Host int64 [B], the largest number of tokens of each row that is possible then.
            width: W', of the next window.
        """
        spread = np.zeros((len(length), width), dtype=np.int64)
        arrays = [
            length - 1, length[:, None] - np.arange(RECENT, 0, -1), length[:, None] + np.arange(width),
            self.iterations.host[:, :1] + 1 + spread,
        ]  # fmt: skip
        return WindowInputs(*map(Numbers, arrays, numbers))


def split_numbers(numbers: Tensor, rows: int, width: int) -> list[Tensor]:
    """The parts of what `mmspec.kernels.commit.begin_window` returns, in the shapes of the arrays of `WindowInputs`.

    Args:
        numbers: int64 [B (1 + RECENT + 2 W)].
        rows: B.
        width: W.
    """
    before, recent, *rest = numbers.split([rows, rows * RECENT, rows * width, rows * width])
    return [before, recent.view(rows, RECENT), *(one.view(rows, width) for one in rest)]
