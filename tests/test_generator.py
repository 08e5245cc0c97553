"""`mmspec.Generator` in this process and in others."""

from __future__ import annotations

import io
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from bulk_pipe import TOKENS, BulkPipe
from PIL import Image

import mmspec.bulk.generator
from mmspec.bulk.generator import Generator
from mmspec.bulk.requests import SampleRequest, SampleSettings
from mmspec.errors import ArgumentError, UnknownNameError
from mmspec.sampling.seeds import pipeline_seed


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[BulkPipe]:
    pipe = BulkPipe()
    monkeypatch.setattr(mmspec.bulk.generator, "load", lambda **arguments: pipe)
    mmspec.bulk.generator._load.cache_clear()
    yield pipe
    mmspec.bulk.generator._load.cache_clear()


def test_columns_of_prompts_give_columns_of_samples(pipe: BulkPipe) -> None:
    batch: dict[str, Any] = {
        "prompt": np.array(["a", "refused", "b", "a"], dtype=object),
        "seed": np.array([1, np.nan, 3, 1]),
        "temperature": [None, None, 0.5, None],
        "label": [1, 2, 3, 4],
    }
    out = Generator("any", recipe="scd", batch_size=2, seed=4)(batch)
    assert out["label"] == [1, 2, 3, 4]
    assert out["seed"].tolist() == [1, pipeline_seed("refused", 4), 3, 1]
    scd = SampleSettings(recipe="scd")
    assert out["name"][0] == SampleRequest("a", 1, scd).name == out["name"][3]
    assert sorted(pipe.calls) == [("a", 1), ("b", 3)]  # once each
    assert {"recipe": "scd", "temperature": 0.5} in pipe.settings
    assert out["error"][1] == "text='refused' is not allowed" and out["error"][0] is None
    assert out["image"][1] is None and out["tokens"][1] == [] and len(out["tokens"][0]) == TOKENS
    with Image.open(io.BytesIO(out["image"][2])) as image:
        assert image.info["prompt"] == "b" and image.info["weights"] == out["weights"][2]
    assert out["target_calls"].tolist() == [2, 0, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3}, "model=3 is not allowed; a worker loads it"),
        ({"batch_size": 0}, "batch_size=0 is not allowed"),
        ({"config": {"a": object()}}, "its arguments must be plain values"),
        ({"temperature": "hot"}, "Generator 0: temperature: Input should be a valid number"),
    ],
)
def test_arguments_are_checked_before_they_are_sent(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Generator(**arguments)


def test_names_of_recipes_and_columns_are_checked(pipe: BulkPipe) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'scd'"):
        Generator(recipe="scdd")
    with pytest.raises(ArgumentError, match="no column 'prompt'; its columns are text"):
        Generator()({"text": ["a"]})
    with pytest.raises(ArgumentError, match="row 1: height: Input should be greater"):
        Generator()({"prompt": ["a", "b"], "height": [8, 0]})


@pytest.mark.slow
def test_a_pickled_generator_makes_the_same_samples_in_another_process() -> None:
    generator = Generator("shapes", recipe="scd:window=16")
    batches: list[dict[str, Any]] = [
        {"prompt": ["a red circle", "a green star"], "seed": [0, 1]},
        {"prompt": ["a green star"], "seed": [1]},
    ]
    assert len(pickle.dumps(generator)) < 1000
    call: Callable[[dict[str, Any]], dict[str, Any]] = generator
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        first, second = pool.map(call, batches)
    here = generator(batches[0])
    assert first["image"].tolist() == here["image"].tolist() and first["name"].tolist() == here["name"].tolist()
    assert second["image"][0] == here["image"][1] and second["tokens"][0] == here["tokens"][1]
