"""CUDA graphs for the windows of a target: one graph per window width and cache length.

A call of a model launches hundreds of kernels, and at one token per row each takes less time than its launch. Here the
call of a given width and a given cache length has static input buffers. On a CUDA device it is captured once and then
replayed, so that the host only copies tokens and slots. The part of the cache that is read grows in steps of 128 slots;
slots after a row's last one are masked.

Prompts, trees and early exits of trees and of short caches run eagerly on the same cache. So does every call of a model
that cannot be captured, such as one that synchronizes with the device. `MMSPEC_CUDA_GRAPHS=off` turns graphs off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.attention_backends import with_plans
from mmspec.decoding.graph_capture import RefusesSynchronization, capturing, streams
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
    reuses_updates,
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
_GRAPH_BYTES = 2**21  # that a driver needs for the kernels of a graph, about 1 KiB each
_MAX_WIDTH = 128  # tokens per row; wider calls keep the device busy anyway, and a graph would hold on to their memory

# (tokens int64 [R, W, *cell], slots int64 [R, W], number of cache slots to read, early exit) -> logits
# [R, W, *cell, V] and features [R, W, D].
Read = Callable[[Tensor, Tensor, int, EarlyExit | None], tuple[Tensor, Tensor]]
# What a graph is of: an early exit of the model, the name of a loop with calls of the model, or None for the model.
CapturedPart = EarlyExit | str | None


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

    @property
    def cell(self) -> tuple[int, ...]:
        """The shape of a token: () for an id, (K,) for a column of K codes."""
        ...

    def slot(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cache slots of positions."""
        ...

    def read(
        self, tokens: Tensor, slots: Tensor, end: int, early_exit: EarlyExit | None = None
    ) -> tuple[Tensor, Tensor]:
        """Reads a window; returns logits [R, W, *cell, V] and features [R, W, D].

        Args:
            tokens: int64 [R, W, *cell], the unconditional rows included, unless they do not run in the early exit.
            slots: int64 [R, W], the cache slot of each token.
            end: The number of cache slots to read; greater than every slot whose logits are used.
            early_exit: The part that runs, whose `recent` is 0; None for all.
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
    """Captured calls, by window width and cache length, of the whole model, of its early exits and of loops.

    The graphs of one part of the model share one memory pool, so the output of a call must be copied before the next
    call of that part.

    Attributes:
        tensors: The tensors that the graphs read and write besides the weights, where these are known: see
            `mmspec.decoding.kept_graphs`.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] | None = None
        self._calls: dict[tuple[Any, ...], _CapturedCall] = {}  # the part is last
        self._pools: dict[CapturedPart, Any] = {}
        self._fails: set[CapturedPart] = set()  # the parts of which a call could not be captured
        self._memory = 0  # bytes by which what torch has reserved grew in captures

    def works(self, part: CapturedPart = None) -> bool:
        """Whether every call of a part of the model could be captured so far; None is the whole model."""
        return part not in self._fails

    @property
    def nbytes(self) -> int:
        """Bytes of the `tensors`, and of the graphs: of the memory that captures took and of their kernels, a guess."""
        return sum(t.nbytes for t in self.tensors or ()) + self._memory + _GRAPH_BYTES * len(self._calls)

    @property
    def has_calls(self) -> bool:
        """Whether any call was captured."""
        return bool(self._calls)

    def call(
        self,
        read: Read,
        batch_size: int,
        width: int,
        end: int,
        device: torch.device,
        part: EarlyExit | None = None,
        cell: tuple[int, ...] = (),
    ) -> _CapturedCall | None:
        """The captured call of a shape, captured now if it is new; None if a call of its part cannot be captured."""

        def inputs() -> list[Tensor]:
            tokens = torch.zeros(batch_size, width, *cell, dtype=torch.int64, device=device)
            return [tokens, torch.arange(width, device=device).repeat(batch_size, 1) + (end - width)]

        return self.of(read, inputs, (end, part), (width, end, part), device)

    def of(
        self,
        run: Callable[..., Any],
        inputs: Callable[[], list[Tensor]],
        fixed: tuple[Any, ...],
        key: tuple[Any, ...],
        device: torch.device,
    ) -> _CapturedCall | None:
        """A captured call, captured now if it is new; None if a call of its part cannot be captured.

        Args:
            run: The call. It takes the inputs, and then what is fixed.
            inputs: Makes the input buffers.
            fixed: Further arguments.
            key: What distinguishes the call from others; its part of the model is last.
            device: The device of the buffers.
        """
        part = key[-1]
        if not self.works(part):  # another attempt would run the call, to warm up, and fail again
            return None
        found = self._calls.get(key)
        if found is None:
            found = _CapturedCall(inputs, fixed)
            if device.type == "cuda":
                try:
                    with capturing:
                        pool = self._pools.setdefault(part, torch.cuda.graph_pool_handle())
                        before = torch.cuda.memory_reserved(device)
                        found.capture(run, pool, first=all(known != part for *_, known in self._calls))
                        # At most: others may reserve memory meanwhile, and a cache that is allocated now counts twice.
                        self._memory += max(0, torch.cuda.memory_reserved(device) - before)
                except RuntimeError:  # raised by torch and CUDA for operations that cannot be captured
                    self._fails.add(part)
                    # The earlier calls of this part will not be replayed either; their pool is freed with them.
                    self._calls = {shape: call for shape, call in self._calls.items() if shape[-1] != part}
                    self._pools.pop(part, None)
                    return None
            self._calls[key] = found
            record_setup()
        return found


