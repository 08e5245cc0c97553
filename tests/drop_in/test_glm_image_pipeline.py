"""diffusers' `GlmImagePipeline` with an accelerated first stage: the same images from the same prompts and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny_glm_pipeline as tiny
import torch
from PIL import Image
from torch import Tensor
from two_samples import chi_square

import mmspec
from mmspec.errors import ArgumentError

pytestmark = pytest.mark.releases

SIZE = {"height": 64, "width": 64}
SOURCE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (96, 64, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def pipe() -> Any:
    return tiny.pipeline()


def drawn(pipe: Any, seed: int, **more: Any) -> Any:
    rng = torch.Generator().manual_seed(seed)
    return pipe(**SIZE, num_inference_steps=2, generator=rng, output_type="np", **more).images


def edits(pipe: Any) -> None:
    """Lets diffusers 0.42 hand the features of images on as transformers 5.24 takes them, one tensor per image."""
    stage = pipe.vision_language_encoder
    width = stage.config.vision_config.hidden_size
    stage.get_image_tokens = lambda features, grids: stage.model.get_image_tokens(features.split(width))


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": "a red dog"},
        {"prompt": ["a red dog", "a cat"]},
        {"prompt": "a green cat", "image": [SOURCE]},
        {"prompt": ["red", "a green cat"], "image": [[SOURCE], [SOURCE.rotate(90)]]},
    ],
    ids=["text", "two texts", "image", "two images"],
)
def test_images_are_those_of_the_untouched_pipeline(
    pipe: Any, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    edits(pipe)
    monkeypatch.setattr(pipe.vision_language_encoder.generation_config, "top_k", 1)
    own = drawn(pipe, 0, **asked)
    with mmspec.accelerated(pipe, "scd:window=16"):
        assert (drawn(pipe, 0, **asked) == own).all()
        stats = mmspec.last_stats(pipe)
        assert stats is not None
        assert stats.tokens == (5 if "image" in asked else 261) * len(own)
        assert "image" in asked or stats.tokens_per_call > 1.5
    assert "generate" not in vars(pipe.vision_language_encoder)


def test_a_generator_gives_the_same_image_twice(pipe: Any) -> None:
    edits(pipe)
    asked = {"prompt": "a red dog", "image": [SOURCE]}
    with mmspec.accelerated(pipe, "scd"):
        first, again, other = (drawn(pipe, seed, **asked) for seed in (0, 0, 1))
    assert (first == again).all() and not (first == other).all()


def test_samples_with_an_image_follow_those_of_the_stage() -> None:
    """Two samples of 2,000 rows; and other codes of the source must be told apart."""
    pipe, rows = tiny.pipeline(codes=2), 2_000
    source = SOURCE.resize((64, 32))
    chat = [{"role": "user", "content": [{"type": "image", "image": source}, {"type": "text", "text": "a cat"}]}]
    inputs = pipe.processor.apply_chat_template(
        chat, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs={"target_h": 64, "target_w": 64}
    )
    inputs = {name: value.repeat(rows, *[1] * (value.ndim - 1)) for name, value in inputs.items()}
    stage = pipe.vision_language_encoder

    def samples() -> Tensor:
        torch.manual_seed(0)
        new = stage.generate(**inputs, do_sample=True, max_new_tokens=3, top_k=0)[:, -3:]
        return (new * torch.tensor([36, 6, 1])).sum(1)

    own = samples()
    mmspec.accelerate(pipe, "scd:window=4")
    found, limit = chi_square(own, samples())
    assert mmspec.last_stats(pipe) is not None and found < limit
    stage.model.get_image_tokens = lambda features: 1 - type(stage.model).get_image_tokens(stage.model, features)
    found, limit = chi_square(own, samples())
    assert found > 1.5 * limit


def test_other_pipelines_of_diffusers_are_refused_with_the_reason(pipe: Any) -> None:
    from diffusers import AmusedPipeline, LLaDA2Pipeline, StableDiffusionPipeline

    kinds: tuple[tuple[Any, str], ...] = (
        (LLaDA2Pipeline, "it unmasks blocks of text in parallel"),
        (AmusedPipeline, "it draws all tokens in 12 calls; mmspec.load decodes its folder"),
        (StableDiffusionPipeline, "it draws by diffusion, which has no tokens to draft"),
    )
    for kind, why in kinds:
        with pytest.raises(
            ArgumentError, match=f"obj is a {kind.__name__}, which mmspec.accelerate leaves as it is: {why}"
        ):
            mmspec.accelerate(kind.__new__(kind))
    whole: Any = type(pipe)
    empty = whole.__new__(whole)
    empty.vision_language_encoder = None
    with pytest.raises(ArgumentError, match="GlmImagePipeline without vision_language_encoder, which is what is"):
        mmspec.accelerate(empty)
