"""CUDA graphs for the windows of a target: one graph per window width and cache length.

A call of a model launches hundreds of kernels, and at one token per row each takes less time than its launch. Here the
call of a given width and a given cache length has static input buffers. On a CUDA device it is captured once and then
replayed, so that the host only copies tokens and slots. The part of the cache that is read grows in steps of 128 slots;
slots after a row's last one are masked.

Prompts, trees and early exits of trees and of short caches run eagerly on the same cache. So does every call of a model
that cannot be captured, such as one that synchronizes with the device. `MMSPEC_CUDA_GRAPHS=off` turns graphs off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.captured_calls import MAX_WIDTH, GraphCache, Read
from mmspec.decoding.rows import join_rows, select_rows
from mmspec.decoding.target import (
    EarlyExit,
    ExitFeatureTarget,
    LayerFeatureTarget,
    PromptTarget,
    RereadsWindows,
    SupportsTreeEarlyExit,
    cache_bytes,
    prompt_padding,
    reads_short_cache,
    reuses_updates,
    skips_layers,
)
from mmspec.sampling.logits import Logits, cfg_rows, split_cfg
from mmspec.sampling.numbers import Numbers, on_device
from mmspec.sampling.rows import put_rows
from mmspec.sampling.tree import Tree

_STEP = 128  # slots by which the part of the cache that is read grows


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
        self,
        tokens: Tensor,
        slots: Tensor,
        end: int,
        early_exit: EarlyExit | None = None,
        states: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Reads a window; returns logits [R, W, *cell, V] and features [R, W, D].

        Args:
            tokens: int64 [R, W, *cell], the unconditional rows included, unless they do not run in the early exit.
            slots: int64 [R, W], the cache slot of each token.
            end: The number of cache slots to read; greater than every slot whose logits are used.
            early_exit: The part that runs, whose `recent` is 0; None for all.
            states: [R, W, layers * D], where a call of the whole model puts the states of `collect_layers`; an early
                exit with `reuse` reads them there. None if there are none.
        """
        ...

    def set_layer_features(self, states: Tensor) -> None:
        """Sets the states of the last full call, which the next early exit with `reuse` reads, [R, W, layers * D]."""
        ...


class _Latest:
    """What the latest call has given besides its logits, [R, W, D]; of a captured call it is copied if somebody asks.

    Attributes:
        replayed: That of a captured call, until it is replayed again.
    """

    def __init__(self) -> None:
        self.replayed: Tensor | None = None
        self._own: Tensor | None = None

    def set(self, own: Tensor | None, replayed: Tensor | None = None) -> None:
        """Sets what is the caller's, or what the next replay overwrites."""
        self._own, self.replayed = own, replayed

    def get(self, index: Tensor | None) -> Tensor | None:
        """That of the rows that are running; `index` has their rows in a captured call, None if these are all."""
        if self.replayed is not None:
            self.set(self.replayed.clone() if index is None else self.replayed[index])
        return self._own