class _CapturedCall:
    """A call with its input buffers; on a CPU it runs eagerly.

    Args:
        inputs: Makes the buffers; of a window, its tokens int64 [R, W, *cell] and its slots int64 [R, W].
        fixed: Further arguments of the call.

    Attributes:
        inputs: The buffers.
    """

    def __init__(self, inputs: Callable[[], list[Tensor]], fixed: tuple[Any, ...]) -> None:
        with torch.inference_mode(False):  # the buffers may be written outside of inference mode later
            self.inputs = inputs()
        self._fixed = fixed
        self._out: Any = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self, read: Callable[..., Any], pool: Any, first: bool) -> None:
        """Captures the call in a CUDA graph.

        Args:
            read: The call.
            pool: The memory pool that all graphs share.
            first: Whether no call of this part was captured before; it then runs twice to warm up.

        Raises:
            RuntimeError: If the call cannot be captured.
        """
        device = self.inputs[0].device
        current, (warmup_stream, capture_stream) = torch.cuda.current_stream(device), streams(device)
        # The current stream is set explicitly, because a capture that fails would leave its own stream set.
        with torch.cuda.device(device), torch.cuda.stream(current), with_plans():
            warmup_stream.wait_stream(current)
            try:
                # Initialization on the first call must not be captured.
                with torch.cuda.stream(warmup_stream):
                    if first:
                        self._run(read)
                    with RefusesSynchronization():
                        self._run(read)
            finally:
                current.wait_stream(warmup_stream)  # an eager call would write to the same cache slots next
            graph = torch.cuda.CUDAGraph()
            # The default capture stream of torch belongs to the first device that anything was captured on.
            with torch.cuda.graph(graph, pool=pool, stream=capture_stream, capture_error_mode="thread_local"):
                self._out = self._run(read)
            self._graph = graph

    def _run(self, read: Callable[..., Any]) -> Any:
        return read(*self.inputs, *self._fixed)

    def __call__(self, read: Callable[..., Any]) -> Any:
        if self._graph is None:
            return self._run(read)
        self._graph.replay()
        return self._out


