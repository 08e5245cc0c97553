"""CUDA graphs for the windows of a target: one graph per window width and cache length.

A call of a model launches hundreds of kernels, and at one token per row each takes less time than its launch. Here the
call of a given width and a given cache length has static input buffers. On a CUDA device it is captured once and then
replayed, so that the host only copies tokens and slots. The part of the cache that is read grows in steps of 128 slots;
slots after a row's last one are masked.

Prompts, trees and early exits run eagerly on the same cache. So does every call of a model that cannot be captured,
such as one that synchronizes with the device. `MMSPEC_CUDA_GRAPHS=off` turns graphs off.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmspec.decoding.attention_backends import with_plans
from mmspec.decoding.quantized_cache import cache_bits
from mmspec.decoding.target import (
    EarlyExit,
    ExitFeatureTarget,
    LayerFeatureTarget,
    PromptTarget,
    SupportsTreeEarlyExit,
    cache_bytes,
    can_join,
    join_targets,
    prompt_padding,
    reads_short_cache,
    skips_layers,
)
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits, cfg_rows, split_cfg
from mmspec.sampling.mirrored import on_device
from mmspec.sampling.rows import put_rows
from mmspec.sampling.tree import Tree
from mmspec.setup_work import record_setup

VARIABLE = "MMSPEC_CUDA_GRAPHS"
_STEP = 128  # slots by which the part of the cache that is read grows
_MAX_WIDTH = 128  # tokens per row; wider calls keep the device busy anyway, and a graph would hold on to their memory

# (tokens int64 [R, W], slots int64 [R, W], number of cache slots to read) -> logits [R, W, V] and features [R, W, D].
Read = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Capturable(SupportsTreeEarlyExit, ExitFeatureTarget, LayerFeatureTarget, Protocol):
    """A target with a KV cache by slot and a `read` that can be captured: it never reads tensor values on the host."""

    @property
    def rows(self) -> int:
        """The number of running rows, B."""
        ...

    @property
    def cfg_factor(self) -> int:
        """Cache rows per row of the batch: 2 with guidance, else 1."""
        ...

    @property
    def capacity(self) -> int:
        """Cache slots per row."""
        ...

    def slot(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cache slots of positions."""
        ...

    def read(self, tokens: Tensor, slots: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Reads a window; returns logits [R, W, V] and features [R, W, D].

        Args:
            tokens: int64 [R, W], the unconditional rows included.
            slots: int64 [R, W], the cache slot of each token.
            end: The number of cache slots to read; greater than every slot whose logits are used.
        """
        ...


def use_cuda_graphs(device: torch.device) -> bool:
    """Whether CUDA graphs are used on a device.

    They are not used under autocast: its cache of cast weights is freed when it ends, and graphs would read freed
    memory. Nor with quantized caches, whose calls are not captured.

    Raises:
        ArgumentError: If the environment variable has an unknown value.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "off"):
        raise ArgumentError(f"{VARIABLE}={value!r} is not allowed; it must be off, or unset for graphs on CUDA devices")
    if cache_bits() is not None:
        return False
    return device.type == "cuda" and not value and not torch.is_autocast_enabled(device.type)


class GraphCache:
    """Captured calls, by window width and cache length.

    The graphs share one memory pool, so the output of a call must be copied before the next call.

    Attributes:
        works: False after a call could not be captured.
    """

    def __init__(self) -> None:
        self.works = True
        self._calls: dict[tuple[int, int], _CapturedCall] = {}
        self._pool: Any = None

    def width(self, count: int, most: int) -> int:
        """The width of the call that reads `count` tokens: that of a captured call if one is less than twice as wide.

        The last windows of a sequence become narrower; capturing a call for each would take longer than it saves.

        Args:
            count: Tokens per row.
            most: The largest width that fits the cache.
        """
        return min((w for w, _ in self._calls if count <= w < 2 * count and w <= most), default=count)

    def call(self, read: Read, batch_size: int, width: int, end: int, device: torch.device) -> _CapturedCall | None:
        """The captured call of a shape, captured now if it is new; None if it cannot be captured."""
        found = self._calls.get((width, end))
        if found is None:
            found = _CapturedCall(batch_size, width, end, device)
            if device.type == "cuda":
                try:
                    with _capturing:
                        self._pool = self._pool or torch.cuda.graph_pool_handle()
                        found.capture(read, self._pool, first=not self._calls)
                except RuntimeError:  # raised by torch and CUDA for operations that cannot be captured
                    self.works = False
                    return None
            self._calls[width, end] = found
            record_setup()
        return found


