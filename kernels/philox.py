"""Philox4x32-10 (Salmon et al. 2011) on a device: the numbers of `mmspec.sampling.rng`, bit for bit.

A block of four 32-bit words belongs to the key `seed` (two words) and the counter (position, iteration, block, index).
Block 0 holds the uniform numbers of a window, one word per stream; block 1 holds Gumbel noise, word `v % 4` of index
`v // 4` belonging to token `v`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.specialization import kernel

UNIFORMS, GUMBELS = 0, 1

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def block(seeds: Tensor, counter: tuple[Tensor | int, ...]) -> list[Tensor]:
    """The reference: the four words of every block, int64 below 2**32, in the broadcast shape of the arguments.

    Args:
        seeds: int64, taken modulo 2**64.
        counter: Four words, integers below 2**32.
    """
    words = [torch.as_tensor(word, device=seeds.device) + torch.zeros_like(seeds) for word in counter]
    keys = [seeds & _LOW, (seeds >> 32) & _LOW]
    for _ in range(10):
        # The product of two words wraps in int64, which keeps all of its 64 bits.
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            ((second >> 32) & _LOW) ^ words[1] ^ keys[0],
            second & _LOW,
            ((first >> 32) & _LOW) ^ words[3] ^ keys[1],
            first & _LOW,
        ]
        keys = [(key + step) & _LOW for key, step in zip(keys, _WEYL, strict=True)]
    return words


def uniforms_reference(
    seeds: Tensor, positions: Tensor, iterations: Tensor, first: int, count: int, indices: Tensor | None = None
) -> Tensor:
    """`uniforms` in torch."""
    index = torch.arange(first, first + count, device=seeds.device)
    index = index if indices is None else index + indices[..., None]
    shape = (*positions.shape, count)
    words = block(seeds[:, None, None].expand(shape), (positions[..., None], iterations[..., None], UNIFORMS, index))
    return torch.stack([(word >> 8).float() * 2.0**-24 for word in words])


def gumbel_reference(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise float32 [..., vocab_size] for seeds and positions int64 [...]."""
    index = torch.arange(-(-vocab_size // 4), device=seeds.device)
    shape = (*torch.broadcast_shapes(seeds.shape, positions.shape), len(index))
    words = block(seeds[..., None].expand(shape), (positions[..., None], 0, GUMBELS, index))
    bits = torch.stack(words, dim=-1).flatten(-2)[..., :vocab_size]
    return (((bits >> 9).float() + 0.5) * 2.0**-23).log_().neg_().log_().neg_()


@triton.jit
def words(seed, position, iteration, kind, index):
    """The four words of a block, as in `block`, uint32."""
    zero, one = position.to(tl.uint32), iteration.to(tl.uint32)
    two, three = kind.to(tl.uint32), index.to(tl.uint32)
    low, high = (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox_impl(zero, one, two, three, low, high)


@triton.jit
def gumbels(seed, position, columns):
    """Standard Gumbel noise of the tokens `columns`."""
    zeros = columns * 0
    zero, one, two, three = words(seed + zeros, position + zeros, zeros, zeros + 1, columns // 4)
    which = columns % 4
    bits = tl.where(which < 2, tl.where(which == 0, zero, one), tl.where(which == 2, two, three))
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(uniform))


@kernel
def _uniforms(
    out, seeds, positions, iterations, indices, first, count, width, slots, positions_row, iterations_row, indices_row,
    INDEXED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = slots.to(tl.int64) * count
    inside = at < total
    slot = at // count
    row, column = slot // width, slot % width
    seed = tl.load(seeds + row, mask=inside, other=0)
    position = tl.load(positions + row * positions_row + column, mask=inside, other=0)
    iteration = tl.load(iterations + row * iterations_row + column, mask=inside, other=0)
    index = first + at % count
    if INDEXED:
        index += tl.load(indices + row * indices_row + column, mask=inside, other=0)
    zero, one, two, three = words(seed, position, iteration, index * 0, index)
    tl.store(out + at, (zero >> 8).to(tl.float32) * 5.9604644775390625e-08, mask=inside)
    tl.store(out + total + at, (one >> 8).to(tl.float32) * 5.9604644775390625e-08, mask=inside)
    tl.store(out + 2 * total + at, (two >> 8).to(tl.float32) * 5.9604644775390625e-08, mask=inside)
    tl.store(out + 3 * total + at, (three >> 8).to(tl.float32) * 5.9604644775390625e-08, mask=inside)


@operator("mmspec::uniforms", mutates_args=())
def uniforms(
    seeds: Tensor, positions: Tensor, iterations: Tensor, first: int, count: int, indices: Tensor | None = None
) -> Tensor:
    """Uniform random numbers in [0, 1), multiples of 2**-24, one slice per stream of `mmspec.sampling.rng`.

    Args:
        seeds: int64 [B], the seed of each row.
        positions: int64 [B, W], from 0 to 2**32 - 1.
        iterations: int64 [B, W], from 0 to 2**32 - 1.
        first: The index of the first number of each position.
        count: Numbers per position.
        indices: int64 [B or 1, W], added to `first`, for positions that occur several times; None for 0.

    Returns:
        float32 [4, B, W, count].
    """
    if chosen(positions) == "torch":
        return uniforms_reference(seeds, positions, iterations, first, count, indices)
    slots, width = positions.numel(), positions.shape[1]
    # Rows may lie at any distance, as those of one upload do.
    positions, iterations = (t if width == 1 or t.stride(1) == 1 else t.contiguous() for t in (positions, iterations))
    out = torch.empty((4, *positions.shape, count), dtype=torch.float32, device=positions.device)
    with launchable(out):
        _uniforms[(triton.cdiv(slots * count, 256),)](
            out,
            seeds,
            positions,
            iterations,
            None if indices is None else indices.contiguous(),
            first,
            count,
            width,
            slots,
            positions.stride(0),
            iterations.stride(0),
            0 if indices is None or len(indices) == 1 else width,
            INDEXED=indices is not None,
            BLOCK=256,
        )
    return out


@uniforms.register_fake
def _(
    seeds: Tensor, positions: Tensor, iterations: Tensor, first: int, count: int, indices: Tensor | None = None
) -> Tensor:
    return torch.empty((4, *positions.shape, count), dtype=torch.float32, device=positions.device)
