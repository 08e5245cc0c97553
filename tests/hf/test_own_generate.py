"""Calls through a class's own `generate`: what it drops on the way, and what it would have answered."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tiny_models
import tiny_speech
import torch
from transformers import GenerationConfig, TopKLogitsWarper
from transformers.generation import GenerationMixin

import mmspec
from mmspec.errors import ArgumentError

pytestmark = pytest.mark.releases

PROMPTS = torch.tensor([[0, 1, 10, 11, 3], [1, 12, 13, 14, 3]])
INPUTS = {"input_ids": PROMPTS, "attention_mask": (PROMPTS != 0).long()}
OURS: dict[str, Any] = {"custom_generate": mmspec.generate, "recipe": "scd:window=4", "seed": 0, "do_sample": False}


@pytest.mark.parametrize("scale", [1.5, 5.0])
@pytest.mark.parametrize("how", ["argument", "config", "model"])
def test_janus_follows_the_guidance_of_the_inherited_method(scale: float, how: str) -> None:
    model = tiny_models.janus()
    own = GenerationConfig(guidance_scale=scale, do_sample=False, **model.generation_config.to_diff_dict())
    call: dict[str, Any] = {"guidance_scale": scale}
    if how == "config":
        call = {"generation_config": own}
    elif how == "model":
        model.generation_config.guidance_scale, call = scale, {}
    expected = model.generate(**INPUTS, **call, generation_mode="image", do_sample=False)
    assert torch.equal(GenerationMixin.generate(model, **INPUTS, **call, max_new_tokens=1, **OURS), expected)


@pytest.mark.parametrize("given", [{}, {"guidance_scale": 1.5}, {"logits_processor": [TopKLogitsWarper(3)]}])
def test_janus_refuses_its_own_generate_which_drops_arguments(given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="^guidance_scale is not set, or Janus's own generate has dropped it; call"):
        tiny_models.janus().generate(**INPUTS, **given, **OURS)


@pytest.mark.parametrize("inherited", [False, True])
def test_janus_refuses_questions_that_it_would_answer_in_text(inherited: bool) -> None:
    model = tiny_models.janus()
    method = GenerationMixin.generate if inherited else type(model).generate
    question = {"input_ids": PROMPTS[:, :-1], "attention_mask": INPUTS["attention_mask"][:, :-1]}
    with pytest.raises(ArgumentError, match=re.escape("does not end with the begin-of-image id 3, so that the answer")):
        method(model, **question, max_new_tokens=4, **OURS)


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4", "recycle:window=4"])
def test_chameleon_answers_in_text_without_a_layout(recipe: str) -> None:
    model = tiny_models.chameleon()
    ids = torch.tensor([[0, 33, 34, 35], [0, 36, 37, 38]])
    call: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 12}
    model.generation_config.eos_token_id = None
    expected = model.generate(**call, do_sample=False)
    codes = model.model.vocabulary_mapping.image_tokens
    assert not torch.isin(expected[:, 4:], torch.tensor(codes)).any()
    assert torch.equal(model.generate(**call, **OURS | {"recipe": recipe}), expected)


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2"])
def test_flash_attention_is_refused(kernel: str) -> None:
    model = tiny_models.emu3()
    model.model.text_model.config._attn_implementation = kernel
    ids = torch.tensor([[1, 31, 33]])
    with pytest.raises(ArgumentError, match=re.escape(f"attn_implementation={kernel!r} takes no masks of drafts")):
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, **OURS)
    model.model.text_model.config._attn_implementation = "eager"
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, **OURS)


@pytest.mark.parametrize("part", ["backbone_model", "depth_decoder"])
def test_flash_attention_in_a_part_of_an_audio_model_is_refused(part: str) -> None:
    model = tiny_speech.csm()
    getattr(model, part).config._attn_implementation = "flash_attention_2"
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(ArgumentError, match="attn_implementation='flash_attention_2' takes no masks of drafts"):
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, **OURS)
    with pytest.raises(ArgumentError, match="attn_implementation='flash_attention_2' takes no masks of drafts"):
        mmspec.load(model, processor=tiny_speech.tokenizer())
