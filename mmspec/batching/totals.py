"""What an engine has done: its statistics, and the counts of groups and rows that have left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmspec.batching.group import Group, Row
from mmspec.decoding.stats import PARTS


@dataclass(frozen=True)
class EngineStats:
    """What an engine has done so far, and what it is doing.

    Attributes:
        running: Rows that are being decoded.
        waiting: Rows that wait.
        requests: Requests that were accepted.
        completed: Requests that finished with a result.
        cancelled: Requests that were cancelled.
        failed: Requests that finished with an error.
        tokens: Tokens that rows were given.
        row_calls: Target calls, each counted once per row that took part in it.
        target_calls: Target calls, prefills included; one serves every row of a batch.
        tokens_per_call: Tokens over `row_calls`; 1.00 for plain decoding.
        tested: Draft tokens that were tested.
        accepted: Draft tokens that were accepted.
        acceptance: Accepted over tested drafts; None if none was tested.
        seconds: Seconds that the engine spent in its steps.
        seconds_by_part: Seconds of decoding in the target, in the drafter, in sampler and acceptance rule ("rule"), and
            in the rest.
        cache_bytes: Bytes of the KV caches of the running rows, as far as known.
    """

    running: int
    waiting: int
    requests: int
    completed: int
    cancelled: int
    failed: int
    tokens: int
    row_calls: int
    target_calls: int
    tokens_per_call: float
    tested: int
    accepted: int
    acceptance: float | None
    seconds: float
    seconds_by_part: dict[str, float]
    cache_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


class Totals:
    """Counts of an engine, those of its running groups left out.

    Attributes:
        requests: Requests that were accepted.
        completed: Requests that finished with a result.
        cancelled: Requests that were cancelled.
        failed: Requests that finished with an error.
        seconds: Seconds that the engine spent in its steps.
    """

    def __init__(self) -> None:
        self.requests = self.completed = self.cancelled = self.failed = 0
        self.seconds = 0.0
        self._tokens = self._row_calls = self._calls = self._tested = self._accepted = 0
        self._parts = dict.fromkeys(PARTS, 0.0)

    def add(self, group: Group) -> None:
        """Adds the counts of a group that is dropped; those of its rows were added as they left."""
        meter = group.batch.meter
        self._calls += meter.target_calls
        self._tested += int(meter.tested.sum())
        self._accepted += int(meter.accepted.sum())
        for part, seconds in meter.clock.seconds().items():
            self._parts[part] += seconds

    def add_row(self, row: Row) -> None:
        """Adds the counts of a row that leaves its group."""
        self._tokens += row.decoded
        self._row_calls += row.calls

    def report(self, groups: Sequence[Group], waiting: int) -> EngineStats:
        """The statistics, with those of the running groups.

        Args:
            groups: The running groups.
            waiting: Rows that wait.
        """
        meters, rows = [group.batch.meter for group in groups], [row for group in groups for row in group.rows.values()]
        tokens = self._tokens + sum(row.decoded for row in rows)
        row_calls = self._row_calls + sum(row.calls for row in rows)
        tested = self._tested + sum(int(meter.tested.sum()) for meter in meters)
        accepted = self._accepted + sum(int(meter.accepted.sum()) for meter in meters)
        parts = dict(self._parts)
        for meter in meters:
            for part, seconds in meter.clock.so_far().items():
                parts[part] += seconds
        return EngineStats(
            running=len(rows),
            waiting=waiting,
            requests=self.requests,
            completed=self.completed,
            cancelled=self.cancelled,
            failed=self.failed,
            tokens=tokens,
            row_calls=row_calls,
            target_calls=self._calls + sum(meter.target_calls for meter in meters),
            tokens_per_call=tokens / max(row_calls, 1),
            tested=tested,
            accepted=accepted,
            acceptance=accepted / tested if tested else None,
            seconds=self.seconds,
            seconds_by_part=parts,
            cache_bytes=sum(group.cache_bytes for group in groups),
        )
