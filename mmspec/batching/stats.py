"""Statistics of an engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
