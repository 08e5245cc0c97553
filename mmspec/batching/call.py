"""A call of a pipeline: an engine with the requests of the call, run to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from mmspec.batching.engine import Engine
from mmspec.batching.group import Group, Row
from mmspec.batching.request import PreparedRequest, RequestOutput
from mmspec.decoding.stats import RowStats, Stats, no_tokens
from mmspec.decoding.step import Watch
from mmspec.recipes import Recipe


class CallEngine(Engine):
    """An engine whose requests are those of one call: all are there before the first step, and an error ends the call.

    Args:
        pipe: The pipeline.
        requests: The requests.
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
        return self._stats.over([row.stats or missing for row in self._rows])

    def _fail(self, rows: Sequence[Row], error: Exception) -> NoReturn:
        raise error

    def _drop(self, group: Group) -> None:
        super()._drop(group)
        for index, row in group.rows.items():  # that an error has ended
            row.stats = group.batch.meter.row(index)
        stats = group.batch.stats()
        self._stats = stats if self._stats is None else self._stats.followed_by(stats)
