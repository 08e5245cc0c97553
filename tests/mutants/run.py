"""Runs the tests of every mutant against it: `python tests/mutants/run.py [-o results.json] [NAME ...]`.

A mutant is a small error, written into a scratch copy of the checkout. Its tests must fail then. The run uses one
process at low priority, takes about an hour, and prints a table. With `-o` it goes on where it stopped: mutants in the
file are not run again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from mutant_catalog import Mutant, catalog  # noqa: E402

# Imported once; a process for each mutant is forked afterwards. mmspec itself must not be among them.
PRELOADED = ("numpy", "torch", "pytest", "transformers", "diffusers")
PYTEST = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
OUTCOMES = {0: "lives", 1: "killed"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutants whose names contain one of these; default: all")
    parser.add_argument("-o", "--output", type=Path, help="JSON file of results; finished mutants are not run again")
    parser.add_argument("--seconds", type=float, default=600, help="limit for one mutant; default: 600")
    parser.add_argument("--nice", type=int, default=15, help="how much to lower the priority; default: 15")
    options = parser.parse_args(arguments)
    chosen = [m for m in catalog() if not options.names or any(name in m.name for name in options.names)]
    results = json.loads(options.output.read_text()) if options.output and options.output.exists() else {}
    os.nice(options.nice)
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1"}
    sys.dont_write_bytecode = True  # sources of equal size change within a second
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as scratch:
        copy_checkout(Path(scratch))
        for mutant in chosen:
            if mutant.name not in results:
                outcome, by = run(mutant, Path(scratch), options.seconds)
                results[mutant.name] = {"outcome": outcome, "by": by}
                print(f"{outcome:<8} {mutant.name} {by}", file=sys.stderr, flush=True)
                if options.output:
                    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(table(chosen, results))
    return int(any(results[m.name]["outcome"] not in ("killed", "time") and not m.lives for m in chosen))


def copy_checkout(target: Path) -> None:
    """Copies what git knows, changed files included."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def run(mutant: Mutant, scratch: Path, seconds: float) -> tuple[str, str]:
    """Runs a mutant's tests in the scratch copy until one fails.

    Returns:
        "killed", "lives", "time" (a kill, by never ending) or "error"; and the test that failed.
    """
    file = scratch / mutant.file
    source = file.read_text()
    file.write_text(mutant.apply(source))
    output = scratch / "output.txt"
    try:
        child = os.fork()
        if not child:
            status = 9
            try:
                status = run_tests(mutant, scratch, output)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        deadline = time.monotonic() + seconds
        while not (done := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "time", f"after {seconds:.0f} s"
            time.sleep(0.2)
    finally:
        file.write_text(source)
    text = output.read_text()
    failed = [line.removeprefix("FAILED tests/").partition(" - ")[0] for line in text.splitlines() if "FAILED " in line]
    outcome = OUTCOMES.get(os.waitstatus_to_exitcode(done[1]), "error")
    return outcome, failed[0] if failed else "" if outcome == "lives" else text.strip().splitlines()[-1][-120:]


def run_tests(mutant: Mutant, scratch: Path, output: Path) -> int:
    """In a forked process: the exit status of pytest, 1 for a failure."""
    os.setsid()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(scratch)
    sys.path[:] = [str(scratch), *(path for path in sys.path if not path.startswith(str(ROOT)))]
    import pytest
    import torch

    torch.set_num_threads(1)
    for test in mutant.tests:
        file, _, expression = test.partition(" -k ")
        words = [f"tests/{file}", *(["-k", shlex.split(expression)[0]] if expression.startswith("'") else [])]
        if expression and not expression.startswith("'"):
            words += ["-k", expression]
        status = int(pytest.main([*words, "-n", "0", "-x", "-q", "--tb=line", *PYTEST]))
        if status:
            sys.stdout.flush()
            return status
    sys.stdout.flush()
    return 0


def table(mutants: list[Mutant], results: dict[str, dict[str, str]]) -> str:
    """A Markdown table of the results, by folder, and the mutants that live."""
    lines = ["| folder | mutants | killed | survivors |", "| --- | ---: | ---: | --- |"]
    folders = [mutant.file.rpartition("/")[0] for mutant in mutants]
    for folder in dict.fromkeys(folders):
        here = [m for m, its in zip(mutants, folders, strict=True) if its == folder]
        living = [m for m in here if results[m.name]["outcome"] not in ("killed", "time")]
        names = "; ".join(f"{m.name} ({m.lives or 'NOT EXPECTED: ' + results[m.name]['outcome']})" for m in living)
        lines.append(f"| `{folder}` | {len(here)} | {len(here) - len(living)} | {names} |")
    killed = sum(results[m.name]["outcome"] in ("killed", "time") for m in mutants)
    return "\n".join([*lines, f"| all | {len(mutants)} | {killed} | |"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
