"""Folders with code in them: none of it runs, whatever stdin says, and nothing is asked."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_speech as tiny
import torch

import mmspec
from mmspec.audio.load import from_folder, read_codec
from mmspec.cli.app import main
from mmspec.errors import ArgumentError, ModelError
from mmspec.metrics.extractors.pretrained import load_pretrained

EVIL = "open({ran!r}, 'w').close()\n"
MAP = {
    "auto_map": {
        "AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoModelForCausalLM": "evil.Model",
        "AutoTokenizer": ["evil.Tokenizer", None], "AutoProcessor": "evil.Processor",
        "AutoImageProcessor": "evil.Processor", "AutoFeatureExtractor": "evil.Processor",
    }
}  # fmt: skip


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A flat speech model whose processor, tokenizer and configs point to code that creates the file `ran`."""
    folder = tmp_path / "model"
    tiny.flat().save_pretrained(folder)
    (folder / "evil.py").write_text(EVIL.format(ran=str(tmp_path / "ran")))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **MAP}))
    for file in ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json"):
        (folder / file).write_text(json.dumps({**MAP, "tokenizer_class": "Tokenizer", "processor_class": "Processor"}))
    return folder


def test_a_yes_on_stdin_runs_nothing(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 50))
    assert main(["speak", "one", "-m", str(hostile), "-o", str(tmp_path / "x.wav")]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Do you wish" not in err
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


@pytest.mark.parametrize("name", ["AutoModel", "AutoModelForCausalLM", "LlamaForCausalLM", "pipeline", "Trainer"])
def test_codecs_and_draft_models_are_of_listed_classes(
    name: str, hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    file = hostile / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [name]}))
    with pytest.raises(ModelError, match=f"is a {name}, which mmspec does not load here.*; it loads EncodecModel, Dac"):
        read_codec(hostile, "cpu")
    if name != "LlamaForCausalLM":
        good = tmp_path / "good"
        tiny.flat().save_pretrained(good)
        with pytest.raises(ModelError, match=f"is a {name}, which mmspec does not load here"):
            from_folder(good, tiny.tokenizer(), config={"draft_model": str(hostile)})
        with pytest.raises((ArgumentError, ModelError)):
            mmspec.load(hostile, tokenizer=str(hostile))
    assert not (tmp_path / "ran").exists()


def test_extractors_run_no_code(hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModel, AutoProcessor

    monkeypatch.setattr("builtins.input", lambda *_: "y")
    file = hostile / "config.json"
    file.write_text(json.dumps({**MAP, "model_type": "evil"}))
    kinds: list[Any] = [AutoModel, AutoProcessor]
    for kind in kinds:
        with pytest.raises(ModelError, match="cannot load"):
            load_pretrained(kind, str(hostile), "clip")
    assert not (tmp_path / "ran").exists()


def test_weights_of_models_are_no_code(hostile: Path, tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return exec, (EVIL.format(ran=str(tmp_path / "ran")),)

    (hostile / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Code()}, hostile / "pytorch_model.bin")
    with pytest.raises(ModelError):
        mmspec.load(hostile, processor=tiny.tokenizer(), config={"style": "llasa"})
    assert not (tmp_path / "ran").exists()
