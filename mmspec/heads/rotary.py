"""Rotary position embeddings: 2-D for tokens on a grid, 1-D for sequences."""

from __future__ import annotations

import torch
from torch import Tensor

# Of settings that no tensor confirms; the table is computed.
MAX_GRID, MAX_POSITIONS = 1024, 2**22


def grid_table(grid: int, slots: int, head_dim: int, base: float, before: str) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the 2-D rotary embedding, each float32 [slots + grid**2, head_dim].

    The first half of the (interleaved) pairs is rotated by the row, the second half by the column.

    Args:
        grid: Tokens per image side.
        slots: Number of prompt slots before the grid.
        head_dim: Width of an attention head.
        base: Base of the frequencies.
        before: Rotation of the prompt slots. "zero" leaves their table at zero, as published LlamaGen does, so that
            their queries and keys vanish; "identity" does not rotate them.
    """
    half = head_dim // 2
    freqs = base ** -(torch.arange(0, half, 2, dtype=torch.float32)[: half // 2] / half)
    angles = torch.outer(torch.arange(grid, dtype=torch.float32), freqs)
    rows = angles[:, None].expand(-1, grid, -1)
    columns = angles[None].expand(grid, -1, -1)
    angle = torch.cat([rows, columns], dim=-1).flatten(0, 1).repeat_interleave(2, dim=-1)
    sign = torch.tensor([-1.0, 1.0]).repeat(head_dim // 2)
    cos = torch.cat([torch.full((slots, head_dim), float(before == "identity")), angle.cos()])
    sin = torch.cat([torch.zeros(slots, head_dim), angle.sin() * sign])
    return cos, sin


def row_table(slots: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the 1-D rotary embedding, each float32 [slots, head_dim].

    A pair consists of one value of each half of the head, as in Llama.
    """
    freqs = base ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(slots, dtype=torch.float32), freqs)
    return torch.cat([angle.cos(), angle.cos()], dim=-1), torch.cat([-angle.sin(), angle.sin()], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the interleaved pairs of `x` [..., head_dim] by rows of `grid_table`."""
    swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * cos, swapped, sin)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs of values of both halves of `x` [..., head_dim] by rows of `row_table`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def rotary_sizes(grid_size: int | None, prefix: int, positions: int) -> list[tuple[str, object, int, int]]:
    """What `mmspec.heads.layers.check_sizes` checks of the settings of a `Rotary`."""
    return [
        ("grid_size", 1 if grid_size is None else grid_size, 1, MAX_GRID),
        ("prefix", prefix, 0, MAX_POSITIONS),
        ("max_position_embeddings", positions, 1, MAX_POSITIONS),
    ]


class Rotary:
    """The rotary embedding of a head; its table is computed once per device.

    Args:
        head_dim: Width of an attention head.
        theta: Base of the frequencies.
        grid_size: Tokens per image side, for a 2-D embedding; None for a 1-D one.
        prefix: Number of prompt slots before the grid.
        positions: Number of slots of a 1-D embedding.
        before: Rotation of the prompt slots, see `grid_table`.
    """

    def __init__(
        self, head_dim: int, theta: float, grid_size: int | None, prefix: int, positions: int, before: str
    ) -> None:
        self._head_dim, self._theta, self._grid_size = head_dim, theta, grid_size
        self._prefix, self._positions, self._before = prefix, positions, before
        self._rotate = rotate_halves if grid_size is None else rotate
        self._table: tuple[Tensor, Tensor] | None = None

    def at(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [R, 1, W, head_dim] of slots int64 [R, W]; slots past the end use the last one."""
        if self._table is None or self._table[0].device != slots.device:
            # The table is reused by later calls with gradients, so it must not be an inference tensor.
            with torch.inference_mode(False):
                if self._grid_size is None:
                    cos, sin = row_table(self._positions, self._head_dim, self._theta)
                else:
                    cos, sin = grid_table(self._grid_size, self._prefix, self._head_dim, self._theta, self._before)
                self._table = cos.to(slots.device), sin.to(slots.device)
        cos, sin = self._table
        slots = slots.clamp(max=len(cos) - 1)
        return cos[slots][:, None], sin[slots][:, None]

    def rotate(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Rotates queries or keys `x` [R, heads, W, head_dim] by `angles` from `at`."""
        return self._rotate(x, *angles)