class _CapturedCall:
    """The call of one window width and one cache length, with its input buffers; on a CPU it runs eagerly.

    Attributes:
        tokens: int64 [R, W], an input buffer.
        slots: int64 [R, W], an input buffer.
    """

    def __init__(self, batch_size: int, width: int, end: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # the buffers may be written outside of inference mode later
            self.tokens = torch.zeros(batch_size, width, dtype=torch.int64, device=device)
            self.slots = torch.arange(width, device=device).repeat(batch_size, 1) + (end - width)
        self._end = end
        self._out: tuple[Tensor, Tensor] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self, read: Read, pool: Any, first: bool) -> None:
        """Captures the call in a CUDA graph.

        Args:
            read: The call.
            pool: The memory pool that all graphs share.
            first: Whether no call of this model was captured before; it then runs twice to warm up.

        Raises:
            RuntimeError: If the call cannot be captured.
        """
        device = self.tokens.device
        current, (warmup_stream, capture_stream) = torch.cuda.current_stream(device), _streams(device)
        # The current stream is set explicitly, because a capture that fails would leave its own stream set.
        with torch.cuda.device(device), torch.cuda.stream(current), with_plans():
            warmup_stream.wait_stream(current)
            try:
                # Initialization on the first call must not be captured.
                with torch.cuda.stream(warmup_stream):
                    if first:
                        read(self.tokens, self.slots, self._end)
                    with RefusesSynchronization():
                        read(self.tokens, self.slots, self._end)
            finally:
                current.wait_stream(warmup_stream)  # an eager call would write to the same cache slots next
            graph = torch.cuda.CUDAGraph()
            # The default capture stream of torch belongs to the first device that anything was captured on.
            with torch.cuda.graph(graph, pool=pool, stream=capture_stream, capture_error_mode="thread_local"):
                self._out = read(self.tokens, self.slots, self._end)
            self._graph = graph

    def __call__(self, read: Read) -> tuple[Tensor, Tensor]:
        if self._graph is None:
            return read(self.tokens, self.slots, self._end)
        self._graph.replay()
        assert self._out is not None
        return self._out


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The warm-up and the capture stream of a device. They are reused, as libraries keep a workspace per stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


