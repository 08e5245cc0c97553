"""Kernel 27: logits of columns whose first codebook tells the end, with guidance that chooses codes, as in Dia.

One program per cell. The `top_k` codes of `cond + scale * (cond - uncond)` are possible, with the logits `cond`. The
first codebook ends if and only if the end token has the highest logit; the others end as `column_rules.py` forces them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.specialization import kernel
from mmspec.kernels.thresholds import key_of


def end_channel_logits_reference(
    cond: Tensor, uncond: Tensor | None, scale: float, top_k: int, end: int, must: Tensor, at: Tensor, latest: int,
    flags: Tensor,
) -> Tensor:  # fmt: skip
    """`end_channel_logits` in torch; of equal logits the first ones are among the `top_k`."""
    z = cond.float()
    code = torch.arange(z.shape[-1], device=z.device)
    if uncond is not None:
        guided = z + (z - uncond.float()) * scale
        if top_k:
            order = guided.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]
            z = torch.full_like(z, -torch.inf).scatter(-1, order, z.gather(-1, order))
        else:
            z = guided
    z = z.masked_fill(code > end, -torch.inf)
    z[:, :, 1:, end] = -torch.inf
    first = z[:, :, 0]
    is_end = (first.argmax(-1) == end) & ~first.isnan().any(-1)
    first = first.masked_fill(torch.where(is_end[..., None], code != end, code == end), -torch.inf)
    z = torch.cat([first[:, :, None], z[:, :, 1:]], dim=2)
    slot = latest - 1 - at
    for row in range(len(z)):
        if 0 <= int(slot[row]) < z.shape[1]:
            flags[row] = is_end[row, int(slot[row])]
    only = torch.zeros_like(z).masked_fill_(code != must[..., None], -torch.inf)
    return torch.where(must[..., None] < 0, z, only)


@kernel
def _end_channel_logits(
    cond, uncond, must, starts, flags, out, scale, top_k, end, latest, width, cells, vocab,
    stride_row, stride_slot, stride_cell,
    GUIDED: tl.constexpr, CUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    slot, k = at // cells, at % cells
    row, i = slot // width, slot % width
    code = tl.arange(0, BLOCK)
    place = row * stride_row + i * stride_slot + k * stride_cell + code
    z = tl.load(cond + place, mask=code < vocab, other=float("-inf")).to(tl.float32)
    if GUIDED:
        free = tl.load(uncond + place, mask=code < vocab, other=0.0).to(tl.float32)
        guided = z + (z - free) * scale
        if CUT:
            # The key of the last one, bit by bit; of equal ones the first are kept.
            key = tl.where(code < vocab, key_of(guided).to(tl.int64) + 2147483648, -1)
            least = tl.zeros((), tl.int64)
            step = tl.full((), 2147483648, tl.int64)
            for _ in range(0, 32):
                more = least + step
                least = tl.where(tl.sum((key >= more).to(tl.int32), 0) >= top_k, more, least)
                step = step // 2
            above = tl.sum((key > least).to(tl.int32), 0)
            equal = (key == least).to(tl.int32)
            kept = (key > least) | ((equal > 0) & (tl.cumsum(equal, 0) <= top_k - above))
            z = tl.where(kept, z, float("-inf"))
        else:
            z = guided
    z = tl.where((code > end) | ((code == end) & (k > 0)), float("-inf"), z)
    if k == 0:
        of_end = tl.max(tl.where(code == end, z, float("-inf")), 0)
        others = tl.max(tl.where(code == end, float("-inf"), z), 0)
        # The end comes last: of equal logits, the first one is the highest.
        is_end = (of_end > others) & (tl.sum((z != z).to(tl.int32), 0) == 0)
        z = tl.where((code == end) == is_end, z, float("-inf"))
        tl.store(flags + row, is_end, mask=tl.load(starts + row) + 1 + i == latest)
    only = tl.load(must + at)
    z = tl.where(only < 0, z, tl.where(code == only, 0.0, float("-inf")))
    tl.store(out + at * vocab + code, z, mask=code < vocab)


@operator("mmspec::end_channel_logits", mutates_args=("flags",))
def end_channel_logits(
    cond: Tensor, uncond: Tensor | None, scale: float, top_k: int, end: int, must: Tensor, at: Tensor, latest: int,
    flags: Tensor,
) -> Tensor:  # fmt: skip
    """The logits of a window.

    Args:
        cond: [B, W, K, V], of any float type, contiguous in V.
        uncond: Likewise, or None without guidance.
        scale: The guidance scale.
        top_k: Codes of a cell that guidance leaves; 0 to return the guided logits.
        end: The end token; codes after it are not possible.
        must: int64 [B, W, K], the code that a cell is forced to, -1 for none.
        at: int64 [B]; the positions of the window begin at `at + 1`.
        latest: The position whose end is noted.
        flags: bool [B]; True is written where the first codebook would end at `latest` by itself, False where not.

    Returns:
        float32 [B, W, K, V].
    """
    if chosen(cond) == "torch":
        return end_channel_logits_reference(cond, uncond, scale, top_k, end, must, at, latest, flags)
    if cond.stride(3) != 1 or (uncond is not None and uncond.stride() != cond.stride()):
        cond, uncond = cond.contiguous(), None if uncond is None else uncond.contiguous()
    _, width, cells, vocab = cond.shape
    out, block = cond.new_empty(cond.shape, dtype=torch.float32), triton.next_power_of_2(vocab)
    with launchable(cond):
        _end_channel_logits[(must.numel(),)](
            cond, uncond, must.contiguous(), at.contiguous(), flags, out, float(scale), min(top_k, vocab), end, latest,
            width, cells, vocab, *cond.stride()[:3],
            GUIDED=uncond is not None, CUT=top_k > 0, BLOCK=block, num_warps=warps(block),
        )  # fmt: skip
    return out


@end_channel_logits.register_fake
def _(cond: Tensor, *rest: object) -> Tensor:
    return cond.new_empty(cond.shape, dtype=torch.float32)
