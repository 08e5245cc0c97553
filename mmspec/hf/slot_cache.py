"""A KV cache for transformers models whose rows are rolled back, each on its own, by writing again."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.decoding.kv_cache import Store, WindowSlots, move_slots, new_store
from mmspec.decoding.quantized_cache import cache_bits


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [R, heads, capacity, head_dim], allocated by the first `update`.

    Args:
        window: The slots of the running window, shared by all layers.
        capacity: Slots per row.
    """

    ROWS = ("keys", "values")

    is_sliding = False

    keys: Any  # a `mmspec.decoding.kv_cache.Store`, as are the values
    values: Any

    def __init__(self, window: WindowSlots, capacity: int) -> None:
        super().__init__()
        self._window = window
        self._capacity = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def allocate(states: Tensor) -> Store:
            rows, heads, _, width = states.shape
            return new_store((rows, heads, self._capacity, width), states.dtype, states.device, cache_bits())

        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = allocate(key_states), allocate(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes a window, [R, heads, W, head_dim], and returns what it attends to, [R, heads, end, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._window.write(self.keys, key_states), self._window.write(self.values, value_states)

    def after_join(self, other: SlotLayer) -> None:
        self._capacity = self.keys.shape[2]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies each row's slots `source` to its slots `target`; see `mmspec.decoding.kv_cache.move_slots`."""
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
    """The cache that decoding passes to a model, whatever cache the caller chose.

    `at` or `at_slots` is called before each forward pass. A row is rolled back by writing to an earlier slot again.

    Args:
        capacity: Slots per row.

    Attributes:
        capacity: Slots per row.
        window: The slots of the running window.
    """

    ROWS = ("parts",)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.window = WindowSlots()
        super().__init__(layer_class_to_replicate=partial(SlotLayer, self.window, capacity))

    def at(self, start: int, end: int) -> None:
        """Writes the next window to slots `start` to `end - 1` of all rows."""
        self.window.start, self.window.end, self.window.slots, self.window.unread = start, end, None, (0, 0)

    def at_slots(self, slots: Tensor, end: int) -> None:
        """Writes the next window to `slots`, int64 [R, W], all below `end`."""
        self.window.end, self.window.slots, self.window.unread = end, slots, (0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers if layer.is_initialized)

    def tensors(self) -> list[Tensor]:
        """Keys and values of all layers, which are not quantized, after the first call."""
        return [store for layer in self.layers for store in (layer.keys, layer.values)]

    def take_over(self, tensors: list[Tensor]) -> None:
        """Moves to the `tensors` of an earlier cache of the same model, batch and capacity, and sets them to 0."""
        for keys, values in zip(tensors[::2], tensors[1::2], strict=True):
            layer = SlotLayer(self.window, self.capacity)
            layer.keys, layer.values = keys.zero_(), values.zero_()
            layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
            self.layers.append(layer)

    @property
    def parts(self) -> tuple[SlotLayer, ...]:
        """The layers."""
        return tuple(self.layers)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies each row's slots `source` to its slots `target`, int64 [R, D] both, in all layers."""
        for layer in self.layers:
            layer.move(source, target)


class _CopiedLayer(SlotLayer):
    """A layer of `SlotCopies`."""

    def __init__(self, window: WindowSlots, layer: SlotLayer) -> None:
        super().__init__(window, layer.get_max_length())
        self.keys, self.values, self.is_initialized = layer.keys, layer.values, layer.is_initialized

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        assert isinstance(self.keys, Tensor) and isinstance(self.values, Tensor), "quantized caches have no gradients"
        keys, values = self.keys.clone(), self.values.clone()
        return self._window.write(keys, key_states), self._window.write(values, value_states)


class SlotCopies(SlotCache):
    """A cache that is read and written without a trace; see `mmspec.decoding.kv_cache.LayerCopies`.

    Args:
        cache: The other cache, after its first call.
    """

    def __init__(self, cache: SlotCache) -> None:
        super().__init__(cache.capacity)
        self.layers = [_CopiedLayer(self.window, layer) for layer in cache.layers]
