"""A causal decoder that reads windows of embeddings, each row at its own position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.decoding.attention_masks import additive_mask
from mmspec.errors import ArgumentError
from mmspec.hf.cache_name import run_decoder
from mmspec.hf.decoder_layers import first_layers
from mmspec.hf.slot_cache import SlotCache


class BackboneRunner:
    """A decoder of transformers and its KV cache.

    Args:
        decoder: Called with `inputs_embeds`, `attention_mask`, `position_ids` and a KV cache,
            see `mmspec.hf.cache_name.cache_input`.
        capacity: Slots of the KV cache per row.
    """

    ROWS = ("_cache",)

    def __init__(self, decoder: Any, capacity: int) -> None:
        self._decoder = decoder
        self._cache = SlotCache(capacity)

    def read(self, embeds: Tensor, slots: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """The hidden states [B, W, H] of a window.

        Args:
            embeds: [B, W, H].
            slots: int64 [B, W], the slot of the KV cache that each entry is written to.
            positions: int64 [B, W], the position of each entry.
            visible: bool [B, W, end], the slots that each entry attends to, besides its own.
        """
        end = visible.shape[-1]
        self._cache.at_slots(slots, end)
        # Padding that attended to nothing would become NaN, and stay in the KV cache.
        own = torch.arange(end, device=slots.device) == slots[..., None]
        mask = additive_mask(visible | own, embeds.dtype)
        return run_decoder(self._decoder, embeds, mask, positions, self._cache)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return self._cache.nbytes


def early_exit(decoder: Any, layers: int | None) -> Any:
    """The decoder cut after its first `layers` layers, with shared weights; None keeps all layers.

    Raises:
        ArgumentError: If it does not have more layers than that.
    """
    if layers is None:
        return decoder
    if layers >= len(decoder.layers):
        raise ArgumentError(f"layers={layers} is not allowed; this model has {len(decoder.layers)}, so take fewer")
    return first_layers(decoder, layers)
