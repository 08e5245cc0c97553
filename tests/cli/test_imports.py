"""`mmspec image` and `mmspec speak` with the models of the package do not import what takes longer than their work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from mmspec.cli.app import main
status = [main(arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps([status, list(sys.modules)]))
"""
HEAVY = ("diffusers", "transformers", "torchaudio", "torchvision", "scipy", "sympy", "torch._dynamo", "torch._inductor")
COMMANDS = [
    ["image", "a red circle", "-o", "a.png"],
    ["image", "a red circle", "-o", "b.png", "--recipe", "draft", "--temperature", "0"],
    ["image", "a red circle", "-o", "c.png", "-m", "shapes-latent", "--recipe", "plain"],
    ["speak", "the red door", "-o", "d.wav"],
]


def test_commands_import_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(COMMANDS)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    *printed, last = done.stdout.splitlines()
    status, modules = json.loads(last)
    assert (status, done.stderr) == ([0] * len(COMMANDS), "")
    assert printed == ["a.png", "b.png", "c.png", "d.wav"]
    assert not [name for name in modules if name.startswith(HEAVY)]
