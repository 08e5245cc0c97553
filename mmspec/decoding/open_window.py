"""The numbers of an open window, which the host and the device both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.mirrored import mirrored, part
from mmspec.sampling.rng import CounterRNG, WindowRNG

RECENT = 2  # tokens before a window that a draft model may not have read, see `BatchState.recent`


@dataclass(frozen=True)
class OpenWindow:
    """What a window that has begun has on the device; host arrays with their copies, see `mmspec.sampling.mirrored`.

    Attributes:
        before: Host int64 [B], the position of each row's last token.
        recent: Host int64 [B, RECENT], the positions of its last tokens.
        positions: Host int64 [B, W], those of the window.
        iterations: Host int64 [B, W], those of its random numbers.
    """

    before: NDArray[np.int64]
    recent: NDArray[np.int64]
    positions: NDArray[np.int64]
    iterations: NDArray[np.int64]

    def draws(self, rng: CounterRNG) -> WindowRNG:
        """The random numbers of the window, from those of the rows."""
        return rng.window(self.positions, self.iterations)

    def positions_after(self, length: NDArray[np.int64], depth: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `mmspec.decoding.batch.BatchState.positions_after`.

        Args:
            length: Host int64 [B], the number of tokens of each row.
            depth: Host int64 [B or 1, n].
        """
        positions, first, count = length[:, None] + depth, int(depth[0, 0]), depth.shape[1]
        if depth.max() >= self.positions.shape[1]:
            return positions
        if (depth == first + np.arange(count)).all():
            return part(self.positions, np.s_[:, first : first + count])
        there = getattr(self.positions, "mirror", None)
        if there is None or (depth != first).any():
            return positions
        return mirrored(positions, there[:, first : first + 1].expand(positions.shape))

    def following(self, numbers: Sequence[Tensor], length: NDArray[np.int64], width: int) -> OpenWindow:
        """The window after this one, whose numbers are on the device.

        Args:
            numbers: The numbers on the device, split by `split_numbers`.
            length: Host int64 [B], the largest number of tokens of each row that is possible then.
            width: W', of the next window.
        """
        spread = np.zeros((len(length), width), dtype=np.int64)
        arrays = [
            length - 1, length[:, None] - np.arange(RECENT, 0, -1), length[:, None] + np.arange(width),
            np.asarray(self.iterations)[:, :1] + 1 + spread,
        ]  # fmt: skip
        return OpenWindow(*map(mirrored, arrays, numbers))


def split_numbers(numbers: Tensor, rows: int, width: int) -> list[Tensor]:
    """The parts of what `mmspec.kernels.commit.begin_window` returns, in the shapes of the arrays of `OpenWindow`.

    Args:
        numbers: int64 [B (1 + RECENT + 2 W)].
        rows: B.
        width: W.
    """
    before, recent, *rest = numbers.split([rows, rows * RECENT, rows * width, rows * width])
    return [before, recent.view(rows, RECENT), *(one.view(rows, width) for one in rest)]
