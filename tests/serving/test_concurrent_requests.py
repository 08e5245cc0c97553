"""Requests that are decoded in one batch give what each gives alone, with windows that reach past the end of rows."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image
from served import served

import mmspec
from mmspec import Engine
from mmspec.serving.engines import new_engine
from mmspec.serving.models import ServedModel

RECIPE, COUNT = "recycle:window=64", 4
PROMPTS = ["a red circle above a blue square", "a small green star left of a large purple cross"] * 2
SETTINGS: dict[str, Any] = {"temperature": 2.0, "guidance_scale": 1.0}


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = mmspec.load("shapes")
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def alone(pipe: Any) -> list[Any]:
    """The results of calls with one prompt each."""
    return [pipe(prompt, recipe=RECIPE, seed=i, **SETTINGS) for i, prompt in enumerate(PROMPTS)]


def test_requests_of_a_server(pipe: Any, alone: list[Any]) -> None:
    model = ServedModel("shapes", pipe, RECIPE, new_engine(pipe, RECIPE, 16, 64))
    with served([model]) as running, ThreadPoolExecutor(COUNT) as pool:

        def image(seed: int) -> np.ndarray[Any, Any]:
            body = {"prompt": PROMPTS[seed], "seed": seed, **SETTINGS}
            (found,) = running.json("/v1/images/generations", body)["data"]
            return np.asarray(Image.open(io.BytesIO(base64.b64decode(found["b64_json"]))).convert("RGB"))

        images = list(pool.map(image, range(COUNT)))
    equal = [np.array_equal(np.asarray(own.images[0]), image) for own, image in zip(alone, images, strict=True)]
    assert equal == [True] * COUNT


def test_requests_of_an_engine(pipe: Any, alone: list[Any]) -> None:
    """An engine of two rows, in which each request joins another that is under way."""
    engine = Engine(pipe, RECIPE, max_rows=2)
    for seed, prompt in enumerate(PROMPTS):
        engine.add(prompt, request_id=str(seed), seed=seed, **SETTINGS)
    found = dict[str, Any]()
    while engine.has_unfinished:
        found |= {output.request_id: output.result for output in engine.step() if output.finished}
    tokens = [found[str(seed)].tokens[0].tolist() for seed in range(COUNT)]
    assert tokens == [own.tokens[0].tolist() for own in alone]
