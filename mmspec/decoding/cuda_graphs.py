"""A target whose windows are read by calls of fixed shapes, so that a CUDA graph can be replayed for each.

A call of a model launches hundreds of kernels, and at one token each takes less time than its launch. Here a call of a
given width reads a cache of a given length through buffers of its own: on a CUDA device it is recorded once and then
replayed, and the host does nothing but copy tokens and slots in. The part of the cache that is read grows in steps of
128 slots; what lies after a row's last slot is masked.

Prompts, trees and first layers are read the ordinary way, on the same cache. So is everything where a call cannot be
recorded, which one that waits for the device cannot. `MMSPEC_RECORD=off` turns recording off.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.target import EarlyExit, FeatureTarget, SupportsTreeEarlyExit
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits, cfg_rows, split_cfg
from mmspec.sampling.tree import Tree

VARIABLE = "MMSPEC_RECORD"
_STEP = 128  # slots by which the part of the cache that is read grows
_WIDEST = 128  # tokens per row; wider calls keep a device busy as they are, and a recording holds on to their memory

# Tokens and slots int64 [R, W] and how many slots of the cache are read -> logits [R, W, V] and features [R, W, D].
Read = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Capturable(SupportsTreeEarlyExit, FeatureTarget, Protocol):
    """A target that keeps what it has read in slots, and can be read without a look at the values of its arguments."""

    @property
    def rows(self) -> int:
        """How many rows run."""
        ...

    @property
    def sides(self) -> int:
        """2 with guidance, else 1."""
        ...

    @property
    def capacity(self) -> int:
        """Slots per row."""
        ...

    def slot(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of positions."""
        ...

    def read(self, tokens: Tensor, slots: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Logits [R, W, V] and features [R, W, D] of tokens int64 [R, W] of both sides.

        Args:
            slots: int64 [R, W], where the tokens go.
            end: How many slots are read; at least one past the last slot that anybody asks about.
        """
        ...


def wanted(device: torch.device) -> bool:
    """Whether calls are to be recorded on a device: not under autocast, whose casts of weights end with it.

    Raises:
        ArgumentError: For a variable that says neither.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "off"):
        raise ArgumentError(f"{VARIABLE}={value!r} is not allowed; it must be off, or unset: recorded on CUDA devices")
    return device.type == "cuda" and not value and not torch.is_autocast_enabled(device.type)


class GraphCache:
    """Recorded calls, by width and length of cache. What one gives has to be copied before the next: they share memory.

    `works`: False once a call could not be recorded.
    """

    def __init__(self) -> None:
        self.works = True
        self._calls: dict[tuple[int, int], _Call] = {}
        self._pool: Any = None

    def width(self, count: int, most: int) -> int:
        """The width of the call that reads so many tokens: of a recorded one up to twice as wide, and at most `most`.

        The last windows of a sequence grow narrower; recording a call for each would take longer than it saves.
        """
        return min((w for w, _ in self._calls if count <= w < 2 * count and w <= most), default=count)

    def call(self, read: Read, batch_size: int, width: int, end: int, device: torch.device) -> _Call | None:
        """The call of that shape; None where it cannot be recorded."""
        found = self._calls.get((width, end))
        if found is None:
            found = _Call(batch_size, width, end, device)
            if device.type == "cuda":
                try:
                    self._pool = self._pool or torch.cuda.graph_pool_handle()
                    found.record(read, self._pool, first=not self._calls)
                except RuntimeError:  # what torch and CUDA raise when something must not be recorded
                    self.works = False
                    return None
            self._calls[width, end] = found
        return found


