"""What the prompts of a model say about later slots of its KV cache: position ids, and embeddings that are added."""

from __future__ import annotations

import torch
from torch import Tensor


def positions_by_slot(positions: Tensor, following: Tensor | None, slots: int, length: int, slack: int) -> Tensor:
    """Position ids by slot, int64 [axes, B, slots + length + slack].

    Slots past the end of the sequence repeat the last position. Their logits are not used, and position tables of some
    models end there.

    Args:
        positions: Of the prompts, int64 [axes, B, T].
        following: Of the tokens after the prompts, int64 [axes, B, N]; None continues from the last one.
        slots: Slots of the prompts, at least T; the prompts fill the last T of them.
        length: Tokens to generate.
        slack: Slots after the end of the sequence.
    """
    if following is None:
        following = positions[..., -1:] + torch.arange(1, length + 1, device=positions.device)
    # The last token is never read, so its position is not needed.
    known = torch.cat([positions, following[..., : length - 1]], dim=-1)
    before = known.new_zeros(*known.shape[:2], slots - positions.shape[-1])
    after = known[..., -1:].expand(-1, -1, slots + length + slack - before.shape[-1] - known.shape[-1])
    return torch.cat([before, known, after], dim=-1)


def at_places(embeds: Tensor, index: Tensor) -> Tensor:
    """Embeddings [R', W, D] at places int64 [R', W] of [R, n, D], where R' is at most R."""
    return embeds[: len(index)].gather(1, index[..., None].expand(-1, -1, embeds.shape[2]))


def extended(embeds: Tensor, length: int) -> Tensor:
    """Embeddings [B, n, D] as [B, length, D]: the last is repeated."""
    if embeds.shape[1] == length:  # in the same place, where graphs may read it
        return embeds
    return torch.cat([embeds, embeds[:, -1:].expand(-1, length - embeds.shape[1], -1)], dim=1)
