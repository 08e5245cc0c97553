"""Delay patterns: the column in which each codebook of a frame is written.

With delays d_k, codebook k of frame f is in column f + d_k. F frames take F + max d_k columns; the cells that no frame
fills, a triangle at each end, hold a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError


def linear_delays(codebooks: int, channels: int = 1) -> list[int]:
    """Delays of one more column per codebook: 0, 1, 2, ...; 0, 0, 1, 1, ... in stereo, whose channels alternate."""
    return [k // channels for k in range(codebooks)]


def delay(codes: Tensor, delays: Sequence[int], before: int, after: int) -> Tensor:
    """Frames to columns.

    Args:
        codes: Frames int64 [B, F, K].
        delays: K delays in columns, 0 or more.
        before: The constant of the triangle at the beginning.
        after: The constant of the triangle at the end.

    Returns:
        Columns int64 [B, F + max delay, K].

    Raises:
        ArgumentError: If there is not one delay per codebook.
    """
    frames, last = codes.shape[1], max(delays)
    check_delays(delays, codes.shape[-1])
    columns = [
        torch.nn.functional.pad(torch.nn.functional.pad(book, (d, 0), value=before), (0, last - d), value=after)
        for d, book in zip(delays, codes.unbind(-1), strict=True)
    ]
    out = torch.stack(columns, dim=-1)
    assert out.shape[1] == frames + last
    return out


def undelay(columns: Tensor, delays: Sequence[int]) -> Tensor:
    """Columns [B, T, K] to the frames that are complete in them, [B, max(T - max delay, 0), K].

    Raises:
        ArgumentError: If there is not one delay per codebook.
    """
    check_delays(delays, columns.shape[-1])
    frames = max(columns.shape[1] - max(delays), 0)
    return torch.stack([book[:, d : d + frames] for d, book in zip(delays, columns.unbind(-1), strict=True)], dim=-1)


def triangles(columns: int, delays: Sequence[int], before: int | None, after: int | None) -> NDArray[np.int64]:
    """The constants of both triangles, host int64 [columns, K]; -1 in the cells that frames fill.

    Args:
        columns: Number of columns.
        delays: K delays in columns, 0 or more.
        before: The constant of the triangle at the beginning; None leaves the triangle out.
        after: The constant of the triangle at the end; None leaves the triangle out.
    """
    t, d, last = np.arange(columns)[:, None], np.asarray(delays), max(delays)
    out = np.full((columns, len(delays)), -1, dtype=np.int64)
    if before is not None:
        out[t < d] = before
    if after is not None:
        out[t >= columns - last + d] = after
    return out


def check_delays(delays: Sequence[int], codebooks: int) -> None:
    """Checks that there is one delay per codebook.

    Raises:
        ArgumentError: If there is not.
    """
    if len(delays) != codebooks:
        raise ArgumentError(f"delays has {len(delays)} values for {codebooks} codebooks; give one for each")
