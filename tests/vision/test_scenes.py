"""The scenes model in the package."""

from __future__ import annotations

import random
from typing import Any

import pytest
from train_scenes.config import SEED_EVAL
from train_scenes.render import render_batch

import mmspec
from mmspec.errors import PromptError
from mmspec.metrics.prompts import SCENES
from mmspec.vision.scenes.classifier import ScenesClassifier
from mmspec.vision.scenes.config import WEIGHTS
from mmspec.vision.scenes.domain import captions, place
from mmspec.vision.scenes.grammar import describe


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = mmspec.load("scenes")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_images_follow_their_prompts(pipe: Any) -> None:
    classifier = ScenesClassifier.from_pretrained(WEIGHTS / "classifier").float().eval()
    out = pipe(list(SCENES[:4]), seed=0, output_type="pt")
    assert classifier.score(out.images.float() * 2 - 1, SCENES[:4])["attributes"] >= 0.8
    assert out.stats.tokens_per_call > 1.5


def test_prompts_outside_the_grammar_are_refused(pipe: Any) -> None:
    with pytest.raises(PromptError, match="'elephant'"):
        pipe("a red elephant at the top left")


def test_the_classifier_reads_renders() -> None:
    classifier = ScenesClassifier.from_pretrained(WEIGHTS / "classifier").float().eval()
    rng = random.Random(SEED_EVAL)
    wanted = [caption for caption in captions(64, SEED_EVAL + 1) if "any" not in caption.slots()]
    images = render_batch([place(caption, rng) for caption in wanted])
    assert classifier.score(images, [describe(caption) for caption in wanted])["attributes"] > 0.98
