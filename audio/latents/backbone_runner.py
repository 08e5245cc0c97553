"""A causal decoder that reads embeddings, window by window, each row at its own place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.decoding.attention_masks import additive_mask
from mmspec.errors import ArgumentError
from mmspec.hf.decoder_layers import first_layers
from mmspec.hf.slot_cache import SlotCache


class BackboneRunner:
    """A decoder of transformers and its cache.

    Args:
        decoder: Called with `inputs_embeds`, `attention_mask`, `position_ids` and `past_key_values`.
        capacity: Slots per row.
    """

    def __init__(self, decoder: Any, capacity: int) -> None:
        self._decoder = decoder
        self._cache = SlotCache(capacity)

    def read(self, embeds: Tensor, slots: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """Hidden states [B, W, H] of a window.

        Args:
            embeds: [B, W, H].
            slots: int64 [B, W], where each goes.
            positions: int64 [B, W], which position each has.
            seen: bool [B, W, end], the slots each may look at; its own it always sees.
        """
        end = seen.shape[-1]
        self._cache.at_slots(slots, end)
        # Padding that saw nothing would be NaN, and stay in the cache.
        own = torch.arange(end, device=slots.device) == slots[..., None]
        out = self._decoder(
            inputs_embeds=embeds,
            attention_mask=additive_mask(seen | own, embeds.dtype),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        return out.last_hidden_state

    def select_rows(self, row_ids: list[int], device: torch.device) -> None:
        """Drops all rows but these."""
        self._cache.select_rows(torch.tensor(row_ids, device=device))


def shallow(decoder: Any, layers: int | None) -> Any:
    """The decoder with its first so many layers alone, of the same weights; None keeps all.

    Raises:
        ArgumentError: When it has no more of them.
    """
    if layers is None:
        return decoder
    if layers >= len(decoder.layers):
        raise ArgumentError(f"layers={layers} is not allowed; this model has {len(decoder.layers)}, so take fewer")
    return first_layers(decoder, layers)
