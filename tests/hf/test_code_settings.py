"""Settings in a model's folder that choose code are left out, or the folder is refused with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_recognizers
import tiny_speech
from tiny_models import janus
from transformers import ClapModel

import mmspec
from mmspec.errors import ModelError
from mmspec.files.code_settings import LEFT_OUT, refuse_code, without_code
from mmspec.hf.folder import check_processor, load_model
from mmspec.metrics.extractors.pretrained import load_pretrained

# Of a kind that transformers acts on, where one is known.
HOSTILE: dict[str, Any] = {
    "auto_map": {"AutoModel": "attacker/code--evil.Model", "AutoModelForCausalLM": "evil.Model"},
    "configuration_files": ["config.4.0.0.json"],
    "fusion_config": {"attacker/fusion": True},
    "distributed_config": {"tp_size": 2},
    "compile_config": {"backend": "attacker"},
    "use_kernels": True,
}


def hostile(key: str) -> Any:
    return HOSTILE.get(key, "attacker/kernel")


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("janus")
    janus().save_pretrained(path)
    return path


@pytest.mark.parametrize("key", LEFT_OUT)
def test_a_model_loads_without_what_chooses_code(key: str, folder: Path) -> None:
    file = folder / "config.json"
    before = file.read_text()
    values = json.loads(before)
    values[key] = values["text_config"][key] = values["vision_config"][key] = hostile(key)
    try:
        file.write_text(json.dumps(values))
        model = load_model(folder, "cpu", "auto", "JanusForConditionalGeneration")
    finally:
        file.write_text(before)
    parts = [model.config, *(getattr(model.config, name) for name in model.config.sub_configs)]
    assert {part._attn_implementation for part in parts} <= {"sdpa", "eager"}
    assert all(getattr(part, key, None) != hostile(key) for part in parts)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (
            "config.json",
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
            "bitsandbytes",
        ),
        ("config.json", {"transformers_weights": "../other/model.safetensors"}, "must be a file of the folder"),
        ("adapter_config.json", {"base_model_name_or_path": "attacker/model"}, "names another model to load"),
    ],
)
def test_what_cannot_be_left_out_is_refused(file: str, changes: Any, message: str, tmp_path: Path) -> None:
    tiny_speech.flat().save_pretrained(tmp_path)
    if not (tmp_path / file).exists():
        (tmp_path / file).write_text("{}")
    change(tmp_path / file, **changes)
    with pytest.raises(ModelError, match=message) as found:
        mmspec.load(tmp_path, processor=tiny_speech.tokenizer(), config={"style": "llasa"})
    assert "\n" not in str(found.value)


def test_the_codec_of_a_processor_chooses_no_code(tmp_path: Path) -> None:
    (tmp_path / "codec").mkdir()
    (tmp_path / "codec" / "config.json").write_text(json.dumps({"_attn_implementation": "attacker/kernel"}))
    (tmp_path / "processor_config.json").write_text(
        json.dumps(
            {
                "audio_tokenizer": {
                    "audio_tokenizer_class": "DacModel",
                    "audio_tokenizer_name_or_path": str(tmp_path / "codec"),
                }
            }
        )
    )
    with pytest.raises(ModelError, match="config.json has '_attn_implementation', which may name a repository"):
        check_processor(tmp_path)


def test_extractors_choose_no_code(tmp_path: Path) -> None:
    folder = tiny_recognizers.save_clap(tmp_path / "clap")
    change(folder / "config.json", _attn_implementation="attacker/kernel", auto_map={"AutoModel": "evil.Model"})
    model = load_pretrained(ClapModel, str(folder), "clap")
    assert model.config._attn_implementation in ("sdpa", "eager")


def test_settings_are_found_at_any_depth() -> None:
    deep = {"a": [{"b": {"_attn_implementation": "x/y", "c": 1}}, 2], "auto_map": {}}
    assert without_code(deep) == {"a": [{"b": {"c": 1}}, 2]}
    with pytest.raises(ModelError, match="_attn_implementation"):
        refuse_code(deep, "model 'x'")
