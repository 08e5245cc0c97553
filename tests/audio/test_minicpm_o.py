"""MiniCPM-o 4.5 from a folder, against prompts, codes and probabilities of the original."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_minicpm_o as tiny
import torch
from part_runs import decode_rows, distance_of_probs
from tiny_chatterbox import Levels

import mmspec
from mmspec.audio.models.codec_lm import minicpm_o
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "minicpm_o.json").read_text())
CALLS, LENGTH = GOLDEN["calls"], GOLDEN["length"]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The adapter of a folder, whose parts have as many codes as were recorded."""
    folder = tiny.minicpm_o(tmp_path_factory.mktemp("minicpm_o"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minicpm_o, "MAX_CODES", LENGTH)
        yield mmspec.load(str(folder), config={"codec": Levels(tiny.CODES)}).adapter


def parts(adapter: Any) -> list[Any]:
    return [adapter.read(call["text"], None).parts[0] for call in CALLS]


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=6", "recycle:window=4"])
def test_greedy_codes_are_the_originals(adapter: Any, recipe: str) -> None:
    """Three texts in a batch. The original takes the last code for the end, also of a text that is cut."""
    found = decode_rows(adapter, parts(adapter), parse(recipe), SamplingParams(0.0), range(3))
    for tokens, call in zip(found, CALLS, strict=True):
        assert adapter.codes(tokens)[0].tolist()[: LENGTH - 1] == call["codes"]
    assert len({len(call["codes"]) for call in CALLS}) > 1


def test_the_language_model_says_the_text_as_by_the_original(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[list[int]]()
    monkeypatch.setattr(adapter.frontend._model, "read", lambda before, ids: asked.append(before + ids))
    for call in CALLS:
        adapter.frontend._prompt(call["text"])
        assert call["prompt"][: len(asked[-1])] == asked[-1]
    words = adapter.frontend._tokenizer.decode(asked[-1]).replace(" ", "")
    assert words.endswith("<|tts_bos|>Yes,no.")


def test_probabilities_are_the_originals(adapter: Any) -> None:
    """At its defaults: 50 codes and more, of which the first is not truncated, and the end has none before."""

    def distance(sampling: SamplingParams) -> float:
        each = zip(parts(adapter), CALLS, strict=True)
        return max(distance_of_probs(adapter, part, sampling, call["codes"], call["probs"]) for part, call in each)

    assert adapter.sampling == SamplingParams(0.8, 25, 0.85) and distance(adapter.sampling) < 1e-5
    for other in (SamplingParams(0.81, 25, 0.85), SamplingParams(0.8, 5, 0.85), SamplingParams(0.8, 25, 0.84)):
        assert distance(other) > 1e-3
