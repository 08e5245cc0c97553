"""The state of a batch: the tokens and lengths of its rows, and which rows are still running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.step import Step, TokensSoFar
from mmspec.decoding.window_inputs import RECENT, WindowInputs, split_numbers
from mmspec.sampling.numbers import Numbers, on_device, upload
from mmspec.sampling.rng import CounterRNG, WindowRNG
from mmspec.sampling.rows import put_host_rows, put_rows
from mmspec.sampling.sampler import ops_on
from mmspec.sampling.tree import Tree, TreeDraws


class BatchState:
    """The state of a batch whose rows advance independently.

    B is the number of rows that the target reads. A row that has finished stays among them, gains nothing and does not
    count, until it is dropped or a row that joins takes its place (`mmspec.decoding.rows`).

    Args:
        seeds: One per row.
        layout: The sequence to generate.
        window: The widest window, in tokens.
        device: Of the tokens.
        limits: The number of tokens at which each row ends, at most the length of the layout; None is that length.

    Attributes:
        ids: Host int64 [B], the indices of the rows in the request.
        layout: The sequence to generate, with the constraints of the B rows.
        length: Host int64 [B], the number of tokens of each row.
        is_running: Host bool [B], False for rows that have finished.
        rng: The random numbers of the rows.
        ops: What is done with the probabilities of its windows, by kernels or in torch.
    """

    ROWS = ("ids", "is_running", "_index", "rng", "layout")
    SAME = ("layout.kept_by_rows",)

    def __init__(
        self,
        seeds: Sequence[int],
        layout: Layout,
        window: int,
        device: torch.device,
        limits: Sequence[int] | None = None,
    ) -> None:
        count = len(seeds)
        self.layout = layout
        self.device = device
        self.ops = ops_on(device)
        self.rng = CounterRNG(seeds, device)
        self.ids = np.arange(count)
        self._lengths = np.zeros(count, dtype=np.int64)
        self._limits = np.full(count, layout.length) if limits is None else np.array(limits, dtype=np.int64)
        self._ended = np.zeros(count, dtype=bool)
        self._stops, self._cuts = _of_rows(layout.stops, count), _of_rows(layout.cut, count)
        self.is_running = np.ones(count, dtype=bool)
        # A window may reach past the end; tokens written there are never read.
        shape = (count, layout.length + window, *layout.cell)
        self._tokens = torch.full(shape, layout.pad, dtype=layout.dtype, device=device)
        self._index = torch.arange(count, device=device)[:, None]
        self._window: WindowInputs | None = None
        self._row_limits: Numbers | None = None  # see `limits`
        self._host: NDArray[np.int64] | None = None  # the tokens on the host, see `on_host`

    @property
    def length(self) -> NDArray[np.int64]:
        return self._lengths[self.ids]

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Which rows of the request their limit cut off, host bool [rows]; see `row_truncated`."""
        return np.array([self.row_truncated(row) for row in range(len(self._lengths))], dtype=bool)

    def row_truncated(self, row: int) -> bool:
        """Whether a row of the request reached its limit although no token ended it, or as `Layout.cut` tells.

        A sequence that nothing ends has a fixed length and is not truncated.
        """
        at_limit, ended, cut = self._lengths[row] >= self._limits[row], self._ended[row], self._cuts[row]
        if cut is None or not (at_limit or ended):
            return bool(at_limit and not ended and self.layout.may_end)
        return cut(self._tokens[row, : self._lengths[row]])

    @property
    def remaining(self) -> int:
        """The number of tokens that the longest running row still lacks."""
        left = (self._limits - self._lengths)[self.ids]
        return int(left[self.is_running].max(initial=0))

    def positions(self, width: int) -> NDArray[np.int64]:
        """The next `width` positions of each row, host int64 [B, width]."""
        return self.length[:, None] + np.arange(width)

    def window(self, width: int, iteration: NDArray[np.int64]) -> WindowRNG:
        """Begins a window of `width` tokens: its random numbers, with its positions.

        On a device other than a CPU what the window needs there is copied now, all at once.

        Args:
            width: W.
            iteration: Host int64 [B, 1], of the random numbers.
        """
        return self.window_with(width, iteration, [])[0]

    def window_with(
        self, width: int, iteration: NDArray[np.int64], others: Sequence[NDArray[np.int64]]
    ) -> tuple[WindowRNG, list[Numbers]]:
        """As `window`; other host arrays that the window needs, int64, are copied with its own."""
        positions = self.positions(width)
        if self.device.type == "cpu":
            return self.rng.window(positions, iteration), upload(others, self.device)
        self.close()  # a window that an error has left open
        iterations = np.broadcast_to(iteration, positions.shape)
        needed = [self.length - 1, self.recent(RECENT).host, positions, iterations]
        before, recent, of_window, of_numbers, *copies = upload([*needed, *others], self.device)
        self._window = WindowInputs(before, recent, of_window, of_numbers)
        return self._window.draws(self.rng), copies

    def tree_draws(
        self, tree: Tree, iteration: NDArray[np.int64], others: Sequence[NDArray[np.int64]] = ()
    ) -> tuple[TreeDraws, list[Numbers]]:
        """Begins a window with a tree: its positions and its random numbers; see `window_with`."""
        host = self.length[:, None] + tree.depth
        own = [host, host[:, 1:] - 1, np.broadcast_to(iteration, (len(host), tree.depth.shape[1] - 1))]
        draws, (after, at, of_nodes, *copies) = self.window_with(tree.height + 1, iteration, [*own, *others])
        return TreeDraws(tree, draws, after, at, of_nodes), copies

    def positions_after(self, depth: NDArray[np.int64]) -> Numbers:
        """The positions after entries of a tree, [B, n], of their depths, host int64 [B or 1, n].

        Those of entries of one depth, or of depths one after another, are parts of the open window, if there is one.
        """
        if self._window is None:
            return Numbers(self.length[:, None] + depth)
        return self._window.positions_after(self.length, depth)

    def positions_after_nodes(self, tree: Tree, first: int, last: int) -> Numbers:
        """The positions after the entries `first` to `last - 1` of a tree, [B, last - first]."""
        if not tree.has_known_depths:
            return tree.positions_after(self.length, first, last)
        depth = tree.depth[:, first:last]
        return self.positions_after(np.broadcast_to(depth, (len(self.ids), last - first)))

    def follow(self, tokens: Tensor, accepted: Tensor, width: int) -> WindowRNG:
        """Appends the tokens of the open window on the device, and begins the next one there.

        The host does not know yet how many tokens the rows have gained: its numbers in the arrays of the next window
        are the largest ones possible. `gain` must be called next, once it knows.

        Args:
            tokens: int64 [B, W], the open window after its verification.
            accepted: int64 [B] on the device, the number of accepted drafts of each row.
            width: W', of the next window.
        """
        # Imported here: Triton may be missing.
        from mmspec.kernels.commit import begin_window

        inputs = self._window
        assert inputs is not None
        arrays = inputs.positions, inputs.iterations, self.limits()
        positions, iterations, limits = (array.on(self.device) for array in arrays)
        numbers = begin_window(*self.storage(), tokens, accepted, positions, iterations, limits, width)
        longest = np.minimum(self.length + tokens.shape[1], self.limits().host)
        self._window = inputs.next(split_numbers(numbers, len(self.ids), width), longest, width)
        return self._window.draws(self.rng)

    def limits(self) -> Numbers:
        """The number of tokens at which each row stays, [B], with its copy on the device."""
        if self._row_limits is None:
            # A row that has ended stays where it is.
            limits = np.where(self.is_running, self._limits[self.ids], self.length)
            self._row_limits = Numbers(limits, on_device(limits, self.device))
        return self._row_limits

    def own_slots(self, positions: Numbers) -> Tensor:
        """Which slots of a window its rows have, bool [B, W]: up to one past their end, and none of an ended row.

        A window is as wide as the longest row needs. What is kept of it, or read by more than the slots after it, must
        be of these slots alone, or a row would depend on its batch.

        Args:
            positions: [B, W], those of the window.
        """
        at, limits = positions.on(self.device), self.limits().on(self.device)[:, None]
        return (at <= limits) & (at[:, :1] < limits)

    def close(self) -> None:
        """Gives up the open window, if there is one."""
        self._window = None

    @property
    def before(self) -> Numbers:
        """The position of each row's last token, [B]."""
        return Numbers(self.length - 1) if self._window is None else self._window.before

    def recent(self, count: int) -> Numbers:
        """The positions of the last `count` tokens of each row, [B, count].

        Rows with fewer tokens begin at 0, and repeat the position of their last token.
        """
        if self._window is not None and count == RECENT:
            return self._window.recent
        first = np.maximum(self.length - count, 0)[:, None]
        return Numbers(np.minimum(first + np.arange(count), self.length[:, None] - 1))

    def at(self, positions: NDArray[np.int64]) -> Tensor:
        """The tokens at the given positions, host int64 [B, W], [B, W, *cell]; -1 at negative positions."""
        return self.read(Numbers(positions))

    def read(self, positions: Numbers) -> Tensor:
        """As `at`, of positions [B, W] that may be on the device already."""
        index = positions.on(self.device)
        if (positions.host >= 0).all():
            return self._tokens[self._index, index]
        return self._tokens[self._index, index.clamp(min=0)].masked_fill(self._wide(index < 0), -1)

    def last(self, count: int = 1) -> Tensor:
        """The last `count` tokens of each row, [B, count, *cell]."""
        if count == 1 and self._window is not None:
            return self._tokens[self._index, self.before.on(self.device)[:, None]]
        n = self._together()
        if n is not None and n >= count:
            return self._tokens[:, n - count : n]
        return self.at(self.length[:, None] + np.arange(-count, 0))

    def storage(self) -> tuple[Tensor, Tensor]:
        """What kernels read: the tokens of all rows of the request, [rows, N', *cell], and the row of each of the B."""
        return self._tokens, self._index[:, 0]

    def commit(
        self, tokens: Tensor, accepted: NDArray[np.int64], on_host: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Appends the accepted tokens and the resampled or bonus token after them.

        A row stops at its full length or after its first end-of-sequence token; later tokens of the window are dropped.
        What is written after the end of a row, finished ones included, is never read.

        Args:
            tokens: [B, W, *cell], the window.
            accepted: Host int64 [B], the number of accepted drafts of each row.
            on_host: Host int64 [B, W], the same tokens, if they are on the host already.

        Returns:
            The number of tokens that each row gained, host int64 [B].
        """
        width = tokens.shape[1]
        opened, self._window = self._window, None
        if opened is not None and opened.positions.host.shape[1] == width:
            self._tokens[self._index, opened.positions.on(self.device)] = tokens
        else:
            self._write(tokens)
        return self.gain(tokens, accepted, on_host)

    def gain(
        self, tokens: Tensor, accepted: NDArray[np.int64], on_host: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """The host's part of `commit`, for tokens that are written already; arguments and result are the same."""
        width, start = tokens.shape[1], self.length
        limits = self._limits[self.ids]
        self._keep(start, on_host)
        gained = np.minimum(accepted + 1, limits - start) * self.is_running
        if self.layout.may_end:
            ended = self._ends(tokens, start, gained, on_host) & (np.arange(width) < gained[:, None])
            stops = ended.any(1)
            if stops.any():
                gained = np.where(stops, ended.argmax(1) + 1, gained)
                self._ended[self.ids] |= stops
                self.is_running &= ~stops
                self._row_limits = None
        length = start + gained
        self.is_running &= length < limits
        self._lengths[self.ids] = length
        return gained

    def append(self, tokens: Tensor, on_host: NDArray[np.int64] | None = None) -> list[int]:
        """Appends one token per running row; returns the indices of the rows that are still running.

        Args:
            tokens: [B, 1, *cell].
            on_host: Host int64 [B, 1], the same tokens, if they are on the host already.
        """
        self.commit(tokens, np.zeros(len(self.ids), dtype=np.int64), on_host)
        return self.running()

    def _write(self, tokens: Tensor) -> None:
        """Writes tokens [B, W, *cell] after those of each row."""
        n, width = self._together(), tokens.shape[1]
        if n is not None:
            self._tokens[:, n : n + width] = tokens
        else:
            self._tokens[self._index, on_device(self.positions(width), self.device)] = tokens

    def _together(self) -> int | None:
        """The number of tokens of each row if it is the same, and all rows are there, in their order; else None."""
        length, ids = self.length, self.ids
        same = len(ids) == len(self._tokens) and (length == length[0]).all() and (ids[:-1] < ids[1:]).all()
        return int(length[0]) if same else None

    def _ends(
        self,
        tokens: Tensor,
        start: NDArray[np.int64],
        gained: NDArray[np.int64],
        on_host: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """Which of `tokens` [B, W, *cell], written from `start` on, end their row: host bool [B, W]."""
        # `start` and `gained` are host int64 [B]: tokens before them, and those that a row keeps if none ends it.
        layout, ends = self.layout, np.zeros(tokens.shape[:2], dtype=bool)
        if layout.ends is not None:
            ends = layout.ends(tokens if on_host is None else torch.from_numpy(on_host)).cpu().numpy()
        elif layout.eos:
            ends = np.isin(tokens.cpu().numpy() if on_host is None else on_host, list(layout.eos))
        if layout.stops is None:
            return ends
        ends = ends.copy()
        for row, first, count, ended in zip(self.ids, start, gained, ends, strict=True):
            stops = self._stops[row]
            if stops is None:
                continue
            for n in range(int(count)):
                ended[n] = ended[n] or stops(self._tokens[row, : first + n + 1])
                if ended[n]:
                    break
        return ends

    def _wide(self, which: Tensor) -> Tensor:
        """A token mask bool [B, W] with trailing axes of size 1, to broadcast over the cell."""
        return which.reshape(*which.shape, *(1,) * len(self.layout.cell))

    def running(self) -> list[int]:
        """The indices of the rows, among the B current ones, that are not finished."""
        return np.flatnonzero(self.is_running).tolist()

    def stop(self, row_ids: Sequence[int]) -> None:
        """Finishes these rows, among the B current ones, where they are."""
        self.is_running[row_ids] = False
        self._row_limits = None

    def places(self, count: int) -> list[int]:
        """Where `count` rows can join: the indices of finished rows, and then new ones after the B current rows."""
        free, rows = np.flatnonzero(~self.is_running).tolist(), len(self.ids)
        return [*free, *range(rows, rows + max(count - len(free), 0))][:count]

    def after_move(self) -> None:
        """The tokens of rows that have been dropped stay in `result`."""
        self._window = self._row_limits = None

    def before_join(self, other: BatchState, state: BatchState, other_state: BatchState) -> None:
        """Rows that join take the places of rows that have left the request.

        All rows of `other` must be running. Tokens of rows that have finished are lost where a row takes their place.
        """
        self._host = None
        places, row_ids = self.ids.tolist(), self.places(len(other.ids))
        free = sorted(set(range(len(self._lengths) + len(row_ids))) - set(places))
        ids = [places[row] if row < len(places) else free.pop(0) for row in row_ids]
        layout = self.layout
        self._tokens = put_rows(self._tokens, other._tokens[other.ids], ids, fill=layout.pad)
        self._lengths = put_host_rows(self._lengths, other.length, ids)
        self._limits = put_host_rows(self._limits, other._limits[other.ids], ids)
        self._ended = put_host_rows(self._ended, other._ended[other.ids], ids)
        for ours, new_rows in ((self._stops, other._stops), (self._cuts, other._cuts)):
            ours += [None] * (len(self._lengths) - len(ours))
            for row, theirs in zip(ids, other.ids, strict=True):
                ours[row] = new_rows[theirs]
        other.ids, other._index = np.array(ids), torch.tensor(ids, device=self.device)[:, None]
        longest, stops = max(layout.length, other.layout.length), layout.stops or other.layout.stops
        self.layout = replace(layout, length=longest, stops=stops)

    def fork(self, count: int, seed: int) -> BatchState:
        """A copy of the B rows that drafting may advance: by `count` tokens at most, and not past its end.

        No token ends its rows, and their random numbers are independent of those of the batch.

        Args:
            count: Tokens that each row may gain.
            seed: Distinguishes the random numbers of this purpose, uint64.
        """
        fork = copy(self)
        rows = len(self.ids)
        fork.layout = replace(self.layout, eos=frozenset(), ends=None, stops=None, cut=None)
        fork.ids, fork._index = np.arange(rows), torch.arange(rows, device=self.device)[:, None]
        fork._tokens = self._tokens[self._index[:, 0]]
        fork._lengths = self.length.copy()
        fork._limits = np.minimum(self.length + count, self._limits[self.ids])
        fork._ended, fork._stops, fork._cuts = np.zeros(rows, dtype=bool), [None] * rows, [None] * rows
        fork.is_running = fork._lengths < fork._limits
        fork._row_limits = fork._host = None
        fork.rng = CounterRNG([int(own) ^ seed for own in self.rng.seeds], self.device)
        return fork

    def tokens(self, row: int) -> Tensor:
        """A copy of the tokens of row `row` of the request so far, [n, *cell]."""
        return self._tokens[row, : self._lengths[row]].clone()

    def on_host(self) -> list[Tensor]:
        """Copies on the host of the tokens of each row of the request so far, [n_row, *cell].

        From the second call on, a device is not waited for where the tokens have come with their counts.
        """
        tokens = self._tokens.cpu() if self._host is None else torch.from_numpy(self._host)
        if tokens is not self._tokens and tokens.dtype == torch.int64:
            self._host = tokens.numpy()
        return [row[:n].clone() for row, n in zip(tokens, self._lengths, strict=True)]

    def _keep(self, start: NDArray[np.int64], tokens: NDArray[np.int64] | None) -> None:
        """Keeps up the copy that `on_host` has made, with tokens [B, W] from `start` on; gives it up without them."""
        if self._host is not None and tokens is not None:
            self._host[self.ids[:, None], start[:, None] + np.arange(tokens.shape[1])] = tokens
        else:
            self._host = None

    def step(self, target_calls: int) -> Step:
        """The progress after `target_calls` target calls, for callbacks."""
        so_far = TokensSoFar(self._tokens.clone(), self._lengths.copy())
        return Step(target_calls, int(self._lengths.sum()), int(self._limits.sum()), so_far)

    def result(self) -> Tensor:
        """The tokens of all rows of the request, finished ones included, [rows, N, *cell]; `pad` after a row's end."""
        tokens = self._tokens[:, : self.layout.length]
        if (self._lengths >= self.layout.length).all():
            return tokens
        lengths = on_device(self._lengths, self.device)
        past_end = torch.arange(self.layout.length, device=self.device) >= lengths[:, None]
        return tokens.masked_fill(self._wide(past_end), self.layout.pad)


def _of_rows(function: Callable[[int, Tensor], bool] | None, count: int) -> list[Callable[[Tensor], bool] | None]:
    """For each row, a function of the layout with its number; see `Layout.stops` and `Layout.cut`."""
    return [None if function is None else partial(function, row) for row in range(count)]
