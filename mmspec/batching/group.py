"""A group: rows of one recipe and one kind, decoded as one batch that they join and leave."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.batching.request import DecodingBatch, PreparedBatch, PreparedRequest, Request, RowPrompt
from mmspec.decoding.assembly import window_policy
from mmspec.decoding.rows import batches_fit, join_batches
from mmspec.decoding.stats import RowStats
from mmspec.decoding.step import Watch
from mmspec.recipes import Recipe

STEPS = 4  # plain steps that a window policy may take in one step of an engine that requests come to


@dataclass(eq=False)
class Progress:
    """How far a request has come.

    Attributes:
        prepared: As its pipeline reads it.
        recipe: How it is decoded.
        rows: Its rows, by part.
        front: The part whose tokens are given out next.
        cancelled: Whether it is to leave at the next window.
        started: The time at which its first row was prefilled; None before.
        done: Whether its last output has been given out.
    """

    request: Request
    prepared: PreparedRequest
    recipe: Recipe
    rows: list[Row] = field(default_factory=list)
    front: int = 0
    cancelled: bool = False
    started: float | None = None
    done: bool = False


@dataclass(eq=False)
class Row:
    """A row of a request.

    Attributes:
        progress: Its request.
        part: The index of the part.
        prompt: What is decoded.
        tokens: The tokens so far as they are given out, on the CPU, [n, *cell]; None before the first.
        decoded: The number of tokens that have been decoded.
        given: The number of them that have been given out.
        stats: Its statistics, once it has finished.
        calls: Target calls so far.
        seen: After a new start: the tokens that have been given out, and the error before it.
        fault: Why its tokens could not be given out.
        alone: How many rows may be decoded in one batch with it, after an error in its batch; None for any number.
    """

    progress: Progress
    part: int
    prompt: RowPrompt
    tokens: Tensor | None = None
    decoded: int = 0
    given: int = 0
    stats: RowStats | None = None
    calls: int = 0
    seen: tuple[Tensor, Exception] | None = None
    fault: Exception | None = None
    alone: int | None = None

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Rows of other kinds are not decoded in one batch."""
        return self.progress.recipe, self.prompt.sampling.guidance_scale != 1, self.alone


class Group:
    """Rows that are decoded as one batch.

    Args:
        rows: Its rows, in order.
        prepared: The rows as they were prepared. Rows that join later are converted in the same way.
        watch: What to show of the decoding.
        shared: Whether the batch is shared by requests that come and go. The window policy then follows the load.
        streams: Whether tokens are given out as they come.
    """

    def __init__(self, rows: Sequence[Row], prepared: PreparedBatch, watch: Watch, shared: bool, streams: bool) -> None:
        self._recipe = recipe = prepared.recipe or rows[0].progress.recipe
        seeds = [row.prompt.seed for row in rows]
        with torch.no_grad():  # draft models may read their prompts here
            self.batch: DecodingBatch = prepared.batch(recipe, seeds, watch.converted(prepared.tokens))
        if shared or streams:
            self.batch.use(most_steps=STEPS if shared and recipe.info.drafts else 1)
        self.kind = rows[0].kind
        self.rows = dict(enumerate(rows))  # by index in the batch's request
        self._tokens = prepared.tokens
        self._resources = prepared.resources
        self._guided = rows[0].prompt.sampling
        self._shared = shared
        self._load = 0

    @property
    def running(self) -> int:
        """The number of rows that are being decoded."""
        return int(self.batch.state.is_running.sum())

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache, if the target knows."""
        return self.batch.cache_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of the KV cache per row, if the target knows."""
        return self.cache_bytes // len(self.batch.state.ids)

    @property
    def has_finished_rows(self) -> bool:
        """Whether rows have finished that have not been collected."""
        return self.running < len(self.rows)

    def start(self) -> None:
        """Reads the prompts and samples the first tokens."""
        with torch.inference_mode():
            self.batch.start()
        if self._shared:
            self._set_policy()

    def step(self) -> None:
        """Decodes one window."""
        clock = self.batch.meter.clock
        clock.skip()  # other groups have been decoded since the last window
        if self._shared:
            self._set_policy()
        with torch.inference_mode():
            self.batch.step()
        clock.lap("other")

    def can_join(self, other: Group) -> bool:
        """Whether the rows of another group can join this one."""
        return self.kind == other.kind and self.kind[-1] is None and batches_fit(self.batch, other.batch)

    def join(self, other: Group) -> None:
        """Takes in the running rows of another group."""
        state, theirs = self.batch.state, other.batch.state
        with torch.inference_mode():
            new = [other.rows[row] for row in theirs.ids[theirs.is_running].tolist()]
            for at, row in zip(join_batches(self.batch, other.batch), new, strict=True):
                self.rows[int(state.ids[at])] = row
        if not self._shared:
            self.batch.use()  # the policy is for the rows that are running now

    def collect(self) -> list[Row]:
        """Reads the new tokens of all rows from the batch; returns the rows that have finished, which leave."""
        state, meter = self.batch.state, self.batch.meter
        running = set(state.ids[state.is_running].tolist())
        tokens, finished = state.on_host(), list[Row]()
        for index, row in list(self.rows.items()):
            new, row.calls, row.decoded = tokens[index], int(meter.calls[index]), int(meter.tokens[index])
            try:
                for convert in (self._tokens, row.progress.prepared.codes):
                    new = new if convert is None else convert(new)
                row.tokens = new
            except Exception as error:  # of the pipeline, for this row
                row.fault = error
            if index not in running:
                row.stats = meter.row(index, state.row_truncated(index))
                finished.append(row)
                del self.rows[index]
        return finished

    def stop(self, rows: Sequence[Row]) -> None:
        """Stops rows where they are."""
        state, leaving = self.batch.state, set(map(id, rows))
        ids = {index for index, row in self.rows.items() if id(row) in leaving}
        state.stop([at for at, index in enumerate(state.ids.tolist()) if index in ids])

    def _set_policy(self) -> None:
        """With `window=auto`, the policy for the number of running rows, to the next power of two."""
        running = self.running
        if not running:
            return
        load = 1 << max(running - 1, 0).bit_length()
        if self._recipe.auto and load != self._load:
            self._load = load
            length = self.batch.state.layout.length
            self.batch.use(window_policy(self._recipe, [self._guided], load, self._resources, length))
        else:
            self.batch.use()
