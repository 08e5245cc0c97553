"""`from_pretrained` called directly: the files of a stranger's folder choose no code, for every pipeline class."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from diffusers import DiffusionPipeline

import mmspec
from mmspec.errors import ArgumentError, ModelError
from mmspec.vision.folder_pipeline import FolderPipeline
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.saved_pipeline import PIPELINES
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

HOSTILE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("config.json", {"_attn_implementation": "attacker/kernel"}, "which may name a repository"),
    ("config.json", {"deep": [{"auto_map": {"AutoModel": "evil.Model"}}]}, "which names Python files"),
    ("config.json", {"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
    ("config.json", {"transformers_weights": "../other/model.safetensors"}, "must be a file of the folder"),
    ("adapter_config.json", {"base_model_name_or_path": "attacker/model"}, "names another model to load"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved pipeline, by its index and one component; what is refused is refused before more is read."""
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer/config.json").write_text("{}")
    (tmp_path / "model_index.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(("file", "values", "message"), HOSTILE)
def test_what_chooses_code_is_refused(name: str, file: str, values: dict[str, Any], message: str, folder: Path) -> None:
    (folder / "transformer" / file).write_text(json.dumps(values))
    with pytest.raises(ModelError, match=message) as found:
        PIPELINES[name].from_pretrained(folder)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", PIPELINES)
def test_special_files_are_refused(name: str, folder: Path) -> None:
    os.mkfifo(folder / "transformer/weights.safetensors")
    with pytest.raises(ArgumentError, match="not a regular file"):
        PIPELINES[name].from_pretrained(folder)


def test_every_pipeline_is_checked() -> None:
    assert all(issubclass(kind, FolderPipeline) for kind in PIPELINES.values())


def test_own_settings_of_transformers_are_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"_attn_implementation": "sdpa", "_attn_implementation_autoset": True, "_experts_implementation": "eager"}
    (folder / "transformer/config.json").write_text(json.dumps(own))
    read = list[str]()
    monkeypatch.setattr(
        DiffusionPipeline, "from_pretrained", classmethod(lambda cls, where, **kwargs: read.append(str(where)))
    )
    FolderPipeline.from_pretrained(folder)
    assert read == [str(folder)]


def test_components_that_are_given_are_not_looked_at(root: Path, tmp_path: Path) -> None:
    pipe = mmspec.load("shapes")
    pipe.save_pretrained(tmp_path)
    config = tmp_path / "vqvae/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": {"AutoModel": "evil.Model"}}))
    kind, vqvae = LlamaGenPipeline, ShapesTokenizer(vocab_size=pipe.vqvae.vocab_size)
    with pytest.raises(ModelError, match="vqvae .* which names Python files"):
        kind.from_pretrained(tmp_path, low_cpu_mem_usage=False)
    assert kind.from_pretrained(tmp_path, vqvae=vqvae, low_cpu_mem_usage=False).vqvae is vqvae
    shutil.rmtree(tmp_path / "vqvae")
    assert kind.from_pretrained(tmp_path, vqvae=None, low_cpu_mem_usage=False).vqvae is None


def test_repositories_are_downloaded_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "transformer/config.json").write_text(json.dumps(HOSTILE[0][1]))
    asked = dict[str, Any]()

    def download(cls: Any, where: str, /, **kwargs: Any) -> str:
        asked.update(kwargs, where=where)
        return str(folder)

    monkeypatch.setattr(DiffusionPipeline, "download", classmethod(download))
    with pytest.raises(ModelError, match="which may name a repository"):
        FolderPipeline.from_pretrained("owner/name", revision="main")
    assert asked == {"where": "owner/name", "revision": "main"}
