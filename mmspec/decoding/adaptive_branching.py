"""The shape of a tree, chosen from measured acceptance and measured seconds (`branch=auto`).

Sequoia (Chen et al. 2024, arXiv 2402.12374) and Parallel Prompt Decoding (arXiv 2405.18628) search the tree with the
most tokens per second on a device, from the acceptance rate of siblings by rank and the cost of calls by size. Both are
measured here while decoding, not before.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from math import prod
from statistics import median
from typing import Protocol

import numpy as np

from mmspec.decoding.batch import BatchState
from mmspec.environment.setup_work import setups
from mmspec.knobs import nodes
from mmspec.sampling.tree_rejection import Outcome, TreeVerdict

Branches = tuple[int, ...]

# Shapes that are measured first, in turn: depth and size must be told apart.
_FIRST: tuple[Branches, ...] = ((1, 1, 1, 1), (3, 2, 1), (2, 1), (4, 2, 2))
_MEASURED = 2  # windows of each of them
_KEPT = 8  # windows for which a shape is kept, so that a row of slow calls does not change it at once
_WIDEST = 8  # children of an entry
_PRIOR = 2.0  # tests that each sibling is taken to have had, as successful as the sibling before it


class Branching(Protocol):
    """Chooses the shape of each tree, before anything in it is sampled."""

    def choose(self) -> Branches:
        """The number of children of an entry at each depth of the next tree; called when drafting begins."""
        ...

    def observe(self, verdict: Outcome, state: BatchState, shape: Branches) -> None:
        """Called after verification of a tree of that shape, before the batch advances."""
        ...


class FixedBranching:
    """Always the same shape.

    Args:
        branch: The number of children of an entry at each depth.
    """

    def __init__(self, branch: Sequence[int]) -> None:
        self._branch = tuple(branch)

    def choose(self) -> Branches:
        return self._branch

    def observe(self, verdict: Outcome, state: BatchState, shape: Branches) -> None:
        pass


class AdaptiveBranching:
    """The shape with the most tokens per second, by what earlier windows accepted and took.

    A shape depends on windows before it alone, so that decoding stays exact. It depends on the clock, so that a seed
    gives other tokens of the same distribution in another run.

    The chance that a sibling is accepted, if its parent was and the siblings before it were not, is measured by rank
    and taken to be the same at each depth. Seconds of a window, draft and verification, are a linear function of depth
    and nodes that is fitted to the medians of the shapes so far. Runs in several threads may share it.

    Args:
        largest: The most nodes of a tree, from 1.
        deepest: Its greatest depth, from 1.
        clock: Returns the current time in seconds.
    """

    def __init__(self, largest: int, deepest: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._shapes = _shapes(largest, deepest)
        self._sizes = np.array([_size(shape) for shape in self._shapes])
        self._counts = np.array([[*shape, *[0] * (deepest - len(shape))] for shape in self._shapes])
        self._first = [shape for shape in _FIRST if shape in self._shapes] or [self._shapes[0]]
        self._seconds: dict[Branches, deque[float]] = defaultdict(lambda: deque(maxlen=16))
        self._tested = np.zeros(_WIDEST)
        self._accepted = np.zeros(_WIDEST)
        self._shape, self._left, self._windows = self._first[0], 0, 0
        self._began, self._setups, self._rows = 0.0, 0, 0

    @property
    def best(self) -> Branches:
        """The shape with the most tokens per second."""
        hit = 1 - np.cumprod(np.concatenate([[1.0], 1 - self.acceptance()]))  # whether one of n siblings is accepted
        tokens = 1 + hit[self._counts].cumprod(1).sum(1)
        cost = self._costs()
        seconds = cost[0] + self._sizes @ cost[1:]
        return self._shapes[int((tokens / np.maximum(seconds, 1e-9)).argmax())]

    def acceptance(self) -> np.ndarray:
        """The chance of each sibling by rank, float64 [8]."""
        chance, before = np.zeros(_WIDEST), 1.0
        for rank in range(_WIDEST):
            before = (self._accepted[rank] + _PRIOR * before) / (self._tested[rank] + _PRIOR)
            chance[rank] = before
        return chance

    def choose(self) -> Branches:
        with self._lock:
            if (first := self._windows // _MEASURED) < len(self._first):
                self._shape = self._first[first]
            elif not self._left:
                self._shape, self._left = self.best, _KEPT
            self._setups, self._began = setups(), self._clock()
            return self._shape

    def observe(self, verdict: Outcome, state: BatchState, shape: Branches) -> None:
        if not isinstance(verdict, TreeVerdict):
            return  # a plain step
        with self._lock:
            seconds = self._clock() - self._began
            rows = state.running()
            # The first window with so many rows and one that compiled or captured something are not measured.
            if len(rows) == self._rows and setups() == self._setups:
                self._seconds[shape].append(seconds)
                self._windows += 1
                self._left = max(self._left - 1, 0)
            self._rows = len(rows)
            self._count(
                verdict.path.host[rows], verdict.accepted[rows], state.layout.length - state.length[rows], shape
            )

    def _count(self, path: np.ndarray, accepted: np.ndarray, room: np.ndarray, shape: Branches) -> None:
        """Counts the siblings that were tested along the path of each row, up to the row's end."""
        order = np.zeros_like(accepted)  # of the parent among the entries of its depth
        level = 1  # the first node of this depth
        for depth, count in enumerate(shape):
            inside = room > depth
            self._tested[:count] += int((inside & (accepted == depth)).sum())
            walks = inside & (accepted > depth)
            next_order = path[:, depth] - level
            ranks = np.bincount((next_order - order * count)[walks], minlength=_WIDEST)
            self._accepted += ranks
            self._tested += ranks[::-1].cumsum()[::-1]  # a sibling is tested after all before it
            level += prod(shape[: depth + 1])
            order = next_order

    def _costs(self) -> np.ndarray:
        """Seconds of a window: the constant, that of each level, and that of each node, float64 [3]; none negative."""
        shapes = [shape for shape, seconds in self._seconds.items() if seconds]
        if len(shapes) < 3:
            return np.array([1.0, 0.1, 0.01])
        sizes = np.array([[1.0, *_size(shape)] for shape in shapes])
        took = np.array([median(self._seconds[shape]) for shape in shapes])
        used = [0, 1, 2]
        while True:  # costs that come out negative are noise, and are left out
            found = np.linalg.lstsq(sizes[:, used], took, rcond=None)[0]
            if (found >= 0).all() or len(used) == 1:
                break
            used.pop(int(found.argmin()))
        cost = np.zeros(3)
        cost[used] = found
        return cost


def _shapes(largest: int, deepest: int) -> list[Branches]:
    """All shapes whose entries have no more children than those above them, a single node first."""
    found: list[Branches] = []
    begun: list[Branches] = [(width,) for width in range(1, min(largest, _WIDEST) + 1)]
    while begun:
        shape = begun.pop(0)
        found.append(shape)
        if len(shape) < deepest:
            longer = ((*shape, width) for width in range(1, shape[-1] + 1))
            begun += [s for s in longer if nodes(s) <= largest]
    return found


def _size(shape: Branches) -> np.ndarray:
    """The depth and the number of nodes of a shape, float64 [2]."""
    return np.array([len(shape), nodes(shape)], dtype=np.float64)
