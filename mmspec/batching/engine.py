"""`Engine`: decodes requests as they come, in a batch that they join and leave."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_integer, shown
from mmspec.batching.fair_queue import FairQueue
from mmspec.batching.group import Group, Progress, Row
from mmspec.batching.request import EnginePipeline, FinishReason, PreparedRequest, Request, RequestOutput
from mmspec.batching.totals import EngineStats, Totals
from mmspec.decoding.stats import PARTS, RowStats, Stats
from mmspec.decoding.step import UNWATCHED
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse, recipe_of_call

MOST_ROWS = 4096
ROUNDING = 1e-3  # by which vectors, whose numbers are about 1, may differ from those of another batch
MOST_KINDS = 1024  # kinds of rows whose size in bytes is remembered


def supports_engine(pipe: Any) -> bool:
    """Whether an engine can decode requests of a pipeline."""
    return hasattr(pipe, "read_request") and hasattr(pipe, "prepare_rows")


class QueueFullError(ArgumentError):
    """An engine has as many waiting requests as it may have; try again later."""


class Engine:
    """Decodes requests as they come: rows join a batch while it runs, and leave it when they are finished.

    The tokens of a request depend on its prompt, seed, recipe and sampling parameters alone: not on the other requests,
    nor on when it came. `window=auto` is the exception, as everywhere.

    Requests with one recipe share a batch, whatever their seeds, temperatures and guidance scales are. Those with
    another recipe, without guidance, or of another image size have a batch of their own; a step decodes one window of
    every batch.

    `add` and `cancel` may be called from any thread, `step` from one at a time.

    Args:
        pipe: The pipeline of an image or speech model; see `mmspec.load`.
        recipe: The default recipe of a request, e.g. `"scd:window=32"`; None is the pipeline's.
        max_rows: Rows that are decoded at a time, at most.
        max_waiting: Requests that wait, at most; more are refused.
        max_cache_bytes: Bytes of the KV caches of all running rows, at most; None is unlimited. The size of a row is
            known once one of its recipe has been decoded; draft models and heads do not count. A row that is larger on
            its own runs alone.
        max_prefill: Rows that join in one step, at most; None is `max_rows`. Their prompts are read in one call, for
            which all running rows wait.

    Raises:
        ArgumentError: For a pipeline that engines do not support, and for a number that is not allowed.
        UnknownNameError: If there is no recipe or rule of that name.
    """

    def __init__(
        self,
        pipe: Any,
        recipe: str | Recipe | None = None,
        *,
        max_rows: int = 16,
        max_waiting: int = 1024,
        max_cache_bytes: int | None = None,
        max_prefill: int | None = None,
    ) -> None:
        check_integer("max_rows", max_rows, 1, MOST_ROWS)
        check_integer("max_waiting", max_waiting, 1, 2**31)
        if max_prefill is not None:
            check_integer("max_prefill", max_prefill, 1, MOST_ROWS)
        if max_cache_bytes is not None:
            check_integer("max_cache_bytes", max_cache_bytes, 1, 2**63)
        if not supports_engine(pipe):
            raise ArgumentError(
                f"pipe={type(pipe).__name__} is not supported by engines: it has no read_request and prepare_rows, or "
                "its tokens come from several models in turn"
            )
        self.pipe: EnginePipeline = pipe
        self._watch, self._shared = UNWATCHED, True  # requests come and go while others are decoded
        self._streams = True  # tokens are given out as they come
        self.recipe = recipe_of_call(pipe, recipe)
        self.max_rows = max_rows
        self.max_waiting = max_waiting
        self._max_prefill = max_prefill or max_rows
        self._max_cache_bytes = max_cache_bytes
        self._row_bytes: dict[Hashable, int] = {}  # by kind of row, as of the latest one
        self._lock = threading.Lock()  # of the queue, the requests and the counts
        self._stepping = threading.Lock()
        # Tokenizers keep how they pad and cut in one place for all threads: another call may change it in between.
        self._reading = threading.Lock()
        self._queue: FairQueue[Row] = FairQueue()
        self._requests: dict[str, Progress] = {}
        self._waiting = 0  # requests none of whose rows has been decoded yet
        self._groups: list[Group] = []
        self._retries: list[list[Row]] = []  # rows of batches that failed, to be decoded in smaller ones
        self._totals = Totals()
        self._handler_error: Exception | None = None  # raised by a signal handler in a step
        self._kept: list[RequestOutput] = []  # of the step that it interrupted

    @property
    def has_unfinished(self) -> bool:
        """Whether a request is waiting or running, or has outputs that no step has returned yet."""
        with self._lock:
            return bool(self._requests or self._kept)

    def add(
        self,
        prompt: Any,
        *,
        seed: int | None = None,
        recipe: str | Recipe | None = None,
        user: Hashable = None,
        request_id: str | None = None,
        **options: Any,
    ) -> Request:
        """Adds a request.

        Args:
            prompt: The prompt, as in a call of the pipeline.
            seed: None is a random seed.
            recipe: How to decode; None is the engine's default.
            user: The key of the user's line: lines are served in turn.
            request_id: Names the request; None makes a name.
            **options: Other arguments of a call of the pipeline for one output, such as `temperature`, `top_k`,
                `top_p`, `guidance_scale`, `negative_prompt`, `output_type` or `voice`; None is the default.

        Raises:
            PromptError: If the model does not accept the prompt.
            ArgumentError: For an argument whose value is not allowed.
            QueueFullError: If `max_waiting` requests are waiting.
            UnknownNameError: If there is no recipe or rule of that name.
        """
        if self._waiting >= self.max_waiting:  # before any work; it is checked again below
            raise self._full()
        if not _is_hashable(user):
            raise ArgumentError(f"user={shown(user)} is not allowed; it must be hashable")
        if request_id is not None and (not isinstance(request_id, str) or not request_id):
            raise ArgumentError(f"request_id={shown(request_id)} is not allowed; it must be a string, or None")
        chosen = self.recipe if recipe is None else parse(recipe)
        given = {name: value for name, value in {"seed": seed, **options}.items() if value is not None}
        with self._reading, torch.no_grad():
            prepared = self.pipe.read_request(prompt, given, chosen)
        return self._enqueue(prepared, chosen, user, request_id or f"req-{uuid.uuid4().hex}")

    def _enqueue(self, prepared: PreparedRequest, chosen: Recipe, user: Hashable, name: str) -> Request:
        """Queues the rows of a request; raises if its name is taken or `max_waiting` requests wait."""
        request = Request(name, user, prepared.seed, tuple(prepared.notes))
        progress = Progress(request, prepared, chosen)
        progress.rows = [Row(progress, part, row) for part, row in enumerate(prepared.rows)]
        now = progress.rows[:1] if prepared.continued is not None else progress.rows
        with self._lock:
            if self._waiting >= self.max_waiting:
                raise self._full()
            if name in self._requests:
                raise ArgumentError(f"request_id={name[:200]!r} is not allowed; a request of this name is unfinished")
            self._requests[name] = progress
            self._waiting += 1
            self._totals.requests += 1
            for row in now:
                self._queue.push(user, row)
        return request

    def cancel(self, request_id: str) -> bool:
        """Cancels a request, which leaves at the next step; returns whether it was unfinished."""
        with self._lock:
            progress = self._requests.get(request_id)
            if progress is None:
                return False
            progress.cancelled = True
            return True

    def step(self) -> list[RequestOutput]:
        """Lets waiting rows join, and decodes one window of every batch.

        Returns:
            What each request was given, in the order of its parts; a finished one also its result.

        Raises:
            ArgumentError: If another thread is in a step of this engine.
            Exception: What a signal handler raised meanwhile; the rows go on with the next step.
        """
        if not self._stepping.acquire(blocking=False):
            raise ArgumentError("step() was called while another thread is in it; one thread steps an engine")
        start = time.perf_counter()
        try:
            outputs, self._kept = [*self._kept, *self._leave()], []
            outputs += self._admit()
            for group in list(self._groups):
                if group.running:
                    outputs += self._step_group(group)
            for group in list(self._groups):
                if not group.running:  # its requests have ended with an error of their rows in another batch
                    outputs += self._collect(group)
            if self._handler_error is not None:
                self._kept, interrupt, self._handler_error = outputs, self._handler_error, None
                raise interrupt
            return outputs
        finally:
            self._totals.seconds += time.perf_counter() - start
            self._stepping.release()

    def stats(self) -> EngineStats:
        """What the engine has done so far."""
        with self._lock:
            return self._totals.report(list(self._groups), len(self._queue) + sum(map(len, self._retries)))

    def _full(self) -> QueueFullError:
        return QueueFullError(
            f"{self.max_waiting} requests are waiting, as many as max_waiting allows; try again later"
        )

    def _leave(self) -> list[RequestOutput]:
        """Drops cancelled requests; returns their outputs."""
        with self._lock:
            leaving = [progress for progress in self._requests.values() if progress.cancelled]
            if not leaving:
                return []
            self._queue.remove(lambda row: row.progress.cancelled)
        self._retries = [[row for row in rows if not row.progress.cancelled] for rows in self._retries]
        outputs = []
        for group in list(self._groups):
            group.stop([row for row in _rows(group) if row.progress.cancelled])
            outputs += self._collect(group)
        return outputs + [self._end(progress, "cancelled") for progress in leaving]

    def _admit(self) -> list[RequestOutput]:
        """Reads the prompts of waiting rows and lets them join."""
        outputs = []
        retries, self._retries = self._retries, []
        for rows in retries:
            outputs += self._start(rows)
        again = [row for rows in self._retries for row in rows]  # those that failed once more keep their places
        running = len(again) + sum(len(group.rows) for group in self._groups)
        free = min(self.max_rows - running, self._max_prefill)
        by_kind: dict[Hashable, list[Row]] = {}
        with self._lock:
            room = self._room(again)
            while free > 0 and len(self._queue):
                if room is not None:
                    room -= self._bytes_of(self._queue.peek())
                    if room < 0 and (self._groups or again or by_kind):
                        break
                row = self._queue.pop()
                by_kind.setdefault((row.kind, row.prompt.kind), []).append(row)
                if row.progress.started is None:
                    row.progress.started = time.perf_counter()
                    self._waiting -= 1
                free -= 1
        for rows in by_kind.values():
            outputs += self._start(rows)
        return outputs

    def _room(self, again: Sequence[Row]) -> int | None:
        """Bytes of KV cache that rows may take besides the running ones and those that start again; None for any."""
        if self._max_cache_bytes is None:
            return None
        used = sum(group.running * group.row_bytes for group in self._groups)
        return self._max_cache_bytes - used - sum(map(self._bytes_of, again))

    def _bytes_of(self, row: Row) -> int:
        """Bytes of KV cache of a row. Rows of which none has been decoded take the whole room, one at a time."""
        assert self._max_cache_bytes is not None
        return self._row_bytes.get((row.kind[:-1], row.prompt.kind), self._max_cache_bytes)

    def _start(self, rows: list[Row]) -> list[RequestOutput]:
        """Prefills rows of one kind as a batch, which joins a running one if it can."""
        rows = [row for row in rows if not row.progress.done]
        if not rows:
            return []
        group: Group | None = None
        try:
            with torch.no_grad():
                prepared = self.pipe.prepare_rows([row.prompt for row in rows], rows[0].progress.recipe)
            group = Group(rows, prepared, self._watch, self._shared, self._streams)
            group.start()
        except Exception as error:
            if group is not None:
                self._drop(group)
            return self._fail(rows, error)
        if self._max_cache_bytes is not None:
            if len(self._row_bytes) > MOST_KINDS:
                self._row_bytes.clear()
            self._row_bytes[rows[0].kind[:-1], rows[0].prompt.kind] = group.row_bytes
        outputs = self._given_out(group)
        if not group.rows:
            return outputs
        for running in self._groups:
            try:
                if not running.can_join(group):
                    continue
                running.join(group)
            except Exception as error:
                both = [*_rows(running), *_rows(group)]
                self._drop(running)
                self._totals.add(group)
                return outputs + self._fail(both, error)
            return outputs
        self._groups.append(group)
        return outputs

    def _step_group(self, group: Group) -> list[RequestOutput]:
        """Decodes one window of a group."""
        rows = _rows(group)
        try:
            group.step()
        except Exception as error:
            self._drop(group)
            return self._fail(rows, error)
        return self._given_out(group)

    def _given_out(self, group: Group) -> list[RequestOutput]:
        """The outputs of a group after its calls, if any are to be given out now."""
        return self._collect(group) if self._streams or group.has_finished_rows else []

    def _collect(self, group: Group) -> list[RequestOutput]:
        """Takes the new tokens of a group; returns the outputs. A group without rows is dropped."""
        rows = _rows(group)
        self._take(group)
        outputs = []
        for progress in {id(row.progress): row.progress for row in rows}.values():
            if not progress.cancelled or progress.done:
                outputs += self._give(progress)
        if ended := [row for row in _rows(group) if row.progress.done]:  # with an error
            group.stop(ended)
            self._take(group)
        if not group.rows:
            self._drop(group)
        return outputs

    def _take(self, group: Group) -> None:
        """Reads the tokens of a group's rows; those that have finished leave it."""
        for row in group.collect():
            self._totals.add_row(row)

    def _drop(self, group: Group) -> None:
        """Forgets a group, and with it its caches."""
        if group in self._groups:
            self._groups.remove(group)
        self._totals.add(group)

    def _give(self, progress: Progress) -> list[RequestOutput]:
        """The new tokens of a request, part by part, and its result if it is finished."""
        outputs: list[RequestOutput] = []
        if progress.done:
            return outputs
        if faults := [row.fault for row in progress.rows if row.fault is not None]:
            return [self._end(progress, "error", faults[0])]
        while progress.front < len(progress.rows):
            row = progress.rows[progress.front]
            if row.tokens is None:
                break
            if row.seen is not None and not _agree(row.tokens, row.seen[0], row.stats is not None):
                row.tokens, error = row.seen  # the others are not given out
                return [*outputs, self._end(progress, "error", error)]
            last = row.stats is not None and progress.front == len(progress.rows) - 1
            if len(row.tokens) > row.given and not last:
                outputs.append(self._output(progress, row))
            if row.stats is None or last:
                break
            try:
                self._continue(progress, row)
            except Exception as error:
                return [*outputs, self._end(progress, "error", error)]
            progress.front += 1
        if all(row.stats is not None for row in progress.rows):
            outputs.append(self._finish(progress))
        return outputs

    def _output(self, progress: Progress, row: Row) -> RequestOutput:
        assert row.tokens is not None
        new, row.given = row.tokens[row.given :], len(row.tokens)
        calls = sum(r.calls for r in progress.rows)
        return RequestOutput(progress.request.id, new, False, None, calls, row.part, row.prompt.prompt)

    def _continue(self, progress: Progress, row: Row) -> None:
        """Queues the parts of a request that continue a part, once that is finished."""
        continued, chained = progress.prepared.continued, progress.prepared.chained
        if continued is None or (row.part and not chained):
            return
        assert row.tokens is not None and row.stats is not None
        following = progress.rows[row.part + 1 :][: 1 if chained else None]
        for later in following:
            with torch.no_grad():
                later.prompt = continued(later.prompt, row.prompt, row.tokens, row.stats.truncated)
        with self._lock:
            for later in following:
                self._queue.push(progress.request.user, later)

    def _finish(self, progress: Progress) -> RequestOutput:
        """The last output of a request all of whose rows have finished."""
        rows, name = progress.rows, progress.request.id
        all_stats = [row.stats for row in rows if row.stats is not None]
        tokens = [row.tokens for row in rows if row.tokens is not None]
        try:
            with torch.no_grad():
                result = progress.prepared.finish(tokens, _stats(all_stats, progress))
        except Exception as error:
            return self._end(progress, "error", error)
        last = rows[-1]
        assert last.tokens is not None
        reason: FinishReason = "length" if any(stats.truncated for stats in all_stats) else "stop"
        self._forget(progress)
        self._totals.completed += 1
        calls = sum(row.calls for row in rows)
        new = last.tokens[last.given :]
        return RequestOutput(name, new, True, reason, calls, last.part, last.prompt.prompt, result)

    def _fail(self, rows: Sequence[Row], error: Exception) -> list[RequestOutput]:
        """Starts the rows of a failed batch anew in two halves, until the one to blame fails alone."""
        # After a signal handler they start as one batch. Tokens that have been given out are not given out twice.
        rows = [row for row in rows if not row.progress.done]
        from mmspec.batching.signal_handlers import raised_by_handler

        interrupted = raised_by_handler(error)
        if interrupted:
            self._handler_error = error
        elif len(rows) == 1:
            return [self._end(rows[0].progress, "error", error)]
        half = len(rows) if interrupted else -(-len(rows) // 2)
        _forget_frames(error)
        for row in rows:
            if row.tokens is not None and row.given:
                row.seen = row.tokens[: row.given], error
            row.alone, row.tokens, row.stats, row.calls, row.decoded = half, None, None, 0, 0
        self._retries += [part for part in (rows[:half], rows[half:]) if part]
        return []

    def _end(self, progress: Progress, reason: FinishReason, error: Exception | None = None) -> RequestOutput:
        """The last output of a request without a result."""
        for group in list(self._groups):
            group.stop([row for row in _rows(group) if row.progress is progress])
        row = progress.rows[min(progress.front, len(progress.rows) - 1)]
        new = torch.zeros(0, dtype=torch.int64) if row.tokens is None else row.tokens[row.given :]
        self._forget(progress)
        if reason == "cancelled":
            self._totals.cancelled += 1
        else:
            self._totals.failed += 1
        calls = sum(row.calls for row in progress.rows)
        prompt = row.prompt.prompt
        return RequestOutput(progress.request.id, new, True, reason, calls, row.part, prompt, None, error)

    def _forget(self, progress: Progress) -> None:
        progress.done = True
        self._retries = [[row for row in rows if not row.progress.done] for rows in self._retries]
        with self._lock:
            self._requests.pop(progress.request.id, None)
            if len(self._queue):
                self._queue.remove(lambda row: row.progress is progress)
            if progress.started is None:
                self._waiting -= 1


def _agree(tokens: Tensor, seen: Tensor, whole: bool) -> bool:
    """Whether tokens begin as those that have been given out; if they are not the whole row yet, as far as both go."""
    n = min(len(tokens), len(seen))
    if whole and n < len(seen):
        return False
    if tokens.is_floating_point():
        return torch.allclose(tokens[:n], seen[:n], rtol=ROUNDING, atol=ROUNDING)
    return torch.equal(tokens[:n], seen[:n])


def _forget_frames(error: BaseException) -> None:
    """Drops the stack of an error that is kept: its variables are the KV caches of the batch that failed."""
    found: BaseException | None = error
    while found is not None and found.__traceback__ is not None:
        found.__traceback__ = None
        found = found.__context__


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _rows(group: Group) -> list[Row]:
    return list(group.rows.values())


def _stats(rows: Sequence[RowStats], progress: Progress) -> Stats:
    """The statistics of a request. Acceptance and the parts of the seconds are those of the whole engine."""
    seconds = 0.0 if progress.started is None else time.perf_counter() - progress.started
    parts = dict.fromkeys(PARTS, 0.0) | {"other": seconds}
    return Stats(sum(row.target_calls for row in rows), 0, 0.0, [], 0, seconds, parts, 0).over(rows)
