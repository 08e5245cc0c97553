"""The results of `peers.py` as a Markdown table.

Command:  python table.py results.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HEADER = (
    "model", "weights", "rows", "steps", "job", "CPU ms per step", "wall ms", "times as fast, CPU", "tokens per call",
    "greedy tokens",
)  # fmt: skip


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """One line per job; a ratio is that of the first job's CPU time in the same round, median [smallest, largest]."""
    lines = [HEADER, tuple("---" for _ in HEADER)]
    for result in results:
        jobs, differ = result["jobs"], result["greedy"]["differ_from"]
        for i, (name, job) in enumerate(jobs.items()):
            where = (result["model"], result["dtype"], str(result["batch"]), str(job["steps"]))
            place = differ.get(name)
            equal = "equal" if place is None else f"differ from {place} on"
            calls = f"{job['tokens_per_call'][0]:.2f}" if "tokens_per_call" in job else ""
            ratio = "1" if i == 0 else "{:.2f} [{:.2f}, {:.2f}]".format(*job["cpu_ratio"])
            times = (f"{job['cpu_ms'][0]:.1f}", f"{job['wall_ms'][0]:.1f}", ratio)
            lines.append((*(where if i == 0 else ("",) * 4), name, *times, calls, equal if name in differ else ""))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
