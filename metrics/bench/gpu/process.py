"""Each part of the benchmark in a process of its own: an error on a device may end every later call of its process.

`python -m mmspec.metrics.bench.gpu.process PART DEVICE SIZE FILE` runs one and appends a line of JSON per record.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

SIZES = ("whole", "tiny")


def run_parts(device: str, size: str, names: list[str], limit: float, on_part: Callable[[str], None]) -> dict[str, Any]:
    """Runs parts one after the other.

    Args:
        device: Where they run.
        size: One of `SIZES`.
        names: Of the parts.
        limit: Seconds for all of them; a part that would begin later is skipped.
        on_part: Called before each.

    Returns:
        By name: `status` ("ok", "failed", "timeout" or "skipped"), `seconds`, `records` (those that were finished,
        whatever happened later), and `error`, one line or None.
    """
    from mmspec.metrics.bench.gpu.plan import SECONDS

    start, found = time.monotonic(), dict[str, Any]()
    for name in names:
        left = limit - (time.monotonic() - start)
        if left < 1:
            found[name] = {"status": "skipped", "seconds": 0.0, "records": [], "error": "no time was left"}
            continue
        on_part(name)
        found[name] = run_part(name, device, size, min(left, SECONDS[name]))
    return found


def run_part(name: str, device: str, size: str, seconds: float) -> dict[str, Any]:
    """Runs a part in its own process; see `run_parts`."""
    root = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    start = time.monotonic()
    with TemporaryDirectory() as folder:
        output = Path(folder, "records.jsonl")
        output.touch()
        words = [sys.executable, "-m", __name__, name, device, size, str(output)]
        status, error = "ok", None
        process = subprocess.Popen(
            words, env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            _, stderr = process.communicate(timeout=seconds)
            if process.returncode:
                status, error = "failed", _last_line(stderr) or f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            _end(process)
            status, error = "timeout", f"ended after {seconds:.0f} s"
        except BaseException:  # an interrupt
            _end(process)
            raise
        lines = output.read_text(encoding="utf-8").splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return {"status": status, "seconds": time.monotonic() - start, "records": records, "error": error}


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a part with the processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.communicate()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def main(name: str, device: str, size: str, output: str) -> None:
    """Runs one part in this process and appends its records to a file."""
    from mmspec.metrics.bench.gpu.parts import PARTS
    from mmspec.metrics.bench.gpu.plan import WHOLE, tiny

    plan = tiny() if size == "tiny" else WHOLE
    with open(output, "a", encoding="utf-8") as lines:
        for record in PARTS[name](plan, torch.device(device)):
            lines.write(json.dumps(record) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
