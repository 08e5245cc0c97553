"""The command: its arguments, and what it says where something is missing."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest
from golden import GOLDEN

from mmspec.cli.app import main


@pytest.mark.parametrize("command", [["serve", "shapes"], ["demo"]])
@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client"])
def test_without_the_extra_the_error_names_it(
    command: list[str], missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == missing else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert main(command) == 2
    expected = f"mmspec: error: the server needs {missing}, which is not installed; "
    expected += "run pip install '.[serve]' in a checkout of mmspec\n"
    assert capsys.readouterr().err == expected


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*arguments: str) -> str:
        assert main(["serve", *arguments]) == 2
        found = capsys.readouterr().err
        assert found.count("\n") == 1
        return found

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"--port {port}: Address already in use; choose another port" in error("shapes", "--port", port)
    assert "--host 'no.such.host.invalid' is not an address" in error("shapes", "--host", "no.such.host.invalid")
    assert "unknown recipe 'sdc'" in error("shapes", "--recipe", "sdc")
    assert "unknown model 'shape' (did you mean 'shapes'?)" in error("shape", "--port", "0")
    assert "MODEL is named twice: shapes, shapes" in error("shapes", "shapes", "--port", "0")
    videos = str(GOLDEN / "cosmos_base")
    assert "cannot be served; `mmspec serve` takes speech and image models, and Cosmos" in error(videos, "--port", "0")
    assert "--api-key-file: cannot read" in error("shapes", "--api-key-file", str(tmp_path / "none"))
