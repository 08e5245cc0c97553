"""Images that are not complete: -1 (or NaN, for latents) stands for a token that has not been generated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.arguments import shown
from mmspec.errors import ArgumentError

MISSING = -1


def complete(tokens: Tensor | Sequence[Tensor], length: int, codes: int) -> Tensor:
    """Codes of whole images, int64 [B, length], with -1 where they are missing.

    Args:
        tokens: int64 [B, n], or one tensor int64 [n_row] per row; each has at most `length` codes.
        length: Codes of an image.
        codes: Number of codes; ids are 0 to codes - 1.

    Raises:
        ArgumentError: If the shape, the dtype or a code is not allowed.
    """
    try:
        rows = list(tokens)
    except TypeError:
        raise ArgumentError(f"tokens={shown(tokens)} is not allowed; give codes int64 [B, n]") from None
    if not rows or not all(isinstance(row, Tensor) and row.ndim == 1 for row in rows):
        raise ArgumentError("tokens has no rows, or rows with more than one axis; give codes int64 [B, n]")
    if any(row.is_floating_point() or row.is_complex() or row.dtype == torch.bool for row in rows):
        raise ArgumentError(f"tokens has dtype {rows[0].dtype}; give codes int64 [B, n]")
    if (longest := max(len(row) for row in rows)) > length:
        raise ArgumentError(f"tokens has rows of {longest} codes; an image of this size has {length}")
    result = torch.full((len(rows), length), MISSING, device=rows[0].device)
    for target, row in zip(result, rows, strict=True):
        target[: len(row)] = row
    if bool(((result < MISSING) | (result >= codes)).any()):
        wrong = result[(result < MISSING) | (result >= codes)][0].item()
        raise ArgumentError(f"tokens has {wrong}, which is not allowed; codes are 0 to {codes - 1}, and -1 if missing")
    return result


def complete_latents(rows: Sequence[Tensor], length: int, dim: int) -> Tensor:
    """Latents of whole images, float32 [B, length, D], with NaN where they are missing at the end.

    Args:
        rows: [n_row, D] per row; empty ones may be of any shape.
        length: Latents of an image.
        dim: D.
    """
    result = torch.full((len(rows), length, dim), torch.nan, device=rows[0].device)
    for target, row in zip(result, rows, strict=True):
        target[: len(row)] = row.reshape(-1, dim)
    return result


def grey_where_missing(images: Tensor, latents: Tensor, grid: tuple[int, int]) -> Tensor:
    """Images [B, 3, H, W] in -1..1, grey where their latents [B, N, D] are NaN.

    Args:
        latents: In raster order.
        grid: Rows and columns of latents.
    """
    known = ~latents.isnan().any(-1).to(images.device)
    if bool(known.all()):
        return images
    return images.masked_fill(~visible(known, grid, (images.shape[2], images.shape[3]))[:, None], 0)


def check_latents(tokens: Tensor, places: int, dim: int) -> None:
    """Checks that tokens are latents of whole images, floats [B, places, dim].

    Raises:
        ArgumentError: If they are not.
    """
    if (
        not isinstance(tokens, Tensor)
        or tokens.ndim != 3
        or tokens.shape[1:] != (places, dim)
        or not tokens.is_floating_point()
    ):
        found = f"{tokens.dtype} {list(tokens.shape)}" if isinstance(tokens, Tensor) else shown(tokens)
        raise ArgumentError(f"tokens is {found}; it must be latents [B, {places}, {dim}], floats")


def visible(known: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The pixels of known tokens, bool [B, H, W].

    Args:
        known: bool [B, h * w], in raster order.
        grid: Rows and columns of tokens, (h, w).
        size: Height and width of the image, (H, W), multiples of the grid's.
    """
    tall, wide = size[0] // grid[0], size[1] // grid[1]
    return known.unflatten(1, grid).repeat_interleave(tall, dim=1).repeat_interleave(wide, dim=2)
