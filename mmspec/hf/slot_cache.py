"""A key-value cache whose rows are written, and thereby rolled back, each at its own place."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.decoding.kv_cache import WindowSlots, move_slots


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [R, heads, capacity, head_dim], allocated when the first ones arrive.

    Slots past the running window keep what an earlier one left there; the mask hides them.
    """

    is_sliding = False

    def __init__(self, window: WindowSlots, capacity: int) -> None:
        super().__init__()
        self._window = window
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
        return self._window.write(self.keys, key_states), self._window.write(self.values, value_states)

    def select_rows(self, row_ids: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        if self.is_initialized:
            row_ids = row_ids.to(self.keys.device)
            self.keys, self.values = self.keys[row_ids], self.values[row_ids]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies each row's slots `source` to its slots `target`, int64 [R, D] both, all at once."""
        for store in (self.keys, self.values):
            move_slots(store, source, target)

    def get_seq_length(self) -> int:
        return self._window.end

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._window.end, 0

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
        self.window = WindowSlots()
        super().__init__(layer_class_to_replicate=partial(SlotLayer, self.window, capacity))

    def at(self, start: int, end: int) -> None:
        """The next window goes to the same slots in all rows."""
        self.window.start, self.window.end, self.window.slots = start, end, None

    def at_slots(self, slots: Tensor, end: int) -> None:
        """Each row of the next window goes to its own `slots` int64 [R, W], all before `end`."""
        self.window.end, self.window.slots = end, slots

    def select_rows(self, row_ids: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        for layer in self.layers:
            layer.select_rows(row_ids)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies each row's slots `source` to its slots `target`, int64 [R, D] both, in all layers."""
        for layer in self.layers:
            layer.move(source, target)
