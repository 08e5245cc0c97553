"""Commands that write are killed in the middle of it: no half a file keeps a final name, and they run again."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml
from forked_commands import start
from PIL import Image
from safetensors import safe_open

pytestmark = pytest.mark.slow

TRAINING = [
    "--kind", "medusa", "--sequences", "6", "--held-out", "2", "--steps", "3", "--batch", "2", "--save-every", "1",
]  # fmt: skip
COMMANDS: dict[str, list[str]] = {
    "image": ["image", "a red circle above a blue square", "a green star", "-n", "2", "-o", "out"],
    "speak": ["speak", "hello", "good morning", "-o", "out"],
    "bench": ["bench", "kernels", "--batch", "1", "--window", "2", "--vocab", "8", "--repeats", "1", "-o", "x.json"],
    "eval": ["eval", "-o", "out", "--limit", "2", "--seeds", "0..1", "--metrics", "attributes"],
    "generate": ["generate", "--prompts", "prompts.txt", "-o", "out", "--batch", "1"],
    "measure": ["measure", "images", "--metrics", "fd@shapes", "--save-reference", "x.npz"],
    "report": ["report", "results", "-o", "x.html"],
    "train-drafter": ["train-drafter", "-o", "out", *TRAINING, "--validate-every", "1"],
    "convert": ["convert", "model", "-o", "out"],
}


def check_whole(path: Path) -> None:
    """Reads a file completely; fails if it is cut off."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            image.load()
    elif path.suffix == ".wav":
        assert len(soundfile.read(path)[0])
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".yaml":
        assert yaml.safe_load(path.read_text())
    elif path.suffix == ".html":
        assert path.read_text().endswith("</html>\n")
    elif path.suffix == ".csv":
        assert len({len(row) for row in csv.reader(path.read_text().splitlines())}) == 1
    elif path.suffix == ".npz":
        with np.load(path) as arrays:
            assert {key: arrays[key] for key in arrays}
    elif path.suffix == ".safetensors":
        with safe_open(path, "np") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (not a dictionary)
                tensors.get_tensor(key)


def files_of(folder: Path) -> set[Path]:
    found: set[Path] = set()
    for place, _, names in os.walk(folder):  # files may disappear meanwhile
        found.update(Path(place) / name for name in names)
    return found


def run(arguments: list[str], folder: Path, kill_after: int | None = None) -> int | None:
    """Runs a command; returns its status, None if it was killed when it had made `kill_after` new files."""
    before = files_of(folder)
    process = start(arguments, folder, folder.parent / f"{folder.name}.log")
    stop = time.monotonic() + 240
    while process.is_alive():
        assert time.monotonic() < stop, "hangs"
        if kill_after is not None and len(files_of(folder) - before) >= kill_after:
            process.kill()
            process.join()
            return None
        process.join(0.004 if kill_after is not None else 0.05)  # shorter ones take the core of the command
    return process.exitcode


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Path]:
    """A folder with what the commands read; meanwhile, processes find the modules of this checkout."""
    import mmspec

    folder = tmp_path_factory.mktemp("inputs")
    (folder / "images").mkdir()
    for i in range(6):
        pixels = np.random.default_rng(i).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
    (folder / "prompts.txt").write_text("a red circle\na green star\na blue cross\n")
    mmspec.load("shapes").save_pretrained(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(root / "tests" / "helpers")]))
        patch.setenv("OMP_NUM_THREADS", "1")
        assert run(["eval", "-o", "results", "--limit", "2", "--metrics", "attributes"], folder) == 0
        yield folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_leaves_whole_files_and_runs_again(name: str, inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for one in inputs.iterdir():
        if name == "report" and one.name == "results":
            subprocess.run(["cp", "-r", one, folder / one.name], check=True)
        else:
            (folder / one.name).symlink_to(one)
    killed = 0
    for kill_after in (1, 2, 3):
        before = files_of(folder)
        killed += run(COMMANDS[name], folder, kill_after) is None
        for path in files_of(folder):
            if not any(part.startswith(".mmspec-") for part in path.relative_to(folder).parts):
                check_whole(path)
        if name in (
            "convert",
            "bench",
            "measure",
        ):  # they make one output, and a finished one would be refused or replaced
            for path in files_of(folder) - before:
                with contextlib.suppress(OSError):
                    path.unlink()
            with contextlib.suppress(OSError):
                (folder / "out").rmdir()
    assert killed
    assert run(COMMANDS[name], folder) == 0, (tmp_path / "work.log").read_text()[-2000:]
    for path in files_of(folder):
        if not any(part.startswith(".mmspec-") for part in path.relative_to(folder).parts):
            check_whole(path)
    if name in ("eval", "report"):  # what the kills left behind is swept
        assert not list((folder / ("out" if name == "eval" else "results")).rglob(".mmspec-*.part"))