class RefusesSynchronization(TorchDispatchMode):
    """A context in which an operator that synchronizes with a CUDA device raises an error; in a capture it would
    corrupt the graph.

    It holds for this thread alone, unlike `torch.cuda.set_sync_debug_mode`: others decode meanwhile.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        chosen_by_value = name in _INDEXES and any(t.dtype in (torch.bool, torch.uint8) for t in given[1:])
        if (name in _SYNCHRONIZES or chosen_by_value) and any(t.is_cuda for t in given):
            raise RuntimeError(f"{name} synchronizes with the device")
        out = func(*args, **(kwargs or {}))
        tensors = [*given, *(t for t in tree_leaves(out) if isinstance(t, Tensor))]
        # A number of the host is passed as an argument of the kernel.
        if len({t.device.type for t in tensors if t.dim() or t.is_cuda}) > 1:
            raise RuntimeError(f"{name} copies between host and device")
        return out


class GraphPool:
    """The memory of graphs that are captured with `capture`.

    CUDA frees a pool only when it runs out of memory, so that the pool of graphs that are not needed any more becomes
    that of later ones.

    Attributes:
        handle: Of the pool, once a graph has been captured.
        latest: The latest graph, with which the pool lives.
    """

    def __init__(self) -> None:
        self.handle: Any = None
        self.latest: torch.cuda.CUDAGraph | None = None

    @classmethod
    def of(cls, device: torch.device) -> GraphPool:
        """A pool that is free."""
        try:
            return _spare[device].pop()
        except IndexError:
            return cls()

    def release(self, device: torch.device) -> None:
        """Leaves the pool to others; its graphs must not be replayed any more."""
        if self.latest is not None:
            _spare[device].append(self)


_spare: defaultdict[torch.device, list[GraphPool]] = defaultdict(list)


def can_capture(device: torch.device) -> bool:
    """Whether `capture` can capture on a device."""
    return device.type == "cuda"


def capture(body: Callable[[], None], device: torch.device, pool: GraphPool) -> torch.cuda.CUDAGraph | None:
    """Captures what a function launches on a device, which is not run; None if it cannot be captured.

    Args:
        body: The function. Whatever it compiles or prepares once is done already.
        device: A CUDA device.
        pool: The memory of the graph.
    """
    current, (_, capture_stream) = torch.cuda.current_stream(device), _streams(device)
    graph = torch.cuda.CUDAGraph()
    # As `torch.cuda.graph`, which also waits for the device and frees what memory is unused: here a model decodes.
    with _capturing, torch.cuda.device(device), torch.cuda.stream(current):
        pool.handle = pool.handle or torch.cuda.graph_pool_handle()
        capture_stream.wait_stream(current)
        try:
            with torch.cuda.stream(capture_stream):
                graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                try:
                    body()
                finally:
                    graph.capture_end()
        except RuntimeError:  # raised by torch and CUDA for what synchronizes, and by `page_locked`
            return None
    pool.latest = graph
    record_setup()
    return graph


_SYNCHRONIZES = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "item"}
_INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}
_capturing = Lock()  # captures share streams, and libraries keep one workspace per stream


class CUDAGraphTarget:
    """A target whose windows are read by captured calls; prompts, trees and early exits run eagerly.

    Args:
        target: The target, before its prefill.
        graphs: The graphs of an earlier target whose tensors `target` has taken over; None for an empty cache.
    """

    def __init__(self, target: Capturable, graphs: GraphCache | None = None) -> None:
        self.vocab_size = target.vocab_size
        self.device = target.device
        self.layers = target.layers
        self.short_cache = reads_short_cache(target)
        self.can_skip_layers = skips_layers(target)
        if isinstance(target, PromptTarget):
            self.read_prompts = target.read_prompts
        self._target = target
        self._graphs = graphs or GraphCache()
        # Finished rows stay in the target, so that its captured calls keep fitting, until an eager call drops them.
        self._live: list[int] | None = None  # the rows of the target that are running; None: all
        self._index: Tensor | None = None  # int64, their rows in the cache, the unconditional ones included
        self._all_rows = True  # whether the target still has all of its rows, as captured calls require
        self._features: Tensor | None = None
        self._replayed: Tensor | None = None  # the features of the latest captured call, until it is replayed again
        self._slots_from: Tensor | None = None  # see `_first_slots`

    def prefill(self) -> Logits:
        logits = self._target.prefill()
        self._features = self._target.features()
        return logits

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        if early_exit is not None:
            return self._eager().forward(tokens, at, early_exit)
        both = self._replay(tokens, at)
        if both is None:
            logits = self._eager().forward(tokens, at)
            self._features, self._replayed = self._target.features(), None
            return logits
        return split_cfg(both, self._target.cfg_factor == 2)

    @property
    def reads_ahead(self) -> bool:
        """Whether `forward_ahead` can read, unless a call cannot be captured."""
        return self._all_rows and self._graphs.works

    def forward_ahead(self, tokens: Tensor, at: NDArray[np.int64], into: Tensor | None = None) -> Logits | None:
        """As `forward`, for positions that may be known on the device alone; see `mmspec.decoding.ahead.ReadsAhead`."""
        both = self._replay(tokens, at, into)
        return None if both is None else split_cfg(both, self._target.cfg_factor == 2)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        logits = self._eager().forward_tree(tokens, at, tree, first, early_exit)
        if early_exit is None:
            self._features, self._replayed = self._target.features(), None
        return logits

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        self._eager().settle(at, path)

    def select_rows(self, row_ids: list[int]) -> None:
        before = self._target.rows if self._live is None else len(self._live)
        self._slots_from = None
        if self._copied_features() is not None:
            index = cfg_rows(row_ids, before, self._target.cfg_factor == 2, self.device)
            self._features = self.features()[index]
        if not self._all_rows or not self._graphs.works:
            self._all_rows = False
            self._target.select_rows(row_ids)
        else:
            self._live = row_ids if self._live is None else [self._live[row] for row in row_ids]
            self._index = cfg_rows(self._live, self._target.rows, self._target.cfg_factor == 2, self.device)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def can_join(self, other: object) -> bool:
        return isinstance(other, CUDAGraphTarget) and can_join(self._target, other._target)

    def join(self, other: CUDAGraphTarget, row_ids: list[int]) -> None:
        """See `mmspec.decoding.target.JoinableTarget`. Captured calls keep fitting where the rows find free places."""
        live = list(range(self._target.rows)) if self._live is None else list(self._live)
        factor, before = self._target.cfg_factor, len(live)
        self._slots_from = None
        if self._copied_features() is not None and other._copied_features() is not None:
            latest = self.features()[:, -1:], other.features()[:, -1:]
            self._features = put_rows(*latest, row_ids, cfg_factor=factor)
        free = sorted(set(range(self._target.rows + len(row_ids))) - set(live))
        live += [free.pop(0) for row in range(max(row_ids) + 1 - before)]
        shape = self._target.rows, self._target.capacity
        join_targets(self._target, other._eager(), [live[row] for row in row_ids])
        if (self._target.rows, self._target.capacity) != shape:
            self._graphs = GraphCache()
        self._all_rows = True
        whole = live == list(range(self._target.rows))
        self._live = None if whole else live
        self._index = None if whole else cfg_rows(live, self._target.rows, factor == 2, self.device)

    def prompt_padding(self) -> NDArray[np.int64]:
        """See `mmspec.decoding.target.PaddedTarget`."""
        return prompt_padding(self._target, self._target.rows * self._target.cfg_factor)

    def features(self) -> Tensor:
        found = self._copied_features()
        assert found is not None, "nothing has been read yet"
        return found

    def _copied_features(self) -> Tensor | None:
        """The features of the latest call; those of a captured call are copied only if somebody asks."""
        if self._replayed is not None:
            self._features = self._replayed.clone() if self._index is None else self._replayed[self._index]
            self._replayed = None
        return self._features

    def exit_features(self) -> Tensor:
        return self._target.exit_features()

    def head(self, features: Tensor) -> Tensor:
        return self._target.head(features)

    @property
    def fused_layers(self) -> tuple[int, ...]:
        return self._target.fused_layers

    def collect_layers(self, layers: Sequence[int]) -> None:
        """See `mmspec.decoding.target.LayerFeatureTarget`; all calls then run eagerly."""
        self._all_rows = False
        self._target.collect_layers(layers)

    def layer_features(self) -> Tensor:
        return self._target.layer_features()

    def _replay(self, tokens: Tensor, at: NDArray[np.int64], into: Tensor | None = None) -> Tensor | None:
        """A copy of the logits of the running rows, in `into` if given; None if the call has to run eagerly."""
        target, count = self._target, tokens.shape[1]
        if not self._all_rows or not self._graphs.works or count > _MAX_WIDTH:
            return None
        last = int(self._slots(at[:, None]).max())
        width = self._graphs.width(count, target.capacity - last)
        end = min(-(-(last + width) // _STEP) * _STEP, target.capacity)
        factor, rows = target.cfg_factor, target.rows
        call = self._graphs.call(target.read, rows * factor, width, end, self.device)
        if call is None:
            return None
        rows, live = rows if self._live is None else len(self._live), self._index
        first, start = self._first_slots(width), on_device(at, self.device)[:, None]
        slots_of, tokens_of = (t.view(factor, target.rows, width) for t in (call.slots, call.tokens))
        # Tokens of an earlier window stay in slots after the last one: what is read there is not used.
        if live is None:
            torch.add(first.expand(factor, rows, width), start, out=slots_of)
            tokens_of[..., :count].copy_(tokens.expand(factor, rows, count))
        else:
            # Finished rows are read as well: capturing calls for fewer rows would cost more.
            slots_of[:, live[:rows]] = first + start
            tokens_of[:, live[:rows], :count] = tokens
        logits, features = call(target.read)
        self._features, self._replayed = None, features[:, :count]
        found = logits[:, :count] if live is None else logits[live, :count]
        if into is not None:
            return into.copy_(found)
        return found.clone() if live is None else found

    def _first_slots(self, width: int) -> Tensor:
        """The slots of positions 0 to W - 1 of the running rows, int64 [B, W] on the device."""
        if self._slots_from is None or self._slots_from.shape[1] < width:
            rows = self._target.rows if self._live is None else len(self._live)
            first = self._slots(np.broadcast_to(np.arange(max(width, 32)), (rows, max(width, 32))))
            self._slots_from = on_device(first, self.device)
        return self._slots_from[:, :width]

    def _slots(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of positions of the running rows, host int64 [B, W]."""
        if self._live is None:
            return self._target.slot(positions)
        of_all = np.zeros((self._target.rows, positions.shape[1]), dtype=np.int64)
        of_all[self._live] = positions
        return self._target.slot(of_all)[self._live]

    def _eager(self) -> Capturable:
        """The target without its finished rows. Dropping them moves its cache, so that captured calls no longer fit."""
        if self._live is not None:
            self._target.select_rows(self._live)
            self._live, self._index, self._all_rows = None, None, False
            self._slots_from = None
        return self._target
