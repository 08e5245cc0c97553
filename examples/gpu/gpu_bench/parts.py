"""The parts of a GPU day, in the order in which they run, and their limits."""

from __future__ import annotations

from gpu_bench.device_tests import tests
from gpu_bench.embedded import embedded
from gpu_bench.kernels import kernels
from gpu_bench.models import models
from gpu_bench.records import PartRun
from gpu_bench.smoke import smoke

PARTS: dict[str, PartRun] = {
    "smoke": smoke, "tests": tests, "models": models, "embedded": embedded, "kernels": kernels,
}  # fmt: skip
