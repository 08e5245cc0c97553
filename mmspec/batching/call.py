"""A call of a pipeline, or of a model: an engine with the requests of the call, run to its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from torch import Tensor

from mmspec.arguments import check_callback
from mmspec.batching.engine import Engine
from mmspec.batching.group import Group, Row
from mmspec.batching.request import PreparedBatch, PreparedRequest, RequestOutput, RowPrompt
from mmspec.decoding.stats import RowStats, Stats, no_tokens
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

log = logging.getLogger(__name__)


class CallEngine(Engine):
    """An engine whose requests are those of one call: all are there before the first step, and an error ends the call.

    Args:
        recipe: Their recipe.
        max_rows: Rows that are decoded at a time, at most.
        watch: What to show of the decoding.
        streams: Whether every step gives out its tokens; else the last output of a request has its result alone.
    """

    def __init__(
        self,
        pipe: Any,
        requests: Sequence[PreparedRequest],
        recipe: Recipe,
        max_rows: int,
        watch: Watch,
        streams: bool = False,
    ) -> None:
        super().__init__(pipe, recipe, max_waiting=max(len(requests), 1))
        self.max_rows = self._max_prefill = max_rows  # a call may have more rows than an engine
        self._watch, self._shared, self._streams = watch, False, streams
        self._stats: Stats | None = None  # of the batches that have ended
        self._rows: list[Row] = []  # of all requests, in order
        for number, request in enumerate(requests):
            name = str(number)
            self._enqueue(request, recipe, None, name)
            self._rows += self._requests[name].rows

    def outputs(self) -> Iterator[RequestOutput]:
        """Decodes the requests to their end; gives out what each step gave them.

        Raises:
            Exception: The first error.
        """
        while self.has_unfinished:
            for output in self.step():
                if output.error is not None:
                    raise output.error
                yield output

    def results(self) -> list[Any]:
        """The results of the requests, in their order."""
        found = {output.request_id: output.result for output in self.outputs() if output.finished}
        return [found[str(number)] for number in range(len(found))]

    def stop(self) -> None:
        """Ends the call at its next step; any thread may call it."""
        with self._lock:
            for progress in self._requests.values():
                progress.cancelled = True

    def row_stats(self, number: int) -> RowStats | None:
        """The statistics of a row, counted over the requests in their order; None before its end."""
        return self._rows[number].stats

    def call_stats(self) -> Stats:
        """The statistics of the whole call; after an error, of what was decoded before it."""
        assert self._stats is not None, "a batch has ended"
        missing = no_tokens(self._watch.measure_entropy)
        stats = self._stats.over([row.stats or missing for row in self._rows])
        counts = len(self._rows), stats.tokens, stats.target_calls, stats.seconds
        log.info("decoded %d rows: %d tokens in %d target calls, %.2f s", *counts)
        return stats

    def _fail(self, rows: Sequence[Row], error: Exception) -> NoReturn:
        raise error

    def _drop(self, group: Group) -> None:
        super()._drop(group)
        for index, row in group.rows.items():  # that an error has ended
            row.stats = group.batch.meter.row(index)
        stats = group.batch.stats()
        self._stats = stats if self._stats is None else self._stats.followed_by(stats)


class _ReadyRows:
    """The pipeline of a call whose rows are one batch already."""

    config = None

    def __init__(self, prepared: PreparedBatch) -> None:
        self._prepared = prepared

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> NoReturn:
        raise AssertionError("the rows are ready")

    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedBatch:
        return self._prepared


def decode_rows(
    prepared: PreparedBatch, recipe: Recipe, seeds: Sequence[int], watch: Watch = UNWATCHED
) -> tuple[list[Tensor], Stats]:
    """Decodes rows that are one batch already, as the one request of a call.

    Args:
        prepared: The rows.
        recipe: How to decode.
        seeds: One per row. A row's tokens depend on its own seed and prompt, not on the other rows.
        watch: What to show of the decoding; an exception in `on_step` ends the call.

    Returns:
        The tokens of each row on the CPU, [n, *cell]; and the statistics of the call.

    Raises:
        ArgumentError: If the recipe needs a resource that the model does not provide, or `on_step` cannot be called.
    """
    check_callback("on_step", watch.on_step)
    engine = _engine(prepared, recipe, seeds, watch)
    (tokens,) = engine.results()
    stats = engine.call_stats()
    if watch.on_stats is not None:
        watch.on_stats(stats)
    return tokens, stats


def stream_row(prepared: PreparedBatch, recipe: Recipe, seed: int, watch: Watch = UNWATCHED) -> Iterator[Tensor]:
    """Decodes one row that is a batch already; leaving the iteration stops it.

    Args:
        prepared: The row.
        recipe: How to decode.
        seed: Its seed.
        watch: What to show of the decoding; `on_stats` is called at the end.

    Yields:
        The new tokens of each step on the CPU, [n, *cell].

    Raises:
        ArgumentError: If the recipe needs a resource that the model does not provide.
    """
    engine = _engine(prepared, recipe, [seed], watch, streams=True)
    for output in engine.outputs():
        yield output.tokens
    if watch.on_stats is not None:
        watch.on_stats(engine.call_stats())


def _engine(
    prepared: PreparedBatch, recipe: Recipe, seeds: Sequence[int], watch: Watch, streams: bool = False
) -> CallEngine:
    """A call whose one request is rows that are one batch already."""
    rows = [RowPrompt(None, SamplingParams(), seed) for seed in seeds]
    return CallEngine(_ReadyRows(prepared), [PreparedRequest(rows, _tokens, 0)], recipe, len(rows), watch, streams)


def _tokens(tokens: Sequence[Tensor], stats: Stats) -> list[Tensor]:
    return list(tokens)
