"""Kernel 16: one draft of a chain that stops where the draft model is unsure; see `mmspec.methods.draft_stop.drafter`.

One program per row reads the logits of a slot for the entropy, which decides about the next slot; it keeps the sampled
token or takes the guess instead, and writes the distribution that the token follows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.softmax_stats import LINE, POINT, SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

CHUNK = 8192
GAMMA = 0.2  # of AdaEDL's bound


def stop_draft_reference(
    q: SoftmaxStats, sampled: Tensor, guesses: Tensor, last: Tensor, window: Tensor, floats: Tensor, ints: Tensor,
    chances: Tensor, slot: int, stop: float,
) -> None:  # fmt: skip
    """`stop_draft` in torch."""
    probs, m = q.dense(), guesses.shape[1]
    if slot == 0:
        window[:, :1] = last
    chance = torch.ones_like(chances[0]) if slot == 0 else chances[slot]
    going = chance >= stop
    token = torch.where(going, sampled[:, 0].clamp(min=0), guesses[:, slot])
    window[:, 1 + slot] = token
    mass = torch.zeros_like(ints[:, slot])
    mass[:, POINT] = token.int()
    own = q.ints[:, 0].clone()
    own[:, LINE] = torch.arange(len(window), device=window.device, dtype=torch.int32) * m + slot
    ints[:, slot] = torch.where(going[:, None], own, mass)
    floats[:, slot] = torch.where(going[:, None], q.floats[:, 0], 1.0)
    entropy = -torch.special.xlogy(probs, probs).sum(-1)[:, 0]
    # Once below the threshold, always below it: the factors are at most 1.
    chances[slot + 1] = torch.where(going, chance * (1 - (GAMMA * entropy).sqrt()).clamp(min=0), 0.0)


@kernel
def _stop_draft(
    cond, uncond, allowed, floats, ints, sampled, guesses, last, window, new_floats, new_ints, chances, batch, m, first,
    slots, vocab, stride_row, stride_slot, stride_column, stop,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    row = tl.program_id(0).to(tl.int64)
    chance = tl.load(chances + first * batch + row, mask=first > 0, other=1.0)
    going = chance >= stop
    lanes = tl.arange(0, BLOCK)
    entropy = tl.zeros((), tl.float32)
    for start in range(0, vocab, BLOCK):
        p = probabilities(source, row, start + lanes, GUIDED, MASKED, UNIT)
        entropy -= tl.sum(tl.where(p == 0, 0.0, p * tl.log(p)), 0)
    token = tl.where(going, tl.maximum(tl.load(sampled + row), 0), tl.load(guesses + row * m + first))
    tl.store(window + row * (m + 1) + 1 + first, token)
    tl.store(window + row * (m + 1), tl.load(last + row), mask=first == 0)
    there = (row * m + first) * 5
    for number in tl.static_range(5):
        one, two = tl.load(floats + row * 5 + number), tl.load(ints + row * 5 + number)
        if number == 0:
            two = (row * m + first).to(tl.int32)
        point = token.to(tl.int32) if number == 3 else tl.zeros((), tl.int32)
        tl.store(new_floats + there + number, tl.where(going, one, 1.0))
        tl.store(new_ints + there + number, tl.where(going, two, point))
    share = tl.maximum(1 - tl.sqrt(0.2 * entropy), 0.0)
    # NaN stays, as in torch: it is below the threshold.
    share = tl.where(entropy == entropy, share, entropy)
    tl.store(chances + (first + 1) * batch + row, tl.where(going, chance * share, 0.0))


@operator("mmspec::stop_draft", mutates_args=("window", "new_floats", "new_ints", "chances"))
def stop_draft_op(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, sampled: Tensor,
    guesses: Tensor, last: Tensor, window: Tensor, new_floats: Tensor, new_ints: Tensor, chances: Tensor, slot: int,
    stop: float,
) -> None:  # fmt: skip
    """`stop_draft` with plain tensors; the first five are q."""
    if chosen(cond) == "torch":
        q, outputs = SoftmaxStats(cond, uncond, allowed, floats, ints), (window, new_floats, new_ints, chances)
        return stop_draft_reference(q, sampled, guesses, last, *outputs, slot, stop)
    batch, m = guesses.shape
    block = min(max(32, triton.next_power_of_2(cond.shape[-1])), CHUNK)
    with launchable(cond):
        _stop_draft[(batch,)](
            cond, uncond, allowed, floats, ints, sampled.contiguous(), guesses.contiguous(), last.contiguous(), window,
            new_floats, new_ints, chances, batch, m, slot, cond.shape[1], cond.shape[2], *cond.stride(), stop,
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, BLOCK=block,
            num_warps=warps(block),
        )  # fmt: skip
    return None


@stop_draft_op.register_fake
def _(*given: Tensor | int | float | None) -> None:
    return None


def stop_draft(
    q: SoftmaxStats, sampled: Tensor, guesses: Tensor, last: Tensor, window: Tensor, floats: Tensor, ints: Tensor,
    chances: Tensor, slot: int, stop: float,
) -> None:  # fmt: skip
    """Writes one draft of each row, and whether the row goes on.

    Args:
        q: The distributions of the slot, [B, 1, V].
        sampled: int64 [B, 1], tokens sampled from them; those below 0 count as 0.
        guesses: int64 [B, m], the tokens of rows that have stopped.
        last: int64 [B, 1], the token before the first draft.
        window: int64 [B, 1 + m]; `last` and the draft are written to it.
        floats: float32 [B, m, 5]; those of the distribution that the draft follows are written to it, see
            `mmspec.kernels.softmax_stats.SoftmaxStats`. A guess has all mass.
        ints: int32 [B, m, 5], likewise; the logits of slot s of row b are line b * m + s.
        chances: float32 [m + 1, B], the predicted probabilities that all drafts before a slot are accepted, from slot 1
            on; that of the next slot is written to it.
        slot: The slot, from 0 on; earlier ones have been written.
        stop: The lowest chance at which a row goes on.
    """
    stop_draft_op(*q.source(), sampled, guesses, last, window, floats, ints, chances, slot, stop)
