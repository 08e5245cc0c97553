"""Components and images without diffusers are those of diffusers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ModelMixin
from diffusers.image_processor import VaeImageProcessor
from tiny_llamagen import V, tiny

import mmspec
from mmspec.errors import ModelError
from mmspec.files.fingerprint import fingerprint
from mmspec.pipeline import Arguments, Output
from mmspec.vision.component import WEIGHTS_NAME, Component
from mmspec.vision.llamagen.components import NGramTokens
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.ngram import NGramTokenTable
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.llamagen.transformer import LlamaGenTransformer
from mmspec.vision.outputs import images_from_pixels
from mmspec.vision.saved_component import load_component
from mmspec.vision.scenes.text import ScenesTextEncoder
from mmspec.vision.scenes.text_encoder import SceneEncoder
from mmspec.vision.shapes.fsq_tokenizer import FSQTokenizer
from mmspec.vision.shapes.text import ShapesTextEncoder
from mmspec.vision.shapes.text_encoder import CaptionEncoder
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

PAIRS: list[tuple[Any, Any, dict[str, Any]]] = [
    (LlamaGenTransformer, LlamaGenGPT, {"vocab_size": 12, "dim": 16, "n_layer": 1, "n_head": 2, "grid_size": 4}),
    (NGramTokens, NGramTokenTable, {"vocab_size": 7}),
    (CaptionEncoder, ShapesTextEncoder, {}),
    (SceneEncoder, ScenesTextEncoder, {}),
    (FSQTokenizer, ShapesTokenizer, {"levels": (4, 4), "channels": 8}),
]


@pytest.mark.parametrize(("plain", "model", "arguments"), PAIRS, ids=[model.__name__ for _, model, _ in PAIRS])
def test_a_component_loads_what_diffusers_has_saved(
    plain: type[Component], model: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    saved = model(**arguments)
    assert isinstance(saved, ModelMixin)
    saved.half().save_pretrained(tmp_path)
    ours = plain.from_folder(tmp_path)
    theirs = model.from_pretrained(tmp_path, low_cpu_mem_usage=False, dtype=torch.float32)
    own, expected = ours.state_dict(), theirs.state_dict()
    assert {k: v.dtype for k, v in own.items()} == {k: v.dtype for k, v in expected.items()}
    assert all(torch.equal(own[k], v) for k, v in expected.items())
    assert not ours.training
    assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
    config = {k: v for k, v in theirs.config.items() if not k.startswith("_")}
    assert json.dumps(ours.config, sort_keys=True) == json.dumps(config, sort_keys=True)


@pytest.mark.parametrize(("plain", "model", "arguments"), PAIRS, ids=[model.__name__ for _, model, _ in PAIRS])
def test_diffusers_loads_what_a_component_has_saved(
    plain: type[Component], model: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    ours = plain(**arguments)
    ours.save_pretrained(tmp_path / "new" / "folder")
    theirs = load_component(model, tmp_path / "new" / "folder", torch.float32)
    own, expected = ours.state_dict(), theirs.state_dict()
    assert own.keys() == expected.keys() and all(torch.equal(own[k], v) for k, v in expected.items())


@pytest.mark.parametrize("broken", ["no weights", "no config", "unknown tensor", "missing tensor", "argument"])
def test_a_component_that_does_not_fit_is_refused(broken: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    NGramTokenTable(5).save_pretrained(tmp_path)
    weights, config = tmp_path / WEIGHTS_NAME, tmp_path / "config.json"
    if broken.startswith("no "):
        (weights if "weights" in broken else config).unlink()
    elif broken == "argument":
        config.write_text('{"size": 5}')
    else:
        tensors = load_file(weights)
        save_file({} if broken == "missing tensor" else {**tensors, "more": torch.ones(1)}, weights)
    with pytest.raises(ModelError, match="does not contain a NGramTokens: "):
        NGramTokens.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["shapes", "scenes"])
def test_an_embedded_model_equals_the_pipeline_that_it_is_saved_as(name: str, tmp_path: Path) -> None:
    ours = mmspec.load(name)
    ours.save_pretrained(tmp_path)
    pipe = LlamaGenPipeline.from_pretrained(tmp_path, low_cpu_mem_usage=False)
    assert {*pipe.components} == {*ours.components} and {*pipe.heads} == {*ours.heads}
    assert fingerprint(pipe) == fingerprint(ours)
    pipe.set_progress_bar_config(disable=True)
    ours.set_progress_bar_config(disable=True)
    prompts = [prompt + " at the top left" * (name == "scenes") for prompt in ("a red circle", "a green star")]
    for recipe in ("scd", *(("draft", "eagle") if name == "shapes" else ())):
        one, other = (each(prompts, recipe=recipe, seed=3, output_type="np") for each in (ours, pipe))
        assert torch.equal(one.tokens, other.tokens)
        assert np.array_equal(one.images, other.images)
        assert one.stats.target_calls == other.stats.target_calls
    defaults = {k: v for k, v in pipe.config.items() if k in ours.config}
    assert dict(ours.config) == defaults


def test_a_draft_model_is_added_without_diffusers(tmp_path: Path) -> None:
    ours = mmspec.load("shapes")
    config = ours.transformer.config
    small: Any = tiny(vocab_size=config.vocab_size, grid_size=config.grid_size)
    small.save_pretrained(tmp_path)
    ours.add_drafter(tmp_path)
    assert type(ours.draft_transformer) is LlamaGenTransformer
    assert torch.equal(ours.draft_transformer.output.weight, small.output.weight)
    assert ours.transformer.config.vocab_size != V
    ours.new_small().save_pretrained(tmp_path / "own")  # as training does
    ours.add_drafter(tmp_path / "own")
    assert torch.equal(ours.draft_transformer.output.weight, small.output.weight)
    other: Any = tiny()
    other.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"vocab_size.*{V}"):
        ours.add_drafter(tmp_path)


def test_heads_have_the_type_of_weights_that_are_not_packed() -> None:
    pipe = mmspec.load("shapes")
    packed = torch.nn.Parameter(torch.zeros(1, dtype=torch.uint8), requires_grad=False)
    pipe.transformer.cls_embedding.cap_proj.fc1.weight = packed
    assert next(pipe.transformer.parameters()).dtype == torch.uint8
    assert pipe.heads["eagle"].dtype == torch.float32


@pytest.mark.parametrize("output_type", ["pil", "np", "pt"])
def test_images_are_those_of_diffusers(output_type: str) -> None:
    pixels = torch.rand(2, 3, 8, 6, generator=torch.Generator().manual_seed(0)) * 2.5 - 1.25
    ours, theirs = (f(pixels, output_type) for f in (images_from_pixels, VaeImageProcessor().postprocess))
    assert type(ours) is type(theirs)
    assert np.array_equal(np.stack([np.asarray(i) for i in ours]), np.stack([np.asarray(i) for i in theirs]))


def test_a_configuration_has_one_value_of_a_name() -> None:
    config = Arguments(temperature=0.7)
    config.temperature = 0.5
    assert config["temperature"] == config.temperature == 0.5 and vars(config) == {}


def test_an_output_is_a_mapping_and_a_tuple() -> None:
    @dataclasses.dataclass(eq=False)
    class Pair(Output):
        left: int
        right: str

    pair = Pair(1, "b")
    assert dict(pair) == {"left": 1, "right": "b"} == {**pair}
    assert (pair["left"], pair[1], pair[:1], len(pair), pair.to_tuple()) == (1, "b", (1,), 2, (1, "b"))
    with pytest.raises(KeyError):
        pair["middle"]
    with pytest.raises(IndexError):
        pair[2]
