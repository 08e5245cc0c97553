"""How far the processes of a bulk run are, from what they have written; nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmspec.bulk.folder import ShardFolder, is_locked
from mmspec.environment.distributed import Shard
from mmspec.errors import ArgumentError

RUNNING, FINISHED, STOPPED, MISSING = "running", "finished", "stopped", "not started"


@dataclass(frozen=True)
class ShardStatus:
    """How far one process is.

    Attributes:
        shard: Its part of the samples.
        state: "running", "finished", "stopped" before its end, or "not started".
        samples: Samples of its part; None if unknown.
        finished: Samples that its journal has, also of runs over other prompts.
        failed: Samples that the model refused in its last run.
        rate: Samples per second of its last run; None before its first.
        left: Samples that are neither finished nor refused; None if unknown.
        idle: Seconds since its last sample; None before the first.
    """

    shard: Shard
    state: str
    samples: int | None
    finished: int
    failed: int
    rate: float | None
    left: int | None
    idle: float | None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until it has finished, at its rate, if it runs."""
        if self.state != RUNNING or self.left is None or not self.rate:
            return None
        return self.left / self.rate


def read_status(output: Path) -> list[ShardStatus]:
    """The processes that have written into an output, and those that share its samples with them but have not started.

    Raises:
        ArgumentError: If the folder is not that of a bulk run, or one of its files is damaged.
    """
    folders = ShardFolder(output, Shard()).everyone() if output.is_dir() else []
    found = {folder.shard: _status(folder) for folder in folders if folder.path.is_dir()}
    if not found:
        raise ArgumentError(f"--status: '{output}' is not the folder of a run of `mmspec generate`")
    # Of several ways to share the samples, the last one is at work.
    last = max((folder for folder in folders if folder.shard in found), key=lambda folder: folder.latest)
    for index in range(last.shard.count):
        shard = Shard(index, last.shard.count)
        found.setdefault(shard, ShardStatus(shard, MISSING, None, 0, 0, None, None, None))
    return [found[shard] for shard in sorted(found, key=lambda shard: (shard.count, shard.index))]


def _status(folder: ShardFolder) -> ShardStatus:
    start = next((record for record, _ in folder.start.read()), None)
    finished, failed = folder.journal.count(), folder.failures.count()
    running = is_locked(folder.path)
    latest, begun = folder.journal.modified(), folder.start.modified()
    idle = None if latest is None else max(time.time() - latest, 0.0)
    if start is None:
        return ShardStatus(folder.shard, RUNNING if running else STOPPED, None, finished, failed, None, None, idle)
    made = finished - start.lines
    left = max(start.samples - start.before - made - failed, 0)
    state = RUNNING if running else STOPPED if left else FINISHED
    seconds = 0.0 if latest is None or begun is None else latest - begun
    rate = made / seconds if made > 0 and seconds > 0 else None
    return ShardStatus(folder.shard, state, start.samples, finished, failed, rate, left, idle)


def table(statuses: Sequence[ShardStatus]) -> str:
    """A line for each process, and one for all."""
    rows: list[tuple[str, ...]] = [
        ("shard", "state", "finished", "left", "failed", "samples/s", "time left", "last sample")
    ]
    rows += [_cells(f"{one.shard.index}/{one.shard.count}", one.state, [one]) for one in statuses]
    if len(statuses) > 1:
        running = sum(one.state == RUNNING for one in statuses)
        rows.append(_cells("all", f"{running} running", statuses))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _cells(name: str, state: str, statuses: Sequence[ShardStatus]) -> tuple[str, ...]:
    left = [one.left for one in statuses]
    rates = [one.rate for one in statuses if one.rate is not None and (one.state == RUNNING or len(statuses) == 1)]
    rest = [one.seconds_left for one in statuses if one.seconds_left is not None]
    idle = [one.idle for one in statuses if one.idle is not None]
    return (
        name,
        state,
        f"{sum(one.finished for one in statuses):,}",
        "-" if None in left else f"{sum(filter(None, left)):,}",
        f"{sum(one.failed for one in statuses):,}",
        f"{sum(rates):.3g}" if rates else "-",
        duration(max(rest)) if rest else "-",
        f"{duration(min(idle))} ago" if idle else "-",
    )


def duration(seconds: float) -> str:
    """Seconds as `03:20` or `1:03:20`."""
    from tqdm import tqdm

    text: str = tqdm.format_interval(seconds)
    return text
