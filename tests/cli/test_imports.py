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

LOADING = """
import sys, mmspec

pipe = mmspec.load("shapes")
pipe.set_progress_bar_config(disable=True)
pipe("a red circle", recipe="table", seed=0)
print("mmspec.heads.checkpoint" in sys.modules)
for name in ("scenes", "shapes-latent", "spoken"):
    mmspec.load(name)
print(*sys.modules)
"""


def test_python_loads_the_models_of_the_package_as_quickly_as_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    head_of_shapes, modules = done.stdout.splitlines()
    assert head_of_shapes == "False"  # which no recipe but `eagle` needs
    assert not [name for name in modules.split() if name.startswith(HEAVY)]


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
