"""Kernel 9: a verified window is written to the tokens of its rows, and the next window begins after it; or the window
is read again.

One program per sequence. The host learns how many tokens a row has gained only after it has waited for the device; what
the next call of the model needs, positions and iterations, is computed here, so that the call need not wait as well.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.specialization import kernel

RECENT = 2  # see `begin_window`


def begin_window_reference(
    storage: Tensor,
    rows: Tensor,
    tokens: Tensor,
    accepted: Tensor,
    positions: Tensor,
    iterations: Tensor,
    limits: Tensor,
    following: int,
) -> Tensor:
    """`begin_window` in torch."""
    storage[rows[:, None], positions] = tokens
    length = torch.minimum(positions[:, 0] + accepted + 1, limits)[:, None]
    recent = (length - RECENT).clamp(min=0) + torch.arange(RECENT, device=rows.device)
    next_positions = length + torch.arange(following, device=rows.device)
    next_iterations = iterations[:, :1].expand(-1, following) + 1
    parts = length - 1, recent.minimum(length - 1), next_positions, next_iterations
    return torch.cat([part.flatten() for part in parts])


@kernel
def _begin_window(
    storage, rows, tokens, accepted, positions, iterations, limits, out, width, cells, following, most, n,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    start = tl.load(positions + row * width)
    own = storage + (tl.load(rows + row) * most + start) * cells
    for at in range(0, width * cells, BLOCK):
        inside = at + lanes < width * cells
        x = tl.load(tokens + row * width * cells + at + lanes, mask=inside)
        tl.store(own + at + lanes, x, mask=inside)
    length = tl.minimum(start + tl.load(accepted + row) + 1, tl.load(limits + row))
    batch = n.to(tl.int64)
    tl.store(out + row, length - 1)
    first = tl.maximum(length - 2, 0)
    tl.store(out + batch + row * 2, first)
    tl.store(out + batch + row * 2 + 1, tl.minimum(first + 1, length - 1))
    found = out + 3 * batch + row * following + lanes
    inside = lanes < following
    tl.store(found, length + lanes, mask=inside)
    iteration = tl.load(iterations + row * width) + 1
    tl.store(found + batch * following, lanes * 0 + iteration, mask=inside)


@operator("mmspec::begin_window", mutates_args=("storage",))
def begin_window(
    storage: Tensor,
    rows: Tensor,
    tokens: Tensor,
    accepted: Tensor,
    positions: Tensor,
    iterations: Tensor,
    limits: Tensor,
    following: int,
) -> Tensor:
    """Writes a window, and gives the numbers of the one after it.

    Args:
        storage: int64 [rows, N], the tokens of all rows, contiguous; `tokens` are written to it at `positions`. With
            columns it has one more axis, and so have `tokens`.
        rows: int64 [B], the row of `storage` of each row.
        tokens: int64 [B, W], the verified window.
        accepted: int64 [B], its accepted drafts; one more token is kept.
        positions: int64 [B, W], those of the window.
        iterations: int64 [B, W], of its random numbers.
        limits: int64 [B], the number of tokens at which a row ends; a row that has ended stays there.
        following: W', the width of the next window.

    Returns:
        int64 [B (3 + 2 W')]: the position of each row's last token [B]; those of its last two tokens [B, 2], from 0 on;
        the positions [B, W'] and the iterations [B, W'] of the next window.
    """
    if chosen(storage) == "torch":
        return begin_window_reference(storage, rows, tokens, accepted, positions, iterations, limits, following)
    out = _outputs(positions, following)
    with launchable(storage):
        _begin_window[(len(positions),)](
            storage, rows.contiguous(), *(t.contiguous() for t in (tokens, accepted, positions, iterations, limits)),
            out, tokens.shape[1], tokens.shape[2:].numel(), following, storage.shape[1], len(positions),
            BLOCK=max(32, triton.next_power_of_2(max(tokens.shape[1], following))), num_warps=1,
        )  # fmt: skip
    return out


@begin_window.register_fake
def _(
    storage: Tensor, rows: Tensor, tokens: Tensor, accepted: Tensor, positions: Tensor, iterations: Tensor,
    limits: Tensor, following: int,
) -> Tensor:  # fmt: skip
    return _outputs(positions, following)


def reread_window_reference(
    last: Tensor, tokens: Tensor, coupled: Tensor, accepted: Tensor, positions: Tensor
) -> Tensor:
    """`reread_window` in torch."""
    slots = torch.arange(tokens.shape[1], device=tokens.device)
    new = torch.where(slots > accepted[:, None], coupled, tokens)[:, :-1]
    return torch.cat([last.clamp(min=0), new.clamp(min=0), positions[:, :1] - 1], dim=1)


@kernel
def _reread_window(last, tokens, coupled, accepted, positions, out, width, last_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width - 1
    kept = tl.load(tokens + row * width + lanes, mask=inside, other=0)
    new = tl.load(coupled + row * width + lanes, mask=inside, other=0)
    found = out + row * (width + 1)
    tl.store(found, tl.maximum(tl.load(last + row * last_row), 0))
    x = tl.where(lanes > tl.load(accepted + row), new, kept)
    tl.store(found + 1 + lanes, tl.maximum(x, 0), mask=inside)
    tl.store(found + width, tl.load(positions + row * width) - 1)


@operator("mmspec::reread_window", mutates_args=())
def reread_window(last: Tensor, tokens: Tensor, coupled: Tensor, accepted: Tensor, positions: Tensor) -> Tensor:
    """A verified window as a model reads it again, with the coupled tokens of its rejected part.

    Args:
        last: int64 [B, 1], the token before the window.
        tokens: int64 [B, W], the verified window.
        coupled: int64 [B, W], the tokens after a coupling, of which those after the resampled one are read.
        accepted: int64 [B], the accepted drafts.
        positions: int64 [B, W], those of the window.

    Returns:
        int64 [B, W + 1]: the W tokens that are read, -1 as 0; and the position of the first of them.
    """
    if chosen(tokens) == "torch":
        return reread_window_reference(last, tokens, coupled, accepted, positions)
    out = tokens.new_empty(len(tokens), tokens.shape[1] + 1)
    with launchable(tokens):
        _reread_window[(len(tokens),)](
            last, *(t.contiguous() for t in (tokens, coupled, accepted, positions)), out, tokens.shape[1],
            last.stride(0), BLOCK=max(32, triton.next_power_of_2(tokens.shape[1])), num_warps=1,
        )  # fmt: skip
    return out


@reread_window.register_fake
def _(last: Tensor, tokens: Tensor, coupled: Tensor, accepted: Tensor, positions: Tensor) -> Tensor:
    return tokens.new_empty(len(tokens), tokens.shape[1] + 1)


def _outputs(positions: Tensor, following: int) -> Tensor:
    return positions.new_empty(len(positions) * (1 + RECENT + 2 * following))
