"""The scripts of docs/models/scripts.md and the call of README.md, as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image
from script_folders import FOLDERS

pytestmark = [
    pytest.mark.releases,
    # Of transformers: where neither the call nor the tiny model says how long, as published ones do, and of any call of
    # Dia's processor.
    pytest.mark.filterwarnings("ignore:Using the model-agnostic default", "ignore:`max_length` is ignored when"),
]

ROOT = Path(__file__).parents[2]
MODELS, README = (ROOT / "docs" / "models" / "scripts.md").read_text(), (ROOT / "README.md").read_text()
# Their own `generate` does not know `custom_generate`.
OVERRIDING = ("MusicGen", "Dia")


def section(page: str, heading: str) -> str:
    """The text under a heading of the second level."""
    (found,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return str(found)


def block(text: str, first: str) -> str:
    """The code that begins with a line."""
    (found,) = re.findall(rf"```python\n({first}\n.*?)```", text, re.DOTALL)
    return str(found)


SCRIPTS = dict(
    re.findall(r"^### ([^\n]+)\n\n```python\n(.*?)```", section(MODELS, "Scripts"), re.MULTILINE | re.DOTALL)
)
CALL = block(section(README, "In a transformers script"), "import mmspec")
CALL_OF_OVERRIDING = block(section(MODELS, "Calls"), "from transformers.generation import GenerationMixin")


def run(code: str, variables: dict[str, Any], name: str) -> Any:
    """Runs printed code, and returns the ids or audio that its call of `generate` made."""
    variables.pop("ids", None)
    variables.pop("audio", None)
    exec(compile(code, f"the script {name}", "exec"), variables)
    (made,) = (variables[key] for key in ("ids", "audio") if key in variables)
    return made


def test_there_is_a_short_script_for_each() -> None:
    assert list(SCRIPTS) == list(FOLDERS)
    for script in SCRIPTS.values():
        assert len([line for line in script.splitlines() if line and not line.startswith(("import", "from"))]) <= 12


@pytest.mark.parametrize("name", FOLDERS)
def test_the_script_runs_as_printed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FOLDERS[name]()
    variables: dict[str, Any] = {}
    assert all(len(row) > 0 for row in run(SCRIPTS[name], variables, name))
    saved = re.findall(r"save\(\"(.*?)\"\)", SCRIPTS[name])
    assert len(saved) == 1 or variables["tokens"].numel() > 1
    for file in saved:
        if file.endswith(".png"):
            with Image.open(file) as image:
                assert min(image.size) > 1
        else:
            audio, _ = soundfile.read(file)
            assert len(audio) > 0 and np.isfinite(audio).all()
    # The model and the inputs are those of the call in README.md too.
    call = CALL_OF_OVERRIDING if name in OVERRIDING else CALL
    if name == "Janus":  # as the page says below the call
        call = call.replace("model.generate(", "GenerationMixin.generate(model, guidance_scale=5, ")
    assert all(len(row) > 0 for row in run(call, variables, f"{name}, with the call of the page"))
