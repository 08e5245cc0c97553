"""Settings and fixtures of all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

# Tests do not use the network. The Hub's client reads this variable when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
# Without a CUDA device, kernels run in Triton's interpreter. Triton reads this variable when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
# Fixtures of the browser and of kernels; options, fixtures and the summary of tests/fuzz.
pytest_plugins = ["chromium", "fuzzing_plugin", "kernel_device"]


def pytest_configure() -> None:
    gc.disable()  # what is imported stays: looking through it again and again takes a third of the collection's time
    if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
        from mended_interpreter import mend

        mend()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):  # keywords have the names of folders too
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that is skipped in a fresh clone, where only a CUDA device may be missing."""
    report = yield
    fresh = os.environ.get("CI") == "true" and not torch.cuda.is_available()
    if fresh and report.skipped and not hasattr(report, "wasxfail") and not item.get_closest_marker("gpu"):
        report.outcome = "failed"
        report.longrepr = f"only tests marked gpu may be skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT
