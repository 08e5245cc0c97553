"""The Python of docs/images-in-five-minutes.md and docs/speech-in-five-minutes.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(("page", "files"), [("images", {"out.png", "star.png"}), ("speech", {"light.wav"})])
def test_the_page_runs(page: str, files: set[str], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (root / "docs" / f"{page}-in-five-minutes.md").read_text()
    embedded, _ = text.split("## Your model")  # what follows is on the Hub
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", embedded, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, page, "exec"), variables)
    assert files <= {path.name for path in tmp_path.iterdir()}
