"""Soprano from its published folder, against prompts, codes, probabilities and audio of its package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_soprano
import torch
from part_runs import distance_of_probs
from torch import Tensor

import mmspec
from mmspec.audio.codecs.soprano import read_soprano
from mmspec.audio.models.flat.soprano import soprano_parts
from mmspec.errors import ModelError, PromptError
from mmspec.hub.files import needed_files
from mmspec.sampling.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "soprano.json").read_text())
TOKENS, EVERY = 14, 301


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_soprano.soprano(tmp_path_factory.mktemp("soprano"))


@pytest.fixture
def pipe(folder: Path) -> Any:
    made = mmspec.load(str(folder))
    object.__setattr__(made.adapter.style, "tokens", TOKENS)
    return made


def until_end(row: Tensor) -> list[int]:
    ids: list[int] = row.tolist()
    return ids[: ids.index(2) + 1] if 2 in ids else ids


def test_prompts_are_the_packages(pipe: Any) -> None:
    found = [[part.ids for part in pipe.read(text, None).parts] for text in GOLDEN["texts"]]
    assert found == GOLDEN["parts"]
    assert soprano_parts("Caf\u00e9  \u2018a\u2019 [b]. ?!") == ["cafe 'a' b."]
    with pytest.raises(PromptError, match="nothing that this model can say"):
        pipe("\u2026 !")


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "recycle:window=4", "scd:window=5", "tree:branch=2/1,layers=1"])
def test_greedy_tokens_and_audio_are_the_packages(pipe: Any, recipe: str) -> None:
    """Four parts of three texts in a batch; one ends early."""
    outputs = pipe(GOLDEN["texts"], recipe=recipe, seed=0)
    for out, rows, audio in zip(outputs, GOLDEN["greedy"], GOLDEN["audio"], strict=True):
        assert [until_end(row) for row in out.tokens] == rows
        assert out.audio.shape == (1, audio["length"]) and out.sampling_rate == 32000
        np.testing.assert_allclose(out.audio[0, ::EVERY], audio["samples"], atol=2e-5)


def test_probabilities_are_the_packages(pipe: Any) -> None:
    """After the penalty, temperature, the top-k of transformers and top-p; the twin has no penalty."""
    own = GOLDEN["sampling"]
    sampling = SamplingParams(own["temperature"], 50, own["top_p"])

    def distance(text: int) -> float:
        part = pipe.read(GOLDEN["texts"][text], None).parts[0]
        return distance_of_probs(pipe.adapter, part, sampling, GOLDEN["sampled"][text], GOLDEN["probs"][text])

    assert max(distance(text) for text in range(3)) < 1e-5
    object.__setattr__(pipe.adapter.style, "processors", ())
    assert max(distance(text) for text in range(3)) > 1e-2


def test_a_part_of_one_token_has_no_sound(pipe: Any) -> None:
    short = pipe.adapter.part_codec(pipe.read("one", None).parts[0])
    assert short.decode(torch.tensor([[[5]]])).shape == (1, 1, 0)


def test_files_and_errors(folder: Path, tmp_path: Path) -> None:
    files = ["config.json", "model.safetensors", "pytorch_model.bin", "decoder.pth", "tokenizer.json"]
    assert set(needed_files(files, None)) == set(files) - {"pytorch_model.bin"}
    codec = read_soprano(folder)
    with pytest.raises(ModelError, match="use a pipeline, or `of_part` for a prompt"):
        codec.decode(torch.zeros(1, 1, 3, dtype=torch.int64))
    with pytest.raises(ModelError, match="has no codebook"):
        codec.tables()
    torch.save({"decoder.embed.weight": torch.zeros(1)}, tmp_path / "decoder.pth")
    with pytest.raises(ModelError, match="is not the decoder of a Soprano"):
        read_soprano(tmp_path)
    state = tiny_soprano.decoder_state()
    torch.save(state | {"decoder.embed.weight": state["decoder.embed.weight"][..., 1:]}, tmp_path / "decoder.pth")
    with pytest.raises(ModelError, match="an even number of frames, which no Soprano has"):
        read_soprano(tmp_path)
    torch.save({name: state[name] for name in state if name != "head.out.bias"}, tmp_path / "decoder.pth")
    with pytest.raises(ModelError, match=r"head\.out\.bias"):
        read_soprano(tmp_path)