class _Call:
    """One width, one length of cache: tokens and slots int64 [R, W] in, logits and features out."""

    def __init__(self, batch_size: int, width: int, end: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # they may outlive the mode they are made in
            self.tokens = torch.zeros(batch_size, width, dtype=torch.int64, device=device)
            self.slots = torch.arange(width, device=device).repeat(batch_size, 1) + (end - width)
        self._end = end
        self._out: tuple[Tensor, Tensor] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def record(self, read: Read, pool: Any, first: bool) -> None:
        """Records a call.

        Raises:
            RuntimeError: When the call cannot be recorded.
        """
        device = self.tokens.device
        now, (side, recorder) = torch.cuda.current_stream(device), _streams(device)
        # The stream is named although it is the current one: a recording that fails leaves its own after.
        with torch.cuda.device(device), torch.cuda.stream(now):
            side.wait_stream(now)
            try:
                # What is set up on a first call must not be recorded.
                with torch.cuda.stream(side):
                    if first:
                        read(self.tokens, self.slots, self._end)
                    with _no_waiting():
                        read(self.tokens, self.slots, self._end)
            finally:
                now.wait_stream(side)  # it writes where the ordinary way, taken instead, writes next
            graph = torch.cuda.CUDAGraph()
            # torch's own stream to record on belongs to the first device that anything was recorded on.
            with torch.cuda.graph(graph, pool=pool, stream=recorder, capture_error_mode="thread_local"):
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
    """Where calls of a device are tried, and recorded. Always the same: libraries keep a workspace for each stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Inside it, what makes the host wait for the device raises: found here it does no harm, in a recording it does."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it may not find everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class CUDAGraphTarget:
    """A target whose windows are read by recorded calls; everything else is the target's own.

    Args:
        target: With its prompts given, not read yet.
        recording: Calls that an earlier target recorded, whose tensors this one has taken over; None begins anew.
    """

    def __init__(self, target: Capturable, recording: GraphCache | None = None) -> None:
        self.vocab_size = target.vocab_size
        self.device = target.device
        self.layers = target.layers
        self._target = target
        self._graphs = recording or GraphCache()
        self._live: list[int] | None = None  # rows that run on, where some do not and are still read along
        self._index: Tensor | None = None  # where they are, on both sides
        self._whole = True  # whether all rows are in the target still, so that recorded calls fit it
        self._features: Tensor | None = None

    def prefill(self) -> Logits:
        logits = self._target.prefill()
        self._features = self._target.features()
        return logits

    def forward(self, tokens: Tensor, at: NDArray[np.int64], part: EarlyExit | None = None) -> Logits:
        if part is not None:
            return self._ordinary().forward(tokens, at, part)
        found = self._replayed(tokens, at)
        if found is None:
            logits = self._ordinary().forward(tokens, at)
            self._features = self._target.features()
            return logits
        both, self._features = found
        return split_cfg(both, self._target.sides == 2)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, part: EarlyExit | None = None
    ) -> Logits:
        logits = self._ordinary().forward_tree(tokens, at, tree, first, part)
        if part is None:
            self._features = self._target.features()
        return logits

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        self._ordinary().settle(at, path)

    def select_rows(self, row_ids: list[int]) -> None:
        before = self._target.rows if self._live is None else len(self._live)
        if self._features is not None:
            index = cfg_rows(row_ids, before, self._target.sides == 2, self._features.device)
            self._features = self._features[index]
        if not self._whole or not self._graphs.works:
            self._whole = False
            self._target.select_rows(row_ids)
        else:
            self._live = row_ids if self._live is None else [self._live[row] for row in row_ids]
            self._index = cfg_rows(self._live, self._target.rows, self._target.sides == 2, self.device)

    def features(self) -> Tensor:
        assert self._features is not None, "nothing has been read yet"
        return self._features

    def head(self, features: Tensor) -> Tensor:
        return self._target.head(features)

    def _replayed(self, tokens: Tensor, at: NDArray[np.int64]) -> tuple[Tensor, Tensor] | None:
        """Logits and features of the rows that run, copied; None where that takes the ordinary way."""
        target, count = self._target, tokens.shape[1]
        if not self._whole or not self._graphs.works or count > _WIDEST:
            return None
        last = int(target.slot(at).max())
        width = self._graphs.width(count, target.capacity - last)
        end = min(-(-(last + width) // _STEP) * _STEP, target.capacity)
        sides, rows = target.sides, target.rows
        call = self._graphs.call(target.read, rows * sides, width, end, self.device)
        if call is None:
            return None
        slots = torch.from_numpy(np.tile(target.slot(at[:, None] + np.arange(width)), (sides, 1)))
        if self.device.type == "cuda":
            slots = slots.pin_memory()  # the host need not wait until it is copied
        tokens = F.pad(tokens, (0, width - count)).repeat(sides, 1)
        live = self._index
        if live is None:
            call.tokens.copy_(tokens)
            call.slots.copy_(slots, non_blocking=True)
            logits, features = call(target.read)
            return logits[:, :count].clone(), features[:, :count].clone()
        # Rows that have ended are read along: recording calls anew would cost more.
        call.tokens[live] = tokens
        call.slots[live] = slots.to(self.device, non_blocking=True)
        logits, features = call(target.read)
        return logits[live, :count], features[live, :count]

    def _ordinary(self) -> Capturable:
        """The target without the rows that have ended: where they leave, its cache moves and no recorded call fits."""
        if self._live is not None:
            self._target.select_rows(self._live)
            self._live, self._index, self._whole = None, None, False
        return self._target
