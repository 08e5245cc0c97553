"""Models in parts on two processes (transformers' `tp_plan`), which decode together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensor_parallel


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`")  # an image has its own length
def test_two_processes_generate_the_tokens_of_one(tmp_path: Path, root: Path) -> None:
    script = root / "tests" / "helpers" / "tensor_parallel.py"
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    tensor_parallel.save(tmp_path)
    done = subprocess.run([*torchrun, script, tmp_path], env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert all(equal for model in found.values() for equal in model["equal"].values()), found
        assert all(model["split"] >= 14 for model in found.values()), found  # seven matrices in each of two layers
