"""The tests marked gpu, of a checkout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import torch
from gpu_bench.plan import Plan
from gpu_bench.records import Record

ROOT = Path(__file__).parents[3]
TESTS = (
    "tests/sampling/test_lazy_probs.py",
    "tests/decoding/test_cuda_graphs.py",
    "tests/decoding/test_captured.py",
    "tests/vision/test_fused_layers.py",
    "tests/hf/test_fused_decoder_layers.py",
    "tests/kernels",
)
ENDING = 20.0  # seconds before the limit of the part at which the tests are stopped, so that they can report


def tests(plan: Plan, device: torch.device) -> Iterator[Record]:
    """One record per failed test, and their numbers; on a CPU all are skipped."""
    with TemporaryDirectory() as folder:
        found = Path(folder, "junit.xml")
        # Without the options of pyproject.toml, which need plugins.
        words = [
            "-o",
            "addopts=",
            "--import-mode=importlib",
            "-m",
            "gpu and not slow",
            "-q",
            "--maxfail=20",
            "--continue-on-collection-errors",
        ]
        words += ["-p", "no:cacheprovider", "-p", "no:benchmark", f"--junitxml={found}", *(plan.tests or TESTS)]
        workers = min(16, (os.cpu_count() or 1) - 2)  # most of the time goes into compiling kernels, on one core each
        if workers > 1 and find_spec("xdist") is not None:
            words += ["-n", str(workers)]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=plan.seconds["tests"] - ENDING)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate()
            yield {"case": "all tests", "error": "stopped at the limit; the numbers are those of the tests that ended"}
        if not found.exists():
            yield {"case": "pytest", "error": said[-2000:]}
            return
        counts = {"passed": 0, "failed": 0, "skipped": 0}
        for case in ElementTree.parse(found).iter("testcase"):
            bad = case.find("failure") if case.find("error") is None else case.find("error")
            if bad is not None:
                name = f"{case.get('classname')}::{case.get('name')}"
                yield {"case": name, "error": (bad.get("message") or bad.text or "")[:600]}
            counts["failed" if bad is not None else "skipped" if case.find("skipped") is not None else "passed"] += 1
    yield {"case": "pytest", **counts}
