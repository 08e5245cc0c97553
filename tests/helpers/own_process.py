"""Runs a helper that counts on a device in a process of its own, since the device cannot be taken away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def printed(root: Path, script: str) -> dict[str, Any]:
    """The JSON that a script of this folder prints last.

    Args:
        root: The root of the repository.
        script: The name of the script.
    """
    done = subprocess.run(
        [sys.executable, script], cwd=root / "tests" / "helpers",
        env={"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
