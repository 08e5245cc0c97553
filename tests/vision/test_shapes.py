"""The shapes model in the package."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mmspec
from mmspec.vision.shapes.classifier import ShapesClassifier, score_captions
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.grammar import parse
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

PROMPTS = [
    "a red circle above a blue square",
    "a small green star left of a large purple cross on a checkered pink background",
]


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = mmspec.load("shapes")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_images_follow_their_prompts(pipe: Any) -> None:
    classifier = ShapesClassifier.from_pretrained(WEIGHTS / "classifier").float().eval()
    out = pipe(PROMPTS, num_images_per_prompt=2, seed=0, output_type="pt")
    wanted = [parse(prompt) for prompt in PROMPTS for _ in range(2)]
    assert score_captions(classifier.predict(out.images.float() * 2 - 1), wanted)["attributes"] >= 0.8
    assert out.stats.tokens_per_call > 3


def test_a_reduced_tokenizer_replaces_other_codes_by_the_nearest() -> None:
    whole = ShapesTokenizer(levels=(4, 4), channels=8)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    codes = whole.encode(images)
    used = codes[0].unique()
    reduced = whole.reduced(used)
    assert reduced.vocab_size == len(used)
    assert torch.equal(reduced.book[reduced.encode(images[:1])].long(), codes[:1])
    assert torch.equal(reduced.decode(reduced.encode(images[:1])), whole.decode(codes[:1]))
    assert int(reduced.encode(images).max()) < len(used)
