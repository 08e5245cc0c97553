"""A KV cache indexed by slot, whose rows are rolled back independently by writing again from an earlier slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.decoding.quantized_cache import QuantizedStore
from mmspec.sampling.rows import PerRow, put_rows

Store = Tensor | QuantizedStore


@dataclass
class WindowSlots:
    """The cache slots of a window.

    Attributes:
        start: The slot of the window's first token, if it is the same in all rows.
        end: One past the last slot that any row writes; attention reads the slots before it.
        slots: int64 [R, W], the slot of every token, if rows differ; it takes precedence over `start`.
        unread: Slots `unread[0]` to `unread[1] - 1` are left out of what the window attends to.
    """

    start: int = 0
    end: int = 0
    slots: Tensor | None = None
    unread: tuple[int, int] = (0, 0)

    def write(self, store: Store, states: Tensor) -> Tensor:
        """Writes the keys or values of the window into a cache.

        Args:
            store: [R', heads, capacity, head_dim] with R' >= R; the first R rows are written.
            states: [R, heads, W, head_dim].

        Returns:
            The keys or values that the window attends to, [R, heads, end, head_dim]: a view, or with `unread` a copy of
            the slots that are left. Slots after a row's window still hold those of an earlier, longer window; the
            attention mask hides them.
        """
        if isinstance(store, QuantizedStore):
            new = store.encode(states)
            return store.decode([self.write(part, piece) for part, piece in zip(store.parts, new, strict=True)])
        if store.shape[0] != states.shape[0]:  # each operation counts where a call reads one token
            store = store[: states.shape[0]]
        if self.slots is None:
            store[:, :, self.start : self.end] = states
        else:
            slots = self.slots.to(store.device)
            rows = torch.arange(len(slots), device=store.device)[:, None]
            store[rows, :, slots] = states.transpose(1, 2)
        first, last = self.unread
        if first < last:
            return torch.cat([store[:, :, :first], store[:, :, last : self.end]], dim=2)
        return store[:, :, : self.end]


def new_store(shape: Sequence[int], dtype: torch.dtype, device: torch.device, bits: int | None = None) -> Store:
    """An empty store of keys or values of `shape`, with 8 or 4 bits per number or, with None, numbers of `dtype`.

    It holds zeros, because a hidden slot still counts with weight 0, and 0 times uninitialised memory may be NaN. It
    can be written to outside of inference mode: later calls, such as those of a teacher, may take it over with its
    graphs.
    """
    if bits is not None:
        return QuantizedStore.zeros(shape, bits, dtype, device)
    with torch.inference_mode(False):
        return torch.zeros(*shape, dtype=dtype, device=device)


def put_store(
    own: Store, new: Store, row_ids: Sequence[int], dim: int = 0, cfg_factor: int = 1, fill: float = 0
) -> Store:
    """`mmspec.sampling.rows.put_rows` for stores, both quantized or neither."""
    if isinstance(own, QuantizedStore):
        assert isinstance(new, QuantizedStore) and (own.bits, own.gear) == (new.bits, new.gear), "one kind of cache"
        return own.put_rows(new, row_ids, dim, cfg_factor)
    assert isinstance(new, Tensor)
    return put_rows(own, new, row_ids, dim, cfg_factor, fill)


def move_slots(store: Store, source: Tensor, target: Tensor) -> None:
    """Copies each row's slots `source` to its slots `target`, int64 [R, D] both, all at once.

    Args:
        store: [..., R, heads, capacity, head_dim], keys or values, of one layer or of several.
    """
    if isinstance(store, QuantizedStore):
        for part in store.parts:
            move_slots(part, source, target)
        return
    source, target = source.to(store.device), target.to(store.device)
    rows = torch.arange(len(source), device=store.device)[:, None]
    store[..., rows, :, target, :] = store[..., rows, :, source, :]


class KVCache:
    """Preallocated keys and values of all layers.

    Args:
        layers: L.
        batch_size: R, the unconditional rows included.
        heads: Heads of keys and values.
        capacity: Slots per row.
        head_dim: Width of a head.
        dtype: Of keys and values.
        device: Of keys and values.
        bits: Bits per number, see `mmspec.decoding.quantized_cache.cache_bits`; None for `dtype`.

    Attributes:
        keys: [L, R, heads, capacity, head_dim]; see `new_store`.
        values: As `keys`.
    """

    ROWS = PerRow("keys", dim=1), PerRow("values", dim=1)

    def __init__(
        self,
        layers: int,
        batch_size: int,
        heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        bits: int | None = None,
    ) -> None:
        shape = (layers, batch_size, heads, capacity, head_dim)
        self.keys, self.values = (new_store(shape, dtype, device, bits) for _ in range(2))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def rows(self) -> int:
        """R, the number of rows, the unconditional ones included."""
        return int(self._one.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the cache is."""
        return self._one.device

    @property
    def _one(self) -> Tensor:
        return self.keys if isinstance(self.keys, Tensor) else self.keys.parts[0]

    def layer(self, index: int) -> tuple[Store, Store]:
        """Keys and values of one layer, views [R, heads, capacity, head_dim]."""
        return self.keys[index], self.values[index]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies each row's slots `source` to its slots `target` in all layers, int64 [R, D] both, all at once."""
        for store in (self.keys, self.values):
            move_slots(store, source, target)


class LayerCopies(KVCache):
    """A cache that is read and written without a trace: each layer is a copy of that of another cache.

    Layers are apart, so that gradients can flow through the reading of one after the next one was written in place.

    Args:
        cache: The other cache.
    """

    def __init__(self, cache: KVCache) -> None:
        self.keys, self.values = cache.keys, cache.values

    def layer(self, index: int) -> tuple[Store, Store]:
        """As `KVCache.layer`, copied."""
        keys, values = super().layer(index)
        assert isinstance(keys, Tensor) and isinstance(values, Tensor), "quantized caches have no gradients"
        return keys.clone(), values.clone()
