"""Every file that a command reads may be a FIFO, a device, or larger than memory: the command says so at once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_speech
from fuzzing import time_limit

from mmspec.cli.app import main

# The file that is replaced, and the words of the command; folders are made by `make`.
READERS: dict[str, tuple[str, str]] = {
    "prompts of generate": ("prompts.txt", "generate --prompts prompts.txt -o out"),
    "prompts of eval": ("prompts.txt", "eval --prompts prompts.txt -o out"),
    "prompts of bench": ("prompts.txt", "bench image --prompts prompts.txt"),
    "prompts of a suite": ("suite.tsv", "eval --suite partiprompts --prompts suite.tsv -o out"),
    "questions": ("dpg.csv", "eval --metrics dpg --dpg dpg.csv --vqa none/none -o out"),
    "configuration": ("config.yaml", "eval --config config.yaml -o out"),
    "results": ("results/results.json", "report results"),
    "statistics": ("mu.npz", "measure images --metrics fd@shapes --reference mu.npz"),
    "keys": ("keys", "serve shapes --api-key-file keys"),
    "config of a model": ("model/config.json", "speak one -m model --style llasa -o x.wav"),
    "weights of a model": ("model/model.safetensors", "speak one -m model --style llasa -o x.wav"),
    "tokenizer of a model": ("model/tokenizer.json", "speak one -m model --style llasa -o x.wav"),
    "index of a pipeline": ("pipeline/model_index.json", "image one -m pipeline -o x.png"),
    "config of a codec": ("codec/config.json", "speak one -m model --style llasa --codec codec -o x.wav"),
    "config of a drafter": ("drafter/config.json", "image one --drafter drafter -o x.png"),
    "checkpoint": ("checkpoint.safetensors", "convert checkpoint.safetensors -o out"),
    "config of a checkpoint": ("sizes.json", "convert model -o out --config sizes.json"),
    "extractor": ("clip/config.json", "measure images --metrics clip --clip clip --prompts lines.txt"),
    "verifier": ("model/config.json", "export-drafter drafter --verifier model -o out"),
}
LARGE = 2**40


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGE)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("template")
    tiny_speech.flat().save_pretrained(folder / "model")
    tiny_speech.tokenizer().save_pretrained(folder / "model")
    for name in ("images", "results", "pipeline", "codec", "drafter", "clip"):
        (folder / name).mkdir()
    for i in range(4):
        Image.new("RGB", (64, 64)).save(folder / "images" / f"{i}.png")
    (folder / "lines.txt").write_text("one\n" * 4)
    (folder / "drafter" / "config.json").write_text(json.dumps({"kind": "medusa"}))
    return folder


# The headers of these say how much is read.
HEADED = (".safetensors", ".npz")
CASES = [
    (reader, kind)
    for reader, (name, _) in READERS.items()
    for kind in (fifo, endless, sparse)
    if kind is not sparse or Path(name).suffix not in HEADED
]


@pytest.mark.parametrize(("reader", "kind"), CASES)
def test_an_unusual_file_is_one_line(
    reader: str, kind: Callable[[Path], None], template: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    name, words = READERS[reader]
    folder = tmp_path / "here"
    shutil.copytree(template, folder)
    (folder / name).unlink(missing_ok=True)
    kind(folder / name)
    monkeypatch.chdir(folder)
    with time_limit():
        status = main(words.split())
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("mmspec")]
    assert status == 2 and len(lines) == 1 and "Traceback" not in printed.err, printed.err
    assert kind is not sparse or "exceed the limit" in lines[0] or "record" in lines[0], lines[0]
    assert not (folder / "out").exists()
