"""The shapes model of latents in the package: prompts, windows, rules and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mmspec
from mmspec.errors import ArgumentError
from mmspec.vision.shapes.classifier import ShapesClassifier, score_captions
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.grammar import parse

PROMPTS = [
    "a red circle above a blue square",
    "a small green star left of a large purple cross on a checkered pink background",
]


@pytest.fixture(scope="module")
def pipe() -> Any:
    return mmspec.load("shapes-latent")


def test_images_follow_their_prompts(pipe: Any) -> None:
    classifier = ShapesClassifier.from_pretrained(WEIGHTS / "classifier", low_cpu_mem_usage=False).float().eval()
    out = pipe(PROMPTS, seed=0, output_type="pt", head_steps=8)
    wanted = [parse(prompt) for prompt in PROMPTS]
    assert score_captions(classifier.predict(out.images * 2 - 1), wanted)["attributes"] >= 0.8
    assert out.stats.tokens_per_call == 1.0 and out.tokens.shape == (2, 256, 5)


def test_windows_equal_single_latents(pipe: Any) -> None:
    call: dict[str, Any] = {"seed": 1, "output_type": "latent", "head_steps": 2}
    plain = pipe(PROMPTS[0], **call).tokens
    for recipe in ("few-steps+tolerance:steps=2,distance=0.001,window=9", "scd+tolerance:distance=0.00001"):
        out = pipe(PROMPTS[0], recipe=recipe, **call)
        # Rounding may move a latent from one code to another, and with it all later ones.
        same = (out.tokens - plain).abs().amax(-1) < 1e-3
        assert float(same.float().mean()) > 0.9 and out.stats.tokens_per_call > 1.5, recipe


RECIPES = [
    "draft+tolerance:distance=0.05",
    "layer-skip+smoothed:layers=4,sigma=0.05",
    "scd+smoothed:sigma=0.05,window=8",
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_take_fewer_calls(pipe: Any, recipe: str) -> None:
    out = pipe(PROMPTS[0], recipe=recipe, seed=2, output_type="latent", head_steps=2)
    assert bool(out.tokens.isfinite().all()) and out.stats.tokens_per_call > 1


def test_bad_calls_are_refused(pipe: Any) -> None:
    with pytest.raises(ArgumentError, match="for discrete tokens"):
        pipe(PROMPTS[0], recipe="scd")
    with pytest.raises(ArgumentError, match="top_k=5"):
        pipe(PROMPTS[0], top_k=5)
    with pytest.raises(ArgumentError, match="head_steps=0"):
        pipe(PROMPTS[0], head_steps=0)


def test_rows_do_not_depend_on_their_batch(pipe: Any) -> None:
    one = pipe(PROMPTS, seed=[3, 4], output_type="latent", head_steps=2).tokens
    two = pipe(PROMPTS[1], seed=4, output_type="latent", head_steps=2).tokens
    assert torch.allclose(one[1], two[0], atol=1e-3)
