"""mmspec beside other people's code on the same weights: equal greedy tokens, CPU time, tokens per call.

Command:  OMP_NUM_THREADS=1 python peers.py --peer llamagen --repository LlamaGen --out results.json

Every job is run in turns with the others, in the reverse order every other round. The first one, the peer's, runs twice
per round: the ratio of the two is the noise.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from cases import Case, Options, Run
from torch import Tensor

AGAIN = "the first once more"


def differing(one: Tensor, other: Tensor, tolerance: float) -> int | None:
    """Where two results first differ, counted along the flattened tensors; None if they are equal."""
    if one.shape != other.shape:
        return 0
    apart = ((one.double() - other.double()).abs() > tolerance).flatten().nonzero()
    return int(apart[0]) if len(apart) else None


class Refused(logging.Handler):
    """Ends the script where mmspec says that a call ran without it, which would compare the peer with itself."""

    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit(record.getMessage())


def compare_greedy(case: Case, strict: bool) -> dict[str, Any]:
    """By job: where its greedy tokens first differ from those of the first, None if nowhere.

    Raises:
        SystemExit: If an exact job differs and `strict`.
    """
    first, *others = case.jobs
    wanted = case.jobs[first](True).tokens
    if len(wanted.flatten().unique()) < 2:
        raise SystemExit(f"{first} repeats one token, so that equal tokens say nothing; choose other weights (--seed)")
    found = {}
    for name in others:
        if name not in case.inexact:
            found[name] = differing(wanted, case.jobs[name](True).tokens, case.tolerance)
            if strict and found[name] is not None:
                raise SystemExit(f"{name}: greedy tokens differ from those of {first} from place {found[name]} on")
    return {"tokens": wanted.numel(), "differ_from": found}


def timed(job: Callable[[bool], Run], seed: int) -> dict[str, Any]:
    """CPU and wall seconds per step of a sampling call, with all threads of the process."""
    torch.manual_seed(seed)
    wall, cpu = time.perf_counter(), time.process_time()
    run = job(False)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    calls = None if run.calls is None else run.steps / run.calls
    return {"cpu": cpu / run.steps, "wall": wall / run.steps, "steps": run.steps, "tokens_per_call": calls}


def spread(values: Sequence[float]) -> list[float]:
    """Median, smallest, largest."""
    return [round(each, 6) for each in (median(values), min(values), max(values))]


def measure(case: Case, rounds: int, seed: int) -> dict[str, Any]:
    """The times of all jobs, and their ratios to the first job in the same round."""
    first = next(iter(case.jobs))
    jobs = {**case.jobs, AGAIN: case.jobs[first]}
    for job in jobs.values():  # warms up
        timed(job, seed)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    for turn in range(rounds):
        for name in list(jobs)[:: -1 if turn % 2 else 1]:
            found[name].append(timed(jobs[name], seed + turn))
    rows = {}
    for name, runs in found.items():
        rows[name] = {
            "cpu_ms": spread([1000 * run["cpu"] for run in runs]),
            "wall_ms": spread([1000 * run["wall"] for run in runs]),
            "cpu_ratio": spread([base["cpu"] / run["cpu"] for base, run in zip(found[first], runs, strict=True)]),
            "wall_ratio": spread([base["wall"] / run["wall"] for base, run in zip(found[first], runs, strict=True)]),
            "steps": runs[0]["steps"],
        }
        if runs[0]["tokens_per_call"] is not None:
            rows[name]["tokens_per_call"] = spread([run["tokens_per_call"] for run in runs])
    return rows


def environment(case: Case) -> dict[str, Any]:
    """Versions, commits and the processor."""

    def commit(folder: Path) -> str:
        asked = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True)
        return asked.stdout.strip() or "no git repository"

    cpu = Path("/proc/cpuinfo")
    names = [line for line in cpu.read_text().splitlines() if "model name" in line] if cpu.exists() else []
    return {
        "python": platform.python_version(),
        "cpu": names[0].split(":")[1].strip() if names else platform.processor(),
        "threads": torch.get_num_threads(),
        "load": [round(each, 1) for each in os.getloadavg()],
        **{name: version(name) for name in case.packages},
        "repositories": {folder.name: commit(folder) for folder in case.repositories},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    from pocket import pocket
    from repositories import REPOSITORIES
    from transformers_models import MODELS

    makers: dict[str, Callable[[Options], Case]] = {**REPOSITORIES, **MODELS, "pocket": pocket}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=makers, required=True)
    parser.add_argument("--repository", type=Path, help=f"the clone, for {', '.join(REPOSITORIES)}")
    parser.add_argument("--sjd-repository", type=Path, help="the clone of SJD, whose LlamaGen --peer scd decodes")
    parser.add_argument("--size", choices=["tiny", "published"], default="published")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64, help="tokens, columns or frames of a sample")
    parser.add_argument(
        "--recipes", default="", help="of mmspec, separated by semicolons; those of the peer by default"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file, to whose list the result is added")
    args = parser.parse_args(arguments)
    if (args.repository is not None) != (args.peer in REPOSITORIES):
        needs = "needs" if args.peer in REPOSITORIES else "takes no"
        parser.error(f"--peer {args.peer} {needs} --repository")
    if (args.sjd_repository is not None) != (args.peer == "scd"):
        parser.error("--sjd-repository is for --peer scd, which needs it")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    where = tuple(each.resolve() for each in (args.repository, args.sjd_repository) if each is not None)
    recipes = tuple(filter(None, args.recipes.split(";")))
    dtype = getattr(torch, args.dtype)
    case = makers[args.peer](Options(where, args.size, dtype, args.batch, args.tokens, recipes))
    settings = {name: getattr(args, name) for name in ("peer", "size", "dtype", "batch", "tokens", "rounds", "seed")}
    refused = Refused(logging.WARNING)
    logging.getLogger("mmspec").addHandler(refused)
    try:
        greedy = compare_greedy(case, args.dtype == "float32")  # ties and rounding decide between tokens in bfloat16
        jobs = measure(case, args.rounds, args.seed)
    finally:
        logging.getLogger("mmspec").removeHandler(refused)
    result = {**settings, "model": case.model, "environment": environment(case), "greedy": greedy, "jobs": jobs}
    print(json.dumps(result, indent=1))
    if args.out is not None:
        rows = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else []
        args.out.write_text(json.dumps([*rows, result], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
