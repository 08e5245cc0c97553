"""Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011) keyed by row seed, position, stream and iteration.

No number comes from the state of a running generator, so a row's numbers depend neither on its batch nor on the order
in which rows are processed. The integer arithmetic is NumPy's: a window needs a few dozen numbers, and NumPy is fastest
on small arrays. Where the Triton kernels run, one of them makes the same numbers on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.kernels.backend import choose
from mmspec.sampling.numbers import Numbers, copied, on_device

# Streams: the word of a block that a purpose uses. Two purposes never share a number.
ACCEPT, RESAMPLE, DRAFT, INIT = range(4)
_GUMBEL_BLOCK, _LATENT_BLOCK, _LAST_STEP_BLOCK = 1, 2, 3

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_EXTRA = np.uint64(8)  # float32 holds 24 bits
_EXTRA_GUMBEL = np.uint64(9)
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)

Words = NDArray[np.uint64]


def round_keys(seeds: NDArray[np.int64]) -> Words:
    """The key words of all ten rounds, uint64 [10, 2, rows], from seeds int64 [rows]."""
    words = seeds.view(np.uint64)
    key = np.stack([words & _LOW, words >> _HALF])
    return np.stack([(key + np.uint64(i) * _WEYL[:, None]) & _LOW for i in range(10)])


def philox(even: Words, odd: Words, keys: Words) -> tuple[Words, Words]:
    """One Philox4x32-10 block per element.

    Args:
        even: Counter words 0 and 2, uint64 [2, rows, ...] of values below 2**32.
        odd: Counter words 1 and 3, likewise.
        keys: The result of `round_keys`, with trailing axes to broadcast.

    Returns:
        Words 0 and 2, and words 1 and 3, of the blocks, each [2, rows, ...].
    """
    multipliers = _MULTIPLIERS.reshape(2, *(1,) * (even.ndim - 1))
    even, odd, product = even.copy(), odd.copy(), np.empty_like(even)
    for key in keys:  # in place: new arrays of this size take longer than the arithmetic
        np.multiply(even, multipliers, out=product)
        # The words of one half go into the other: this is the permutation of a round.
        np.right_shift(product[::-1], _HALF, out=even)
        even ^= odd
        even ^= key
        np.bitwise_and(product[::-1], _LOW, out=odd)
    return even, odd


class CounterRNG:
    """The random numbers of a batch of rows.

    Args:
        seeds: One integer per row, taken modulo 2**64.
        device: The device of the tensors of random numbers.

    Attributes:
        seeds: The seeds of the rows, host int64 [B], as two's complement.
        has_kernel: Whether a kernel makes the numbers; on a CPU NumPy is faster.
    """

    ROWS = ("seeds",)

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds = np.array([int(s) % 2**64 for s in seeds], dtype=np.uint64).view(np.int64)
        self._device = device
        self.has_kernel = device.type != "cpu" and choose(device.type) == "triton"
        self.after_move()

    def after_move(self) -> None:
        self._keys = round_keys(self.seeds)
        self._device_seeds: Tensor | None = None

    def of_rows(self, row_ids: NDArray[np.int64]) -> CounterRNG:
        """The random numbers of some rows, which may repeat."""
        found = copy(self)
        found.seeds, found._keys, found._device_seeds = self.seeds[row_ids], self._keys[:, :, row_ids], None
        return found

    def device_seeds(self) -> Tensor:
        """The seeds of the rows on the device, int64 [B]."""
        if self._device_seeds is None:
            self._device_seeds = on_device(self.seeds, self._device)
        return self._device_seeds

    def uniforms(
        self, positions: NDArray[np.int64], iteration: NDArray[np.int64] | int, index: NDArray[np.int64] | int = 0
    ) -> list[Tensor]:
        """Uniform random numbers in [0, 1), multiples of 2**-24, by stream: ACCEPT, RESAMPLE, DRAFT, INIT.

        Args:
            positions: int64 [B, W], the position of each number.
            iteration: The iteration of the decoding loop; numbers of different iterations are independent.
            index: int64 [B or 1, W], distinguishes the numbers of one position if it needs several.

        Returns:
            One float32 [B, W] tensor per stream.
        """
        (zero, two), (one, three) = self._blocks(positions, iteration, 0, index)
        scaled = ((np.stack([zero, one, two, three]) >> _EXTRA) * 2.0**-24).astype(np.float32)
        return list(copied(torch.from_numpy(scaled), self._device))

    def gumbel(self, positions: NDArray[np.int64], vocab_size: int) -> Tensor:
        """Standard Gumbel noise float32 [B, W, vocab_size], fixed per row and position, the same in all iterations."""
        groups = np.arange(-(-vocab_size // 4))
        (zero, two), (one, three) = self._blocks(positions[..., None], 0, _GUMBEL_BLOCK, groups)
        bits = np.stack([zero, one, two, three], axis=-1).reshape(*positions.shape, -1)[..., :vocab_size]
        # 23 bits, so that adding a half stays exact: a number that rounds to 1 would make the noise infinite.
        uniform = torch.from_numpy((((bits >> _EXTRA_GUMBEL) + 0.5) * 2.0**-23).astype(np.float32))
        return uniform.to(self._device).log_().neg_().log_().neg_()

    def normals(self, positions: NDArray[np.int64], count: int, last: bool = False) -> Tensor:
        """Standard normal noise float32 [B, W, count], fixed per row and position, the same in all iterations.

        Args:
            positions: int64 [B, W].
            count: Numbers per position.
            last: False for the noise that a latent is generated from, True for the independent noise of the head's
                last step.
        """
        block = _LAST_STEP_BLOCK if last else _LATENT_BLOCK
        (zero, two), (one, three) = self._blocks(positions[..., None], 0, block, np.arange(-(-count // 4)))
        bits = np.stack([zero, two, one, three], axis=-1)
        uniform = torch.from_numpy((((bits >> _EXTRA) + 0.5) * 2.0**-24).astype(np.float32)).to(self._device)
        radius, angle = uniform[..., :2].log().mul(-2).sqrt(), uniform[..., 2:] * (2 * torch.pi)
        pairs = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)  # Box and Muller
        return pairs.flatten(2)[..., :count]

    def by_kernel(
        self,
        positions: Numbers,
        iteration: Numbers,
        first: int,
        count: int,
        indices: Tensor | None = None,
    ) -> Tensor:
        """Numbers `first` to `first + count - 1` of all streams, float32 [4, B, W, count], where `has_kernel`.

        Args:
            positions: [B, W].
            iteration: [B, W].
            first: The first number.
            count: Numbers per position.
            indices: int64 [B or 1, W] on the device, added to `first`; None for 0.
        """
        from mmspec.kernels.philox import uniforms  # Triton may be missing

        there = positions.on(self._device), iteration.on(self._device)
        return uniforms(self.device_seeds(), *there, first, count, indices)

    def window(self, positions: NDArray[np.int64], iteration: NDArray[np.int64] | int) -> WindowRNG:
        """The random numbers of a window at positions host int64 [B, W]; see `uniforms`."""
        return WindowRNG(self, Numbers(positions), Numbers(np.broadcast_to(iteration, positions.shape)))

    def _blocks(
        self,
        positions: NDArray[np.int64],
        iteration: NDArray[np.int64] | int,
        block: int,
        index: NDArray[np.int64] | int,
    ) -> tuple[Words, Words]:
        """The blocks of counters (position, iteration, block, index)."""
        shape = np.broadcast_shapes(positions.shape, np.shape(index))
        even, odd = np.empty((2, *shape), dtype=np.uint64), np.empty((2, *shape), dtype=np.uint64)
        even[0], odd[0], even[1], odd[1] = positions, iteration, block, index
        return philox(even, odd, self._keys.reshape(10, 2, -1, *(1,) * (len(shape) - 1)))


class WindowRNG:
    """The random numbers of a window: `rng[STREAM]` is float32 [B, W] in [0, 1), one number for each position.

    A token of several codebooks takes its numbers from `uniforms`.

    Args:
        source: The random numbers of the rows.
        positions: [B, W].
        iteration: [B, W].
    """

    def __init__(self, source: CounterRNG, positions: Numbers, iteration: Numbers) -> None:
        self.source, self.positions, self.iteration = source, positions, iteration
        self._streams: list[Tensor] | None = None

    def __getitem__(self, stream: int) -> Tensor:
        return self._all()[stream]

    def _all(self) -> list[Tensor]:
        if self._streams is None:
            if self.source.has_kernel:
                self._streams = list(self.source.by_kernel(self.positions, self.iteration, 0, 1)[..., 0])
            else:
                self._streams = self.source.uniforms(self.positions.host, self.iteration.host)
        return self._streams

    def uniforms(self, stream: int, first: int, count: int) -> Tensor:
        """Numbers `first` to `first + count - 1` of each position, float32 [B, W, count]; number 0 is `rng[stream]`."""
        if self.source.has_kernel:
            return self.source.by_kernel(self.positions, self.iteration, first, count)[stream]
        positions, iteration = self.positions.host[..., None], self.iteration.host[..., None]
        return self.source.uniforms(positions, iteration, np.arange(first, first + count))[stream]

    def slot(self, n: int) -> WindowRNG:
        """The numbers of the n-th position alone."""
        here = np.s_[:, n : n + 1]
        one = WindowRNG(self.source, self.positions.part(here), self.iteration.part(here))
        one._streams = [stream[:, n : n + 1] for stream in self._all()]
        return one

    def at(self, row_ids: NDArray[np.int64], slots: NDArray[np.int64]) -> WindowRNG:
        """The numbers of one slot each of some rows (host int64 [R], may repeat), as R rows of one position."""
        positions, iteration = (each.host[row_ids, slots][:, None] for each in (self.positions, self.iteration))
        return self.source.of_rows(row_ids).window(positions, iteration)
