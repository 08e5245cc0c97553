"""Codebook interleaving: when each codebook of a frame is written, apart from who writes it.

With delays d_k, codebook k of frame f stands in column f + d_k. F frames make F + max d_k columns; what no frame fills,
a triangle at each end, is filled with a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError


def steps(codebooks: int, channels: int = 1) -> list[int]:
    """Delays of one column per codebook: 0, 1, 2, ...; the channels of stereo lie side by side: 0, 0, 1, 1, ..."""
    return [k // channels for k in range(codebooks)]


def delay(codes: Tensor, delays: Sequence[int], before: int, after: int) -> Tensor:
    """Frames to columns.

    Args:
        codes: int64 [B, F, K].
        delays: K columns, 0 or more each.
        before: The constants of the two triangles.
        after: The constants of the two triangles.

    Returns:
        int64 [B, F + max delay, K].
    """
    frames, last = codes.shape[1], max(delays)
    check(delays, codes.shape[-1])
    columns = [
        torch.nn.functional.pad(torch.nn.functional.pad(book, (d, 0), value=before), (0, last - d), value=after)
        for d, book in zip(delays, codes.unbind(-1), strict=True)
    ]
    out = torch.stack(columns, dim=-1)
    assert out.shape[1] == frames + last
    return out


def undelay(columns: Tensor, delays: Sequence[int]) -> Tensor:
    """Columns [B, T, K] to the frames they are complete for, [B, T - max delay, K]; none where T is too small."""
    check(delays, columns.shape[-1])
    frames = max(columns.shape[1] - max(delays), 0)
    return torch.stack([book[:, d : d + frames] for d, book in zip(delays, columns.unbind(-1), strict=True)], dim=-1)


def triangles(columns: int, delays: Sequence[int], before: int | None, after: int | None) -> NDArray[np.int64]:
    """The constants of both triangles in so many columns, host int64 [T, K]; -1 in the cells that frames fill.

    Args:
        before: The constants; None leaves a triangle out.
        after: The constants; None leaves a triangle out.
    """
    t, d, last = np.arange(columns)[:, None], np.asarray(delays), max(delays)
    out = np.full((columns, len(delays)), -1, dtype=np.int64)
    if before is not None:
        out[t < d] = before
    if after is not None:
        out[t >= columns - last + d] = after
    return out


def check(delays: Sequence[int], codebooks: int) -> None:
    """Checks the delays.

    Raises:
        ArgumentError: When there is not one delay for each codebook.
    """
    if len(delays) != codebooks:
        raise ArgumentError(f"delays has {len(delays)} values for {codebooks} codebooks; give one for each")
