"""The likeliest tokens of a slot, in one read of its logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

CHUNK = 8192


def likeliest_reference(p: SoftmaxStats, count: int) -> tuple[Tensor, Tensor]:
    """`likeliest` in torch."""
    # A stable sort, so that of equally likely tokens the first one comes first.
    probs, tokens = p.dense().sort(dim=-1, descending=True, stable=True)
    return tokens[..., :count].contiguous(), probs[..., :count].contiguous()


@triton.jit
def seek_likeliest(
    source, slot, vocab, count,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The `count` likeliest tokens of a slot in any order, their probabilities, and their ranks; [KEPT] each.

    Of equally likely tokens the first ones. Numbers from `count` on have no meaning.
    """
    lanes, ranks = tl.arange(0, BLOCK), tl.arange(0, KEPT)
    best = tl.where(ranks < count, -1.0, float("inf"))
    known = ranks
    for begin in range(0, vocab, BLOCK):
        columns = begin + lanes
        p = probabilities(source, slot, columns, GUIDED, MASKED, UNIT)
        p = tl.where(columns < vocab, p, -2.0)
        most_likely, least = tl.max(p, 0), tl.min(best, 0)
        while most_likely > least:
            # The first of equally likely tokens takes the place of the least likely one, of these the last one.
            token = tl.min(tl.where(p == most_likely, columns, vocab), 0)
            latest = tl.max(tl.where(best == least, known, -1), 0)
            here = (best == least) & (known == latest)
            best, known = tl.where(here, most_likely, best), tl.where(here, token, known)
            p = tl.where(columns == token, -2.0, p)
            most_likely, least = tl.max(p, 0), tl.min(best, 0)
    inside = ranks < count
    best = tl.where(inside, best, -1.0)
    first = (best[None, :] > best[:, None]) | ((best[None, :] == best[:, None]) & (known[None, :] < known[:, None]))
    return known, best, tl.sum((first & inside[None, :]).to(tl.int32), 1)


@kernel
def _likeliest(
    cond, uncond, allowed, floats, ints, tokens, shares, slots, vocab, stride_row, stride_slot, stride_column, count,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    known, best, rank = seek_likeliest(source, slot, vocab, count, GUIDED, MASKED, UNIT, KEPT, BLOCK)
    there, inside = slot * count + rank, tl.arange(0, KEPT) < count
    tl.store(tokens + there, known.to(tl.int64), mask=inside)
    tl.store(shares + there, best, mask=inside)


@operator("mmspec::likeliest", mutates_args=())
def likeliest_op(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """`likeliest` with plain tensors; the first five are p."""
    if chosen(cond) == "torch":
        return likeliest_reference(SoftmaxStats(cond, uncond, allowed, floats, ints), count)
    tokens, probs = _outputs(ints, count)
    block = min(max(32, triton.next_power_of_2(cond.shape[-1])), CHUNK)
    with launchable(cond):
        _likeliest[(ints[..., 0].numel(),)](
            cond, uncond, allowed, floats, ints, tokens, probs, cond.shape[1], cond.shape[2], *cond.stride(), count,
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            KEPT=triton.next_power_of_2(count), BLOCK=block, num_warps=warps(block),
        )  # fmt: skip
    return tokens, probs


@likeliest_op.register_fake
def _(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    return _outputs(ints, count)


def _outputs(ints: Tensor, count: int) -> tuple[Tensor, Tensor]:
    shape = (*ints.shape[:-1], count)
    return ints.new_empty(shape, dtype=torch.int64), ints.new_empty(shape, dtype=torch.float32)


def likeliest(p: SoftmaxStats, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of each slot, int64 [B, W, count], and their probabilities, float32 [B, W, count].

    Args:
        p: The distributions, [B, W, V].
        count: Tokens of a slot, at most V; of equally likely ones the first.
    """
    found: tuple[Tensor, Tensor] = likeliest_op(*p.source(), count)
    return found
