"""Folders of saved pipelines: a model is exactly what its files say, or it does not load, and no code of it runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import tiny_processors
import torch
from safetensors.torch import load_file, save_file
from tiny_llamagen import tiny

import mmspec
from mmspec.errors import ModelError
from mmspec.vision.hf.pipeline import TransformersPipeline
from mmspec.vision.llamagen.ngram import NGramTokenTable
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.shapes.domain import CONDITION_SLOTS, FEATURE_DIM
from mmspec.vision.shapes.text import ShapesTextEncoder
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

PROMPT = "a red circle above a blue square"
WEIGHTS = "diffusion_pytorch_model.safetensors"
COMPONENTS = ("transformer", "draft_transformer", "vqvae", "table", "text_encoder")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved pipeline with all components."""
    torch.manual_seed(0)
    sizes = {"cls_token_num": CONDITION_SLOTS, "caption_dim": FEATURE_DIM, "grid_size": 4, "vocab_size": 16}
    folder = tmp_path_factory.mktemp("model")
    LlamaGenPipeline(
        tiny(**sizes),
        ShapesTokenizer(levels=(4, 4), channels=8, image_size=16),
        ShapesTextEncoder(),
        draft_transformer=tiny(seed=1, n_layer=1, **sizes),
        table=NGramTokenTable(16),
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


def change_tensors(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def change_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_saved_pipeline_loads_as_it_was(original: Path) -> None:
    pipe, own = mmspec.load(original), LlamaGenPipeline.from_pretrained(original, low_cpu_mem_usage=False)
    tokens = [p(PROMPT, seed=0, output_type="latent").tokens for p in (pipe, own)]
    assert torch.equal(*tokens)
    assert mmspec.load(original, dtype=torch.bfloat16).transformer.dtype == torch.bfloat16


@pytest.mark.parametrize("part", COMPONENTS)
def test_missing_unknown_and_misshapen_tensors_are_listed(part: str, folder: Path) -> None:
    first = min(load_file(folder / part / WEIGHTS))
    change_tensors(folder / part, lambda tensors: tensors.update(more=torch.zeros(1)))
    with pytest.raises(ModelError, match=rf"component '.*{part}' does not fit a \w+; unknown: more"):
        mmspec.load(folder)
    change_tensors(folder / part, lambda tensors: tensors.update({first: torch.zeros(3, 1, 4)}) or tensors.pop("more"))
    with pytest.raises(ModelError, match=rf"wrong shape: {first} \[3, 1, 4\] instead of"):
        mmspec.load(folder)
    change_tensors(folder / part, lambda tensors: tensors.update(more=tensors.pop(first)))
    with pytest.raises(ModelError, match=rf"missing: {first}; unknown: more"):
        mmspec.load(folder)


@pytest.mark.parametrize("layers", [1, 3, 0, -5, 10**9, "2", None, True])
def test_layers_that_the_weights_do_not_have_are_refused(layers: Any, folder: Path) -> None:
    change_json(folder / "transformer" / "config.json", n_layer=layers)
    with pytest.raises(ModelError, match=r"n_layer|unknown: layers.1|missing: layers.2"):
        mmspec.load(folder)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("transformer/config.json", {"grid_size": 10**9}),
        ("transformer/config.json", {"vocab_size": 10**12}),
        ("transformer/config.json", {"dim": "many"}),
        ("transformer/config.json", {"n_head": 0}),
        ("transformer/config.json", {"size": 3}),
        ("transformer/config.json", {"_class_name": "NGramTokenTable"}),
        ("transformer/config.json", {"_class_name": ["LlamaGenGPT"]}),
        ("vqvae/config.json", {"levels": 3}),
        ("table/config.json", {"vocab_size": -1}),
        ("model_index.json", {"_class_name": ["LlamaGenPipeline"]}),
        ("model_index.json", {"_class_name": {}}),
        ("model_index.json", {"_class_name": "StableDiffusionPipeline"}),
        ("model_index.json", {"transformer": ["os", "system"]}),
        ("model_index.json", {"transformer": ["evil", "LlamaGenGPT"]}),
        ("model_index.json", {"transformer": [None, None]}),
        ("model_index.json", {"transformer": 3}),
        ("model_index.json", {"text_encoder": ["transformers", "AutoModel"]}),
        ("model_index.json", {"text_encoder": ["transformers", "pipeline"]}),
        ("model_index.json", {"tokenizer": ["transformers", "AutoTokenizer"]}),
        ("model_index.json", {"other": ["diffusers", "VQModel"]}),
    ],
)
def test_configs_of_something_else_are_refused(
    file: str, values: dict[str, Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("transformer", "text_encoder"):
        (folder / name / "evil.py").write_text("open('ran', 'w')")
    change_json(folder / file, **values)
    with pytest.raises(ModelError) as error:
        mmspec.load(folder)
    assert "\n" not in str(error.value)
    assert not Path("ran").exists()


def test_files_that_are_missing_or_no_json_are_named(folder: Path) -> None:
    (folder / "vqvae" / WEIGHTS).rename(folder / "kept")
    with pytest.raises(ModelError, match="vqvae' has no weights"):
        mmspec.load(folder)
    (folder / "vqvae" / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"a": "../../kept"}}')
    with pytest.raises(ModelError, match="names '../../kept', which is no file in the folder"):
        mmspec.load(folder)
    (folder / "transformer" / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"config.json' is nested deeper than the limit"):
        mmspec.load(folder)
    (folder / "model_index.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"model_index.json' is nested deeper than the limit"):
        mmspec.load(folder)


def test_a_draft_transformer_is_as_exact(folder: Path) -> None:
    pipe = mmspec.load(folder)
    change_tensors(folder / "draft_transformer", lambda tensors: tensors.pop("norm.weight"))
    with pytest.raises(ModelError, match="missing: norm.weight"):
        pipe.add_drafter(folder / "draft_transformer")


def test_transformers_components_are_as_exact(tmp_path: Path) -> None:
    TransformersPipeline(tiny_models.janus(), tiny_processors.janus()).save_pretrained(tmp_path)
    own = mmspec.load(tmp_path)
    assert isinstance(own, TransformersPipeline)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    kept = tensors.pop("model.generation_head.vision_head.bias")
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ModelError, match="is incomplete; missing: model.generation_head.vision_head.bias"):
        mmspec.load(tmp_path)
    save_file({**tensors, "model.generation_head.vision_head.bias": kept, "more": kept.clone()}, file, {"format": "pt"})
    with pytest.raises(ModelError, match="unknown: more"):
        mmspec.load(tmp_path)
    save_file({**tensors, "model.generation_head.vision_head.bias": kept}, file, {"format": "pt"})
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 10**9
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="num_hidden_layers=1000000000"):
        mmspec.load(tmp_path)
