"""A GPU day: every part in a process of its own, one record and one page, and what is slower than at the last record.

An error on a device may end every later call of its process. `python -m gpu_bench.day --help` has the options.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from gpu_bench.counts import FILE, predicted
from gpu_bench.page import page, table_of_changes
from gpu_bench.plan import SECONDS
from gpu_bench.regressions import changes

from mmspec.metrics.environment import environment

HERE, ROOT = Path(__file__).parents[1], Path(__file__).parents[3]
RECORD, PAGE, LAST = "gpu.json", "gpu.html", HERE / "h100.json"
TOTAL = 720.0
SCHEMA_VERSION = 2


def main(words: list[str] | None = None) -> int:
    """Runs parts and writes their record after each; 1 if one of them did not end well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(SECONDS)}; all if none is named")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("runs/gpu"), help=f"the folder of {RECORD} and {PAGE}"
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1; cpu with --tiny only")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: every part at tiny sizes, on a CPU too")
    parser.add_argument("--limit", type=float, default=TOTAL, help="seconds for all parts")
    parser.add_argument("--last", type=Path, default=LAST, help="the record to compare with")
    given = parser.parse_args(words)
    names = given.parts or list(SECONDS)
    if unknown := [name for name in names if name not in SECONDS]:
        parser.error(f"unknown part {unknown[0]!r}; it must be one of {', '.join(SECONDS)}")
    if not given.tiny and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --tiny --device cpu rehearses on a CPU")
    given.output.mkdir(parents=True, exist_ok=True)
    target = given.output / RECORD
    # Parts of an earlier call in the same folder stay.
    parts: dict[str, Any] = json.loads(target.read_text())["parts"] if target.exists() else {}
    last, counts = json.loads(given.last.read_text()), json.loads(FILE.read_text())
    start = time.monotonic()
    for i, name in enumerate(names):
        print(f"{name} ...", file=sys.stderr, flush=True)
        left = given.limit - (time.monotonic() - start)
        # What earlier parts have left over goes to the next one.
        seconds = max(min(SECONDS[name], left), left - sum(SECONDS[later] for later in names[i + 1 :]))
        parts[name] = run_part(name, given.device, given.tiny, seconds)
        record = {
            "schema_version": SCHEMA_VERSION,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": {"device": given.device, "size": "tiny" if given.tiny else "whole", "limit": given.limit},
            "environment": environment(),
            "parts": parts,
        }
        parts["predicted"] = {"status": "ok", "seconds": 0.0, "records": list(predicted(record, counts)), "error": None}
        target.write_text(json.dumps(record) + "\n", encoding="utf-8")
        (given.output / PAGE).write_text(page(record, last), encoding="utf-8")
    for name in names:
        part = parts[name]
        errors = [one for one in part["records"] if "error" in one]
        counts = f"{len(part['records'])} records, {len(errors)} errors"
        print(f"{name:<10} {part['status']:<8} {part['seconds']:6.1f} s  {counts}  {part['error'] or ''}".rstrip())
        for one in errors[:10]:
            print(f"    {one}")
    print(table_of_changes(changes(record, last), record, last))
    print(f"{target}\n{given.output / PAGE}")
    return 0 if all(parts[name]["status"] == "ok" for name in names) else 1


def run_part(name: str, device: str, small: bool, seconds: float) -> dict[str, Any]:
    """Runs a part in its own process.

    Returns:
        `status` ("ok", "failed", "timeout" or "skipped"), `seconds`, `records` (those that were finished, whatever
        happened later), and `error`, one line or None.
    """
    if seconds < 1:
        return {"status": "skipped", "seconds": 0.0, "records": [], "error": "no time was left"}
    paths = os.pathsep.join(filter(None, [str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]))
    start = time.monotonic()
    with TemporaryDirectory() as folder:
        output = Path(folder, "records.jsonl")
        output.touch()
        words = [sys.executable, "-m", "gpu_bench.part", name, device, "tiny" if small else f"{seconds}", str(output)]
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


if __name__ == "__main__":
    sys.exit(main())
