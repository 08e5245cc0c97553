"""The languages of the embedded image models: prompts, captions, features and renders."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import train_scenes.render
import train_shapes.render

import mmspec.vision.scenes.grammar
import mmspec.vision.shapes.grammar
from mmspec.errors import PromptError
from mmspec.vision.scenes import domain as scenes
from mmspec.vision.scenes.text import ScenesTextEncoder
from mmspec.vision.shapes import domain as shapes
from mmspec.vision.shapes.text import ShapesTextEncoder

GRAMMARS: dict[Any, Any] = {shapes: mmspec.vision.shapes.grammar, scenes: mmspec.vision.scenes.grammar}
DOMAINS = pytest.mark.parametrize("domain", GRAMMARS, ids=["shapes", "scenes"])


@pytest.mark.parametrize(
    ("domain", "prompt", "caption"),
    [
        (shapes, "a red circle", shapes.Caption(shapes.ANY, "red", "circle")),
        (shapes, "Small RED circle.", shapes.Caption("small", "red", "circle")),
        (
            shapes,
            "a red circle above a blue square",
            shapes.Caption(shapes.ANY, "red", "circle", "above", shapes.ANY, "blue", "square"),
        ),
        (
            shapes,
            "the large orange star left of an small green star on a striped teal background",
            shapes.Caption("large", "orange", "star", "left of", "small", "green", "star", "striped", "teal"),
        ),
        (shapes, "a red cross on a pink background", shapes.Caption(shapes.ANY, "red", "cross", background="pink")),
        (shapes, "a red cross on a speckled background", shapes.Caption(shapes.ANY, "red", "cross", style="speckled")),
        (scenes, "a red star at the top left", scenes.Caption((scenes.Object("star", "red"), None, None, None))),
        (
            scenes,
            "A striped orange 7 at the bottom right, and a Blue circle at the top left.",
            scenes.Caption((scenes.Object("circle", "blue"), None, None, scenes.Object("7", "orange", "striped"))),
        ),
        (
            scenes,
            "a green ring at the top right on a brick teal background",
            scenes.Caption((None, scenes.Object("ring", "green"), None, None), "brick", "teal"),
        ),
        (
            scenes,
            "red 0 at top left on starry background",
            scenes.Caption((scenes.Object("0", "red"), None, None, None), "starry"),
        ),
    ],
)
def test_parse(domain: Any, prompt: str, caption: Any) -> None:
    assert GRAMMARS[domain].parse(prompt) == caption


@pytest.mark.parametrize(
    ("domain", "prompt", "parts"),
    [
        (shapes, "", ["empty"]),
        (shapes, "  ", ["empty"]),
        (shapes, "a red cirle abve a square", ["'cirle'", "'circle'", "'abve'", "'above'"]),
        (shapes, "circle red", ["expected a colour", "'circle'", "background]"]),
        (shapes, "a red circle left a blue star", ["expected 'of'", "'blue'"]),
        (shapes, "a red circle above", ["expected a colour", "the prompt ends"]),
        (shapes, "a red circle on white", ["expected 'background'", "the prompt ends"]),
        (shapes, "a red circle above a blue star below a red star", ["'on' or the end", "'below'"]),
        (scenes, " ", ["empty"]),
        (scenes, "a red str at the top left", ["'str'", "'star'"]),
        (scenes, "a red star", ["expected 'at'", "the prompt ends"]),
        (scenes, "star at the top left", ["expected a color", "'star'"]),
        (scenes, "a red star at the left", ["expected top or bottom", "'left'"]),
        (scenes, "a red star at the top left, a red 7 at the top left", ["two objects at the top left"]),
        (scenes, "a red star at the top left on a pink", ["expected 'background'", "the prompt ends"]),
        (scenes, "a red star at the top left on a pink background pink", ["expected the end", "'pink'"]),
    ],
)
def test_parse_errors_are_one_line_and_name_the_problem(domain: Any, prompt: str, parts: list[str]) -> None:
    with pytest.raises(PromptError) as error:
        GRAMMARS[domain].parse(prompt)
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@DOMAINS
@pytest.mark.parametrize("held_out", [True, False])
def test_described_captions_parse_back(domain: Any, held_out: bool) -> None:
    for caption in domain.captions(200, seed=3, held_out=held_out):
        assert GRAMMARS[domain].parse(GRAMMARS[domain].describe(caption)) == caption
        assert domain.is_held_out(caption) == held_out


@pytest.mark.parametrize(
    ("domain", "encoder", "prompts"),
    [
        (shapes, ShapesTextEncoder, ["a red circle", "a red circle above a blue star"]),
        (scenes, ScenesTextEncoder, ["a red star at the top left", "a blue 3 at the bottom right"]),
    ],
    ids=["shapes", "scenes"],
)
def test_text_encoder(domain: Any, encoder: Any, prompts: list[str]) -> None:
    slots, width = domain.CONDITION_SLOTS, domain.FEATURE_DIM
    embeds, mask = encoder().encode(prompts)
    assert embeds.shape == (2, slots, width)
    assert mask.shape == (2, slots) and bool(mask.all())
    with pytest.raises(ValueError, match=f"saved for {slots} slots of 3 values; this version has {slots} of {width}"):
        encoder(slots, 3)


@pytest.mark.parametrize(("domain", "renderer"), [(shapes, train_shapes.render), (scenes, train_scenes.render)])
def test_rendering_is_deterministic(domain: Any, renderer: Any) -> None:
    made = [domain.sample_scene(random.Random(5)) for _ in range(2)]
    assert made[0] == made[1]
    assert np.array_equal(renderer.render(made[0]), renderer.render(made[1]))
    batch = renderer.render_batch(made)
    assert batch.shape == (2, 3, domain.IMAGE_SIZE, domain.IMAGE_SIZE)
    assert np.array_equal(train_shapes.render.to_uint8(batch)[0], renderer.render(made[0]))
