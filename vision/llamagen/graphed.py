"""LlamaGen's window step with shapes that stay the same, so that a CUDA graph can be replayed for it.

A forward call launches some 400 kernels, and at one token each takes less time than its launch. Here a call of a given
width reads a cache of a given length through buffers of its own: on a CUDA device it is recorded once and then
replayed, and the host does nothing but copy tokens and slots in. The part of the cache that is read grows in steps of
128 slots; what lies behind a row's last slot is masked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.drafters.first_layers import Part
from mmspec.law import Logits
from mmspec.target import split_sides
from mmspec.tree import Tree
from mmspec.vision.llamagen.target import LlamaGenTarget

_STEP = 128  # slots by which the part of the cache that is read grows


class _Call:
    """One width, one length of cache: tokens and slots int64 [R, W] in, logits and features out."""

    def __init__(self, read: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]], rows: int, width: int, end: int,
                 device: torch.device) -> None:  # fmt: skip
        self.tokens = torch.zeros(rows, width, dtype=torch.int64, device=device)
        self.slots = torch.arange(width, device=device).repeat(rows, 1) + (end - width)
        self.out: tuple[Tensor, Tensor] | None = None
        self._read = lambda: read(self.tokens, self.slots, end)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> tuple[Tensor, Tensor]:
        if not self.tokens.is_cuda:
            return self._read()
        if self._graph is None:
            # What is set up on a first call, such as a library's workspace, must not be recorded.
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._read()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self.out = self._read()
        self._graph.replay()
        assert self.out is not None
        return self.out


class GraphedTarget:
    """A LlamaGen whose windows are read by recorded calls; everything else is the target's own.

    Logits stay as they are until the call after next: that long a carried draft refers to them.

    **Arguments:**

    - `target`: with its conditions given, not read yet.
    """

    def __init__(self, target: LlamaGenTarget) -> None:
        self.vocab_size = target.vocab_size
        self.device = target.device
        self.layers = target.layers
        self._target = target
        self._calls: dict[tuple[int, int, int], _Call] = {}
        self._count = 0
        self._live: list[int] | None = None  # rows that run on, where some do not
        self._features: Tensor | None = None

    def prefill(self) -> Logits:
        return self._target.prefill()

    def forward(self, tokens: Tensor, at: NDArray[np.int64], part: Part | None = None) -> Logits:
        if part is not None:
            return self._whole().forward(tokens, at, part)
        target, width = self._target, tokens.shape[1]
        self._count += 1
        last = int(at.max()) + width
        end = target.end(-(-target.slot(last) // _STEP) * _STEP)
        key = width, end, self._count % 2
        if key not in self._calls:
            self._calls[key] = _Call(target.read, target.rows * target.sides, width, end, self.device)
        call, sides = self._calls[key], target.sides
        slots = torch.from_numpy(target.slot(at[:, None] + np.arange(width)))
        if self.device.type == "cuda":
            slots = slots.pin_memory()
        if self._live is None:
            call.tokens.copy_(torch.cat([tokens] * sides))
            call.slots.copy_(torch.cat([slots] * sides), non_blocking=True)
            logits, self._features = call()
            return split_sides(logits, sides == 2)
        # Rows that have ended are read along: recording calls anew would cost more.
        rows = torch.tensor([row + side * target.rows for side in range(sides) for row in self._live])
        rows = rows.to(self.device)
        call.tokens[rows] = torch.cat([tokens] * sides)
        call.slots[rows] = torch.cat([slots] * sides).to(self.device)
        logits, features = call()
        self._features = features[rows]
        return split_sides(logits[rows], sides == 2)

    def keep(self, rows: list[int]) -> None:
        self._live = rows if self._live is None else [self._live[row] for row in rows]
        self._features = None

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, part: Part | None = None
    ) -> Logits:
        return self._whole().forward_tree(tokens, at, tree, first, part)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        self._whole().settle(at, path)

    def features(self) -> Tensor:
        return self._target.features() if self._features is None else self._features

    def head(self, features: Tensor) -> Tensor:
        return self._target.head(features)

    def _whole(self) -> LlamaGenTarget:
        """The target without the rows that have ended; its cache has moved, so that recorded calls are void."""
        if self._live is not None:
            self._target.keep(self._live)
            self._live = None
            self._calls.clear()
        self._features = None
        return self._target