class CUDAGraphTarget:
    """A target whose windows are read by captured calls, and those of its early exits; prompts and trees run eagerly.

    Args:
        target: The target, before its prefill.
        graphs: The graphs that are kept for later targets, those of an earlier one if `target` has taken over its
            tensors; None for graphs of this target alone.

    Attributes:
        give_back: Called when the target no longer uses the `graphs`; before that it is called when this is freed.
    """

    ROWS = ("_target",)
    SAME = ()

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
        if isinstance(target, RereadsWindows):
            self.reread = partial(_reread, ref(self), target)  # a cycle would keep graphs from being given back
        self._target = target
        self._keeps = graphs is not None
        self._graphs = graphs or GraphCache()
        # Finished rows stay in the target, so that its captured calls keep fitting, until an eager call drops them.
        self._live: list[int] | None = None  # the rows of the target that are running; None: all
        self._index: Tensor | None = None  # int64, their rows in the cache, the unconditional ones included
        self._collected: tuple[int, ...] = ()
        self._all_rows = True  # whether the target still has all of its rows, as captured calls require
        self._features, self._states = _Latest(), _Latest()
        self._like: Tensor | None = None  # states that the target has given, as long and in the type as others
        self._states_width = 0  # of the latest full call, where its states are where graphs read them; else 0
        # Those of the latest early exit, where it was captured, and the rows of them that are running.
        self._exit_features: tuple[Tensor, Tensor | None] | None = None
        self._slots_from: Tensor | None = None  # see `_first_slots`
        self._widths = set[tuple[int, EarlyExit | None]]()  # of the calls so far, with their part

    def prefill(self) -> Logits:
        logits = self._target.prefill()
        if self._keeps and self._graphs.tensors is None and hasattr(self._target, "tensors"):
            self._graphs.tensors = self._target.tensors()
        self._take_features()
        # Rows may leave before: a draft model is read where it is needed first.
        live = self._live
        if live is None:
            return logits
        return Logits(logits.cond[live], None if logits.uncond is None else logits.uncond[live])

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        both = self._replay(tokens, Numbers(at), early_exit)
        if both is not None:
            return split_cfg(both, self._cfg_factor(early_exit) == 2)
        if early_exit is not None:
            self._exit_features = None
            target = self._eager()
            if early_exit.reuse and self._states_width:
                target.set_layer_features(self.layer_features())
            return target.forward(tokens, at, early_exit)
        logits = self._eager().forward(tokens, at)
        self._take_features()
        return logits

    @property
    def reads_ahead(self) -> bool:
        """Whether `forward_ahead` can read, unless a call cannot be captured."""
        return self._all_rows and self._graphs.works()

    def forward_ahead(self, tokens: Tensor, at: Numbers, early_exit: EarlyExit | None = None) -> Logits | None:
        """As `forward`, for positions that only the device may know; see `mmspec.decoding.target.ReadsAhead`."""
        both = self._replay(tokens, at, early_exit)
        return None if both is None else split_cfg(both, self._cfg_factor(early_exit) == 2)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        logits = self._eager().forward_tree(tokens, at, tree, first, early_exit)
        if early_exit is None:
            self._take_features()
        else:
            self._exit_features = None
        return logits

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        self._eager().settle(at, path)

    def select_rows(self, row_ids: list[int]) -> None:
        before = self._target.rows if self._live is None else len(self._live)
        self._slots_from = None
        index = cfg_rows(row_ids, before, self._target.cfg_factor == 2, self.device)
        for latest in (self._features, self._states):
            found = latest.get(self._index)
            if found is not None:
                latest.set(found[index])
        if not self._all_rows or not self._graphs.works():
            self._eager()
            self._all_rows = False
            select_rows(self._target, row_ids, before)
            self._leave()
        else:
            self._live = row_ids if self._live is None else [self._live[row] for row in row_ids]
            self._index = cfg_rows(self._live, self._target.rows, self._target.cfg_factor == 2, self.device)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)

    def join(self, other: CUDAGraphTarget, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """Captured calls keep fitting where the rows find free places."""
        live = list(range(self._target.rows)) if self._live is None else list(self._live)
        factor, before = self._target.cfg_factor, len(live)
        self._slots_from = None
        for ours, theirs in ((self._features, other._features), (self._states, other._states)):
            own, new = ours.get(self._index), theirs.get(other._index)
            if own is not None and new is not None:
                ours.set(put_rows(own[:, -1:], new[:, -1:], row_ids, cfg_factor=factor))
        free = sorted(set(range(self._target.rows + len(row_ids))) - set(live))
        live += [free.pop(0) for row in range(max(row_ids) + 1 - before)]
        places = self._places()
        rows = self._target.rows
        join_rows(self._target, other._eager(), [live[row] for row in row_ids], state, other_state, rows)
        if self._places() != places:
            self._leave()
        self._all_rows = True
        whole = live == list(range(self._target.rows))
        self._live = None if whole else live
        self._index = None if whole else cfg_rows(live, self._target.rows, factor == 2, self.device)

    def prompt_padding(self) -> NDArray[np.int64]:
        return prompt_padding(self._target, self._target.rows * self._target.cfg_factor)

    def features(self) -> Tensor:
        found = self._features.get(self._index)
        assert found is not None, "nothing has been read yet"
        return found

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
        self._collected = tuple(layers)
        self._target.collect_layers(layers)

    def layer_features(self) -> Tensor:
        found = self._states.get(self._index)
        assert found is not None, "nothing has been read yet"
        return found

    def _take_features(self) -> None:
        """Takes the features of a call that was not captured."""
        index = slice(None) if self._index is None else self._index
        self._features.set(self._target.features()[index])
        if self._collected:
            self._like, self._states_width = self._target.layer_features()[index], 0
            self._states.set(self._like)

    def _cfg_factor(self, early_exit: EarlyExit | None) -> int:
        """2 if a call, or an early exit, also reads the unconditional rows, else 1."""
        return self._target.cfg_factor if early_exit is None or early_exit.guided else 1

    def _replay(self, tokens: Tensor, at: Numbers, part: EarlyExit | None) -> Tensor | None:
        """A copy of the logits of the running rows; None if the call has to run eagerly."""
        target, count = self._target, tokens.shape[1]
        if not self._all_rows or not self._graphs.works(part) or count > MAX_WIDTH:
            return None
        reuses = part is not None and part.reuse
        if part is not None and part.recent:  # reads slots that the host chooses
            return None
        if reuses and count > self._states_width:  # the states are those of a call that was not captured
            return None
        last = int(self._slots(at.host[:, None]).max())
        # What reads the states of a full call has its width, so that both round alike.
        width = self._states_width if reuses else self._width(count, target.capacity - last, part)
        end = min(-(-(last + width) // _STEP) * _STEP, target.capacity)
        factor, rows = self._cfg_factor(part), target.rows
        layers, read = self._collected if part is None or reuses else (), self._reading(part, width)
        call = self._graphs.call(read, rows * factor, width, end, self.device, part, target.cell, layers)
        if call is None:
            return None
        self._widths.add((width, part))
        rows = rows if self._live is None else len(self._live)
        live = self._index if self._index is None or factor == target.cfg_factor else self._index[:rows]
        first, start = self._first_slots(width), at.on(self.device)[:, None]
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
        logits, features = call(read)
        if part is None:
            self._features.set(None, features[:, :count])
            if self._collected:
                self._states.set(None, self._place(count))
                self._states_width = width
        else:
            self._exit_features = features[:, :count], live
        found = logits[:, :count] if live is None else logits[live, :count]
        return found.clone() if live is None else found

    def _reading(self, part: EarlyExit | None, width: int) -> Read:
        """`Capturable.read` of a window, with the place of the states that it collects or reads."""
        if not self._collected or (part is not None and not part.reuse):
            return self._target.read
        if part is not None and (width, part) not in self._widths:
            self._graphs.expect(part)
        return partial(self._target.read, states=self._place(width))

    def _place(self, width: int) -> Tensor:
        """Where captured calls put the states of layers, [R, W, layers * D]."""
        assert self._like is not None, "the prompts have been read"
        return self._graphs.states(self._collected, self._target.rows * self._target.cfg_factor, width, self._like)

    def _width(self, count: int, most: int, part: EarlyExit | None) -> int:
        """The width of the call that reads `count` tokens: an earlier call's if that is less than twice as wide."""
        # The last windows of a sequence become narrower; capturing a call for each would take longer than it saves.
        # What other targets have captured does not count: a call of another width rounds differently, and a seed would
        # give other tokens after other calls.
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
            for latest in (self._features, self._states):
                latest.get(self._index)
            select_rows(self._target, self._live, self._target.rows)
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
        if self._states_width:  # the next early exit reads states of the latest captured call
            self._target.set_layer_features(self.layer_features())
        self._states_width = 0
        self._widths.clear()
        if self.give_back is not None:
            self.give_back()


def _reread(
    own: ref[CUDAGraphTarget],
    target: RereadsWindows,
    tokens: Tensor,
    at: NDArray[np.int64],
    states: Tensor,
    early_exit: EarlyExit,
) -> Logits:
    """The target has to drop the rows that have ended."""
    captured = own()
    assert captured is not None, "it is the caller's"
    captured._eager()
    return target.reread(tokens, at, states, early_exit)
