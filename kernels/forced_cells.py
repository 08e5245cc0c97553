"""Kernel 24: the cells of columns that are forced become point masses, in the distributions and samples of a window.

Other kernels read the same table of forced cells, by position, so that none of them needs the cells of a window.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.softmax_stats import BEST, POINT
from mmspec.kernels.specialization import kernel

# int64 [N, K] or [B, N, K], contiguous: the id that a cell is forced to, -1 for none. Positions past the end count as
# the last.
ForcedTable = Tensor


def forced_cells_reference(forced: ForcedTable | None, positions: Tensor, cells: int) -> Tensor:
    """The forced cells of positions int64 [B, W], int64 [B, W, K]."""
    if forced is None:
        return positions.new_full((*positions.shape, cells), -1)
    inside = positions.clamp(max=forced.shape[-2] - 1)
    if forced.ndim == 2:
        return forced[inside]
    return forced.gather(1, inside[..., None].expand(-1, -1, cells))


def forced_strides(forced: ForcedTable | None) -> tuple[int, int]:
    """Numbers from a row of a table to the next one, and the last position."""
    if forced is None:
        return 0, 0
    return forced.stride(0) if forced.ndim == 3 else 0, forced.shape[-2] - 1


@triton.jit
def forced_cell(table, row, position, cells, k, FORCED: tl.constexpr):
    """The id that cell `k` is forced to, int64; -1 for none. A `table` is (forced, forced_row, forced_last)."""
    if FORCED:
        return tl.load(table[0] + row * table[1] + tl.minimum(position, table[2]) * cells + k)
    return row * 0 - 1


def force_cells_reference(
    forced: Tensor, positions: Tensor, floats: Tensor, ints: Tensor, tokens: Tensor, vocab: int
) -> None:
    """`force_cells` in torch."""
    must = forced_cells_reference(forced, positions, forced.shape[-1])
    at = must >= 0
    point = torch.zeros_like(ints)
    point[..., POINT] = point[..., BEST] = must.clamp(max=vocab - 1)
    floats.copy_(torch.where(at[..., None], 1.0, floats))
    ints.copy_(torch.where(at[..., None], point, ints))
    tokens.copy_(torch.where(at, must, tokens))


@kernel
def _force_cells(
    forced, positions, floats, ints, tokens, width, cells, total, vocab, forced_row, forced_last,
    POINT: tl.constexpr, BEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    slot, k = at // cells, at % cells
    position = tl.load(positions + slot, mask=inside, other=0)
    place = slot // width * forced_row + tl.minimum(position, forced_last) * cells + k
    must = tl.load(forced + place, mask=inside, other=-1)
    here = must >= 0
    entry = tl.minimum(must, vocab - 1).to(tl.int32)
    for number in tl.static_range(5):
        tl.store(floats + at * 5 + number, 1.0, mask=here)
        point = entry if number == 3 or number == 4 else entry * 0
        tl.store(ints + at * 5 + number, point, mask=here)
    tl.store(tokens + at, must, mask=here)


@operator("mmspec::force_cells", mutates_args=("floats", "ints", "tokens"))
def force_cells(forced: Tensor, positions: Tensor, floats: Tensor, ints: Tensor, tokens: Tensor, vocab: int) -> None:
    """Makes the distributions of forced cells point masses, and their samples the forced ids.

    Args:
        forced: A `ForcedTable`.
        positions: int64 [B, W].
        floats: float32 [B, W, K, 5], of the distributions; see `mmspec.kernels.softmax_stats`. Contiguous.
        ints: int32 [B, W, K, 5], likewise. An id outside the vocabulary counts as the last entry.
        tokens: int64 [B, W, K], samples of them, contiguous.
        vocab: V.
    """
    if chosen(floats) == "torch":
        return force_cells_reference(forced, positions, floats, ints, tokens, vocab)
    total, block = tokens.numel(), 256
    with launchable(floats):
        _force_cells[(triton.cdiv(total, block),)](
            forced, positions.contiguous(), floats, ints, tokens, positions.shape[1], forced.shape[-1], total, vocab,
            *forced_strides(forced), POINT=POINT, BEST=BEST, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return None


@force_cells.register_fake
def _(*given: Tensor | int) -> None:
    return None
