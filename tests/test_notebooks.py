"""The notebooks of examples/notebooks: shown with their outputs, and run cell by cell."""

from __future__ import annotations

import ast
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmspec.audio.outputs import AudioOutput
from mmspec.cli.app import main
from mmspec.decoding.stats import Stats

NAMES = ("images", "speech")
MOST_BYTES = 300_000


def code_cells(root: Path, name: str) -> list[dict[str, Any]]:
    book = json.loads((root / "examples" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def test_there_are_no_others(root: Path) -> None:
    assert sorted(path.stem for path in (root / "examples" / "notebooks").glob("*.ipynb")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_shown_with_outputs(root: Path, name: str) -> None:
    assert (root / "examples" / "notebooks" / f"{name}.ipynb").stat().st_size < MOST_BYTES
    cells = code_cells(root, name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert "execute_result" in kinds and "stream" in kinds and "error" not in kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_they_run(root: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in code_cells(root, name):
        shown = any(output["output_type"] == "execute_result" for output in cell["outputs"])
        value = run("".join(cell["source"]), names)
        assert (value is not None) == shown


def run(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell as IPython does; returns the value of its last expression."""
    lines = source.replace("\\\n", " ").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("!mmspec "):
            lines[number] = f"assert _mmspec({shlex.split(line)[1:]!r}) == 0"
    tree = ast.parse("\n".join(lines))
    names["_mmspec"] = main
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return None


def test_audio_is_a_player() -> None:
    made = AudioOutput(np.zeros((1, 400), np.float32), 16_000, [], 0, [], False, Stats(0, 0, 0.0, [], 0, 0.0, {}, 0))
    assert str(made._repr_html_()).startswith('<audio controls src="data:audio/flac;base64,ZkxhQ')
    assert replace(made, audio=np.zeros((1, 0), np.float32))._repr_html_() is None