class CUDAGraphTarget:
    """A target whose windows are read by captured calls, and those of its early exits; prompts and trees run eagerly.

    Args:
        target: The target, before its prefill.
        graphs: The graphs that are kept for later targets, those of an earlier one if `target` has taken over its
            tensors; None for graphs of this target alone.

    Attributes:
        give_back: Called when the target no longer uses the `graphs`; before that it is called when this is freed.
    """

    give_back: Callable[[], object] | None = None

    def __init__(self, target: Capturable, graphs: GraphCache | None = None) -> None:
        self.vocab_size = target.vocab_size
        self.device = target.device
        self.layers = target.layers
        self.short_cache = reads_short_cache(target)
        self.can_skip_layers = skips_layers(target)
        self.can_reuse_updates = reuses_updates(target)
        if isinstance(target, PromptTarget):
            self.read_prompts = target.read_prompts
        self._target = target
        self._keeps = graphs is not None
        self._graphs = graphs or GraphCache()
        # Finished rows stay in the target, so that its captured calls keep fitting, until an eager call drops them.
        self._live: list[int] | None = None  # the rows of the target that are running; None: all
        self._index: Tensor | None = None  # int64, their rows in the cache, the unconditional ones included
        self._collects = False  # whether the target keeps states of layers, which captured calls do not
        self._all_rows = True  # whether the target still has all of its rows, as captured calls require
        self._features: Tensor | None = None
        self._replayed: Tensor | None = None  # the features of the latest captured call, until it is replayed again
        # Those of the latest early exit, where it was captured, and the rows of them that are running.
        self._exit_features: tuple[Tensor, Tensor | None] | None = None
        self._slots_from: Tensor | None = None  # see `_first_slots`
        self._widths = set[tuple[int, EarlyExit | None]]()  # of the calls so far, with their part

    def prefill(self) -> Logits:
        logits = self._target.prefill()
        if self._keeps and self._graphs.tensors is None and hasattr(self._target, "tensors"):
            self._graphs.tensors = self._target.tensors()
        self._features = self._target.features()
        return logits

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        both = self._replay(tokens, at, part=early_exit)
        if both is not None:
            return split_cfg(both, self._cfg_factor(early_exit) == 2)
        if early_exit is not None:
            self._exit_features = None
            return self._eager().forward(tokens, at, early_exit)
        logits = self._eager().forward(tokens, at)
        self._features, self._replayed = self._target.features(), None
        return logits

    @property
    def reads_ahead(self) -> bool:
        """Whether `forward_ahead` can read, unless a call cannot be captured."""
        return self._all_rows and not self._collects and self._graphs.works()

    def forward_ahead(
        self, tokens: Tensor, at: NDArray[np.int64], into: Tensor | None = None, early_exit: EarlyExit | None = None
    ) -> Logits | None:
        """As `forward`, for positions that may be known on the device alone; see `mmspec.decoding.ahead.ReadsAhead`."""
        both = self._replay(tokens, at, into, early_exit)
        return None if both is None else split_cfg(both, self._cfg_factor(early_exit) == 2)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        logits = self._eager().forward_tree(tokens, at, tree, first, early_exit)
        if early_exit is None:
            self._features, self._replayed = self._target.features(), None
        else:
            self._exit_features = None
        return logits

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        self._eager().settle(at, path)

    def select_rows(self, row_ids: list[int]) -> None:
        before = self._target.rows if self._live is None else len(self._live)
        self._slots_from = None
        if self._copied_features() is not None:
            index = cfg_rows(row_ids, before, self._target.cfg_factor == 2, self.device)
            self._features = self.features()[index]
        if not self._all_rows or not self._graphs.works():
            self._all_rows = False
            self._target.select_rows(row_ids)
            self._leave()
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
        places = self._places()
        join_targets(self._target, other._eager(), [live[row] for row in row_ids])
        if self._places() != places:
            self._leave()
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
        if self._exit_features is None:
            return self._target.exit_features()
        features, live = self._exit_features
        return features if live is None else features[live]

    def head(self, features: Tensor) -> Tensor:
        return self._target.head(features)

    @property
    def fused_layers(self) -> tuple[int, ...]:
        return self._target.fused_layers

    def collect_layers(self, layers: Sequence[int]) -> None:
        """See `mmspec.decoding.target.LayerFeatureTarget`; all calls then run eagerly, also after rows have joined."""
        self._collects, self._all_rows = True, False
        self._target.collect_layers(layers)

    def layer_features(self) -> Tensor:
        return self._target.layer_features()

    def _cfg_factor(self, early_exit: EarlyExit | None) -> int:
        """2 if a call, or an early exit, also reads the unconditional rows, else 1."""
        return self._target.cfg_factor if early_exit is None or early_exit.guided else 1

    def _replay(
        self, tokens: Tensor, at: NDArray[np.int64], into: Tensor | None = None, part: EarlyExit | None = None
    ) -> Tensor | None:
        """A copy of the logits of the running rows, in `into` if given; None if the call has to run eagerly."""
        target, count = self._target, tokens.shape[1]
        if not self._all_rows or self._collects or not self._graphs.works(part) or count > _MAX_WIDTH:
            return None
        if part is not None and (part.recent or part.reuse):  # reads slots that the host chooses, or states of a call
            return None
        last = int(self._slots(at[:, None]).max())
        width = self._width(count, target.capacity - last, part)
        end = min(-(-(last + width) // _STEP) * _STEP, target.capacity)
        factor, rows = self._cfg_factor(part), target.rows
        call = self._graphs.call(target.read, rows * factor, width, end, self.device, part, target.cell)
        if call is None:
            return None
        self._widths.add((width, part))
        rows = rows if self._live is None else len(self._live)
        live = self._index if self._index is None or factor == target.cfg_factor else self._index[:rows]
        first, start = self._first_slots(width), on_device(at, self.device)[:, None]
        tokens_of, slots_of = call.inputs
        slots_of = slots_of.view(factor, target.rows, width)
        tokens_of = tokens_of.view(factor, target.rows, width, *target.cell)
        # Tokens of an earlier window stay in slots after the last one: what is read there is not used.
        if live is None:
            torch.add(first.expand(factor, rows, width), start, out=slots_of)
            tokens_of[:, :, :count].copy_(tokens.expand(factor, *tokens.shape))
        else:
            # Finished rows are read as well: capturing calls for fewer rows would cost more.
            slots_of[:, live[:rows]] = first + start
            tokens_of[:, live[:rows], :count] = tokens
        logits, features = call(target.read)
        if part is None:
            self._features, self._replayed = None, features[:, :count]
        else:
            self._exit_features = features[:, :count], live
        found = logits[:, :count] if live is None else logits[live, :count]
        if into is not None:
            return into.copy_(found)
        return found.clone() if live is None else found

    def _width(self, count: int, most: int, part: EarlyExit | None) -> int:
        """The width of the call that reads `count` tokens: that of an earlier call if one is less than twice as wide.

        The last windows of a sequence become narrower; capturing a call for each would take longer than it saves. What
        other targets have captured does not count: a call of another width rounds differently, and a seed would give
        other tokens after other calls.

        Args:
            count: Tokens per row.
            most: The largest width that fits the cache.
            part: The early exit; None is the whole model.
        """
        widths = (w for w, known in self._widths if known == part)
        return min((w for w in widths if count <= w < 2 * count and w <= most), default=count)

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
            self._features = self._copied_features()
            self._target.select_rows(self._live)
            self._live, self._index, self._all_rows = None, None, False
            self._slots_from = None
            self._leave()
        return self._target

    def _places(self) -> tuple[Any, ...]:
        """What is the same as long as captured calls read the target's tensors."""
        tensors = self._target.tensors() if hasattr(self._target, "tensors") else []
        return self._target.rows, self._target.capacity, *(t.data_ptr() for t in tensors)

    def _leave(self) -> None:
        """Gives up the graphs, and the tensors that they read: the target has moved to others."""
        if self._exit_features is not None:
            features, live = self._exit_features
            self._exit_features = features.clone(), live
        if self._graphs.works():
            self._graphs = GraphCache()
        else:  # nothing will be captured, now or later
            self._graphs.tensors = None
        self._keeps = False
        self._widths.clear()
        if self.give_back is not None:
            self.give_back()
