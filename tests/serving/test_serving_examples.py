"""The examples of serving: the Hub's handler, the load test and the Gradio app."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import socket
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
from PIL import Image
from served import Served, new_models, served


def example(root: Path, name: str) -> types.ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, root / "examples" / "serving" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(new_models()) as running:
        yield running


def test_the_handler_of_inference_endpoints(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmspec

    module = example(root, "handler")
    handler = module.EndpointHandler("")
    found = handler({"inputs": "a red circle", "parameters": {"seed": 1, "recipe": "scd"}})
    assert Image.open(io.BytesIO(base64.b64decode(found["images"][0]))).size == (64, 64)
    assert found["seeds"] == [1] and found["stats"]["tokens"] == 256
    assert "whale" in handler({"inputs": "a blue whale"})["error"]
    assert "sed is not an argument" in handler({"inputs": "a red circle", "parameters": {"sed": 1}})["error"]
    handler.pipe = mmspec.load("spoken")
    found = handler({"inputs": ["hello", "good morning"], "parameters": {"seed": 1}})
    assert len(found["audio"]) == 2
    assert soundfile.info(io.BytesIO(base64.b64decode(found["audio"][0]))).samplerate == 16000


def test_a_small_load_loses_nothing(root: Path, server: Served) -> None:
    script = [sys.executable, "examples/serving/load.py", "--url", server.address, "--clients", "8", "--seconds", "1"]
    done = subprocess.run(script, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (row,) = re.findall(r"^\| 8 clients \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", done.stdout, re.MULTILINE)
    ok, _, refused, lost = map(int, row)
    assert ok >= 4 and refused == lost == 0
    server.wait_idle()


def test_the_gradio_app_has_forty_lines_and_calls_the_server(
    root: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    wired: list[tuple[Callable[..., Any], Any]] = []

    class Widget:
        """Stands in for all of gradio's."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> Widget:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def click(self, function: Callable[..., Any], inputs: Any, output: Any) -> None:
            wired.append((function, inputs))

        def launch(self) -> None:
            pass

    gradio: Any = types.ModuleType("gradio")
    for name in ("Blocks", "Tab", "Number", "Textbox", "Button", "Image", "Dropdown", "Audio"):
        setattr(gradio, name, Widget)
    monkeypatch.setitem(sys.modules, "gradio", gradio)
    monkeypatch.setenv("MMSPEC_URL", f"{server.address}/v1")
    module = example(root, "gradio_app")
    try:
        assert len((root / "examples" / "serving" / "gradio_app.py").read_text().splitlines()) <= 40
        (draw, _), (speak, _) = wired
        images = list(draw("a red circle", 1))
        assert 2 <= len(images) <= 9 and images[-1].size == (512, 512)
        assert soundfile.info(io.BytesIO(speak("hello", "high", 1))).format == "MP3"
    finally:
        module.client.close()


def test_the_dockerfile_names_what_is_there(root: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built: its lines are compared with the package, the command and a running server."""
    from mmspec.cli.app import main

    text = re.sub(r"\\\n", " ", (root / "Dockerfile").read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for name, rest in lines:
        found.setdefault(name, []).append(rest.strip())
    (extra,) = re.findall(r'pip install --no-cache-dir --constraint /docker.lock "/src\[(\w+)\]"', text)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
    assert found["COPY"] == [".ci/docker.lock /docker.lock", ". /src"]
    ignored = (root / ".dockerignore").read_text().split()
    needed = {"pyproject.toml", project["readme"], "mmspec", "audio", "vision", "kernels", "metrics"}
    assert not needed & set(ignored) and all((root / name).exists() for name in needed)
    (version,) = re.findall(r"python:3\.(\d+)-slim", found["FROM"][0])
    assert f"Programming Language :: Python :: 3.{version}" in project["classifiers"]
    (user,), (folder,) = found["USER"], found["WORKDIR"]
    assert f"useradd --create-home --uid {user} {folder.removeprefix('/home/')}" in text

    (entry,), (command,), (port,) = found["ENTRYPOINT"], found["CMD"], found["EXPOSE"]
    assert json.loads(entry) == ["mmspec"] and "mmspec" in project["scripts"]
    seen: list[Any] = []
    monkeypatch.setattr("mmspec.cli.serve._run", lambda *arguments, **options: seen.append(arguments))
    assert main(json.loads(command)) == 0
    names, _, settings = seen[0][:3]
    assert (names, settings.host, str(settings.port)) == (["shapes", "spoken"], "0.0.0.0", port)

    probe = json.loads(found["HEALTHCHECK"][0].partition("CMD")[2])
    assert f":{port}/health" in probe[2]
    for address, status in ((server.address, 0), (f"http://127.0.0.1:{unused_port()}", 1)):
        code = probe[2].replace(f"http://127.0.0.1:{port}", address)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True)
        assert done.returncode == status, done.stderr


def unused_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
