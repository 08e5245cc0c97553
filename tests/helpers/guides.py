"""Packages that the guides in docs/ describe, laid out as pip leaves them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(guide: str, site: Path) -> None:
    """Writes the module and the entry point of a guide into the folder `site`.

    Args:
        guide: A file name in docs/ with one Python block, whose first line names the module, and one TOML block.
        site: A folder for the import path.
    """
    text = (ROOT / "docs" / guide).read_text()
    (module,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ((section, line),) = re.findall(r'\[project.entry-points."(.*?)"\]\n(.*?)\n```', text, re.DOTALL)
    (name,) = re.findall(r"\A# (\w+)\.py\n", module)
    (site / f"{name}.py").write_text(module)
    installed = site / f"{name}-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{section}]\n{line.replace(chr(34), '')}\n")


def make_files(guide: str, folder: Path) -> None:
    """Runs the Python commands that a guide prints, in a folder."""
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / guide).read_text(), re.DOTALL)
    for line in block.splitlines():
        if line.startswith("python "):
            words = [sys.executable, *shlex.split(line)[1:]]
            paths = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            subprocess.run(words, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": paths}, timeout=120)


_EACH = """
import sys
from mmspec.cli.app import main
for line in sys.argv[1:]:
    status = main(line.split("\\n"))
    if status:
        sys.exit(status)
    print("\\f", end="", flush=True)
"""


def run_mmspec(site: Path, *commands: list[str]) -> list[str]:
    """The standard output of each command; one process, with `site` on the import path, runs them one after another."""
    paths = [str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _EACH, *("\n".join(words) for words in commands)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\f")[:-1]
