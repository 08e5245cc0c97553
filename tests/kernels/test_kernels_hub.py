"""examples/kernels_hub: the exported package needs torch and Triton only, and verifies as mmspec does."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

CODE = """
import sys

import torch

before = {name.partition(".")[0] for name in sys.modules}
import mmspec_verify as v

more = {name.partition(".")[0] for name in sys.modules} - before - sys.stdlib_module_names
assert more <= {"mmspec_verify", "triton"}, more
p = v.stats_of_probs(torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]]]))
q = v.stats_of_probs(torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]))
u = torch.tensor([[0.25, 0.5, 0.5]])
made = v.verify_window(p, q, torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.0, 0.0]]), torch.tensor([[0, 2, 2]]), u, u)
print(made.accepted.tolist(), made.tokens.tolist())
import mmspec.kernels.accept  # the operators of both can be registered
"""


def test_the_exported_kernels_stand_alone(root: Path, tmp_path: Path) -> None:
    names = runpy.run_path(str(root / "examples" / "kernels_hub" / "export.py"))["export"](tmp_path)
    assert {"accept", "residual", "softmax_stats"} <= set(names)
    build = tomllib.loads((tmp_path / "build.toml").read_text())
    assert (tmp_path / "torch-ext" / build["general"]["name"].replace("-", "_") / "__init__.py").is_file()
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "torch-ext"), str(root)])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1] [[0, 2, 0]]"
