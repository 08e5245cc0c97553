"""Eight threads on one image pipeline: every call has the tokens that it has alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import tiny_llamagen
import tiny_mar
import tiny_models
import tiny_processors
import torch
from torch import Tensor

import mmspec
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.mar import MARPipeline

THREADS = 8
PROMPTS = ["a red dog", "cat", "a green cat", "red", "a dog", "green green dog", "a cat", "dog"]
SHAPES = ["a red circle", "a blue square above a green circle"]


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def of_texts(name: str) -> Any:
    return mmspec.load(getattr(tiny_models, name)(), processor=getattr(tiny_processors, name)())


def texts(i: int) -> dict[str, Any]:
    return {"prompt": PROMPTS[i]}


def classes(i: int) -> dict[str, Any]:
    return {"class_labels": i % 7}


def small(side: int) -> Callable[[int], dict[str, Any]]:
    return lambda i: {"prompt": PROMPTS[i], "height": side, "width": side}


def llamagen() -> Any:
    return LlamaGenPipeline(tiny_llamagen.tiny(model_type="c2i", num_classes=9, cls_token_num=1), guidance_scale=2.0)


RECIPES = ("plain", "scd:window=4", "recycle:window=3")
# What makes the pipeline, the prompt of call i, and the recipes, which calls take in turns.
PIPELINES: dict[str, tuple[Callable[[], Any], Callable[[int], dict[str, Any]], tuple[str, ...]]] = {
    "janus": (lambda: of_texts("janus"), texts, RECIPES),
    "emu3": (lambda: of_texts("emu3"), small(32), RECIPES),
    "chameleon": (lambda: of_texts("chameleon"), texts, RECIPES),
    "imagegpt": (lambda: mmspec.load(tiny_models.imagegpt()), lambda i: {}, ("plain", "scd:window=4")),
    "glm": (lambda: of_texts("glm"), small(64), RECIPES),
    "llamagen": (llamagen, classes, RECIPES),
    "mar": (
        lambda: MARPipeline(tiny_mar.tiny(), head_steps=4),
        classes,
        ("plain", "few-steps+tolerance:steps=2,distance=0.1"),
    ),
    "shapes-latent": (
        lambda: mmspec.load("shapes-latent"),
        lambda i: {"prompt": SHAPES[i % 2], "head_steps": 2},
        ("scd+tolerance:distance=0.05",),
    ),
}


LONG = {"glm", "shapes-latent"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in PIPELINES]
)
def test_calls_in_eight_threads_equal_calls_alone(name: str) -> None:
    make, arguments, recipes = PIPELINES[name]
    pipe = make()
    pipe.set_progress_bar_config(disable=True)

    def call(i: int) -> Tensor:
        tokens: Tensor = pipe(**arguments(i), seed=i, recipe=recipes[i % len(recipes)], output_type="latent").tokens
        return tokens

    alone = [call(i) for i in range(THREADS)]
    state, barrier = torch.random.get_rng_state(), Barrier(THREADS)

    def work(i: int) -> Tensor:
        barrier.wait()
        return call(i)

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(work, range(THREADS)))
    assert all(torch.equal(own, again) for own, again in zip(alone, found, strict=True))
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing is drawn from the global generator
