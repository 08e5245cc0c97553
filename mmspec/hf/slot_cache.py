"""A key-value cache whose rows are written, and thereby rolled back, each at its own place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class Place:
    """Where the running window goes.

    Attributes:
        start: The slot of its first token, the same for all rows; or `slots`: int64 [R, W], of every token.
        end: One past the last slot that is written; attention sees the slots before it.
    """

    start: int = 0
    end: int = 0
    slots: Tensor | None = None


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [R, heads, capacity, head_dim], allocated when the first ones arrive.

    Slots past the running window keep what an earlier one left there; the mask hides them.
    """

    is_sliding = False

    def __init__(self, place: Place, capacity: int) -> None:
        super().__init__()
        self._place = place
        self._capacity = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # Zeros, because a hidden slot still counts with weight 0, and 0 times whatever memory holds may be NaN.
        def room(states: Tensor) -> Tensor:
            rows, heads, _, width = states.shape
            return states.new_zeros(rows, heads, self._capacity, width)

        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = room(key_states), room(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes a window [R, heads, W, head_dim] of the first R rows; returns all of theirs before its end."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place, seen, count = self._place, [], len(key_states)
        for store, states in ((self.keys[:count], key_states), (self.values[:count], value_states)):
            if place.slots is None:
                store[:, :, place.start : place.end] = states
            else:
                slots = place.slots.to(store.device)
                rows = torch.arange(len(slots), device=store.device)[:, None]
                store[rows, :, slots] = states.transpose(1, 2)
            seen.append(store[:, :, : place.end])
        return seen[0], seen[1]

    def select_rows(self, row_ids: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        if self.is_initialized:
            row_ids = row_ids.to(self.keys.device)
            self.keys, self.values = self.keys[row_ids], self.values[row_ids]

    def move(self, source: Tensor, goal: Tensor) -> None:
        """Copies each row's slots `source` to its slots `goal`, int64 [R, D] both, all at once."""
        source, goal = source.to(self.keys.device), goal.to(self.keys.device)
        rows = torch.arange(len(source), device=source.device)[:, None]
        for store in (self.keys, self.values):
            store[rows, :, goal] = store[rows, :, source]

    def get_seq_length(self) -> int:
        return self._place.end

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._place.end, 0

    def get_max_length(self) -> int:
        return self._capacity

    def get_max_cache_shape(self) -> int:
        return self._capacity


class SlotCache(Cache):
    """Stands in for the cache a model would make itself, whichever kind was asked for.

    `place` is set before each forward pass; a row goes back by being written again further left.

    Args:
        capacity: Slots per row.
    """

    def __init__(self, capacity: int) -> None:
        self.place = Place()
        super().__init__(layer_class_to_replicate=partial(SlotLayer, self.place, capacity))

    def at(self, start: int, end: int) -> None:
        """The next window goes to the same slots in all rows."""
        self.place.start, self.place.end, self.place.slots = start, end, None

    def at_slots(self, slots: Tensor, end: int) -> None:
        """Each row of the next window goes to its own `slots` int64 [R, W], all before `end`."""
        self.place.end, self.place.slots = end, slots

    def select_rows(self, row_ids: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        for layer in self.layers:
            layer.select_rows(row_ids)

    def move(self, source: Tensor, goal: Tensor) -> None:
        """Copies each row's slots `source` to its slots `goal`, int64 [R, D] both, in all layers."""
        for layer in self.layers:
            layer.move(source, goal)
