"""What users may do with every embedded pipeline alike."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mmspec
import mmspec.loading
import mmspec.vision
from mmspec.errors import ArgumentError
from mmspec.pipeline import move
from mmspec.vision.llamagen.embedded import EmbeddedLlamaGen

PROMPTS = {
    "shapes": ["a red circle", "a green star", "a blue square"],
    "scenes": ["a solid red circle at the top left"],
    "shapes-latent": ["a red circle"],
    "spoken": ["one", "two", "three"],
}


@pytest.fixture(scope="module", params=PROMPTS)
def named(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, mmspec.load(request.param)


def test_a_pipeline_knows_where_it_is_and_moves(named: tuple[str, Any]) -> None:
    _, pipe = named
    assert pipe.device == torch.device("cpu") and pipe.dtype == torch.float32
    assert pipe.to("cpu") is pipe and pipe.to(torch.device("cpu")) is pipe


@pytest.mark.parametrize(("name", "megabytes"), [("shapes", 12), ("scenes", 15)])
def test_weights_are_float32_and_small(name: str, megabytes: int) -> None:
    pipe = mmspec.load(name)
    modules = (pipe.transformer, pipe.vqvae, pipe.text_encoder, pipe.draft_transformer)
    assert {module.dtype for module in modules} == {torch.float32}
    weights = Path(mmspec.vision.__path__[0]) / name / "weights"
    assert 1e6 < sum(path.stat().st_size for path in weights.rglob("*")) < megabytes * 1e6


GREEDY = {"shapes": "draft eagle table recycle sjd scd tree-table tree-eagle", "scenes": "draft table scd tree-table"}


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_tokens_are_equal_for_all_recipes(name: str) -> None:
    pipe, prompts = mmspec.load(name), PROMPTS[name][:2]
    plain = pipe(prompts, recipe="plain", temperature=0).tokens
    for recipe in GREEDY[name].split():
        assert torch.equal(pipe(prompts, recipe=recipe, temperature=0).tokens, plain), recipe


@pytest.mark.parametrize("name", PROMPTS)
def test_weights_are_converted_as_when_loaded_or_the_refusal_says_how(name: str) -> None:
    pipe = mmspec.load(name)
    options: dict[str, Any] = {"seed": 0, "recipe": "plain", "output_type": "np"}
    assert pipe.to("cpu", torch.float32) is pipe and pipe.to(dtype=torch.float32) is pipe
    for wrong, shown in ((torch.int8, "torch.int8"), ("bf16", "'bf16'")):
        with pytest.raises(ArgumentError, match=f"^dtype={shown} is not allowed; it is one of torch.float32, "):
            pipe.to("cpu", wrong)
    if not isinstance(pipe, EmbeddedLlamaGen):
        with pytest.raises(ArgumentError, match="that is loaded; pass it to mmspec.load$"):
            pipe.to(torch.bfloat16)
        return
    pipe(PROMPTS[name][0], **options)
    other = mmspec.load(name, dtype="bfloat16")
    assert pipe.to(torch.bfloat16).dtype == torch.bfloat16 == other.dtype
    outputs = [each(PROMPTS[name][0], **options) for each in (pipe, other)]
    assert torch.equal(outputs[0].tokens, outputs[1].tokens)
    assert np.array_equal(outputs[0].images, outputs[1].images)


def test_what_diffusers_has_and_this_has_not_is_refused_in_one_line(named: tuple[str, Any]) -> None:
    name, pipe = named
    for method in ("enable_model_cpu_offload", "load_lora_weights", "unet"):
        assert not hasattr(pipe, method)
        instead = "loaded with mmspec.load it is" if name in ("shapes", "scenes") else "arguments of mmspec.load"
        with pytest.raises(AttributeError, match=f"^{type(pipe).__name__} has no '{method}'; .*{instead}") as error:
            getattr(pipe, method)
        assert "\n" not in str(error.value)
    copy.copy(pipe)


def test_a_pipeline_is_saved_or_says_why_not(named: tuple[str, Any], tmp_path: Path) -> None:
    name, pipe = named
    if not hasattr(pipe, "components"):
        with pytest.raises(ArgumentError, match="save_pretrained is not possible for a"):
            pipe.save_pretrained(tmp_path)
        return
    pipe.save_pretrained(tmp_path)
    assert mmspec.load(tmp_path).config.temperature == pipe.config.temperature, name


def test_a_configuration_is_read_by_key_and_by_attribute(named: tuple[str, Any]) -> None:
    name, pipe = named
    for key in ("temperature", "guidance_scale", "recipe"):
        assert pipe.config[key] == getattr(pipe.config, key)
    with pytest.raises(AttributeError):
        pipe.config.nosuch  # noqa: B018


def test_drafters_are_added_or_refused_in_one_line(named: tuple[str, Any], tmp_path: Path) -> None:
    _, pipe = named
    with pytest.raises(mmspec.errors.MMSpecError) as error:
        mmspec.loading.add_drafter(pipe, tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["shapes", "spoken"])
def test_a_batch_size_does_not_change_the_output(name: str) -> None:
    pipe, prompts = mmspec.load(name), PROMPTS[name]
    whole, small = (pipe(prompts, seed=0, recipe="scd:window=32", batch_size=size) for size in (3, 2))
    if name == "shapes":
        assert torch.equal(whole.tokens, small.tokens) and len(small.stats.rows) == 3
        assert whole.stats.tokens == small.stats.tokens
    else:
        assert all(torch.equal(a.tokens[0], b.tokens[0]) for a, b in zip(whole, small, strict=True))
    with pytest.raises(ArgumentError, match="batch_size=0 is not allowed"):
        pipe(prompts, batch_size=0)


@pytest.mark.parametrize(("size", "at"), [(2, 2), (1, 30)])
def test_an_interrupted_call_counts_what_it_has_and_no_more(size: int, at: int) -> None:
    """In the first batch and in a later one; batches that did not begin have rows without tokens."""
    pipe, seen = mmspec.load("shapes"), 0

    def stop(pipe: Any, calls: int, tokens: int, tensors: Any) -> None:
        nonlocal seen
        seen += 1
        pipe._interrupt = seen == at

    out = pipe(PROMPTS["shapes"], seed=0, batch_size=size, callback_on_step_end=stop, output_type="latent")
    made = (out.tokens >= 0).sum(1).tolist()
    assert len(made) == 3 and made[size - 1] and made[2] == 0
    assert [row.tokens for row in out.stats.rows] == made and out.stats.tokens == sum(made)
    assert out.stats.target_calls == at
    assert out.stats.tokens_per_call == sum(made) / sum(row.target_calls for row in out.stats.rows)


@pytest.mark.parametrize("name", PROMPTS)
def test_all_weights_move(name: str) -> None:
    pipe = mmspec.load(name)
    move(pipe, torch.device("meta"))
    assert pipe.device.type == "meta"
    for device in ("nosuch", 3):
        with pytest.raises(ArgumentError, match="^device="):
            pipe.to(device)
