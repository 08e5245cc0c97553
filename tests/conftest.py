"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT
