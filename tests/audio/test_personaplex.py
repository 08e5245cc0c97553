"""PersonaPlex from its published layout, against words, codes and probabilities of NVIDIA's package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import torch
from golden import GOLDEN
from tiny_personaplex import BOOKS, CODES, Codec, Letters, personaplex, state, user
from torch import Tensor

import mmspec
from mmspec.audio.codecs.mimi import Mimi
from mmspec.audio.models.personaplex import decoding
from mmspec.audio.models.personaplex.decoding import DuplexFrames
from mmspec.audio.models.personaplex.prompt import conversation
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler

FOUND = json.loads((GOLDEN / "personaplex.json").read_text())
VOICE = {"embeddings": torch.tensor(FOUND["voice"]["embeddings"]), "cache": torch.tensor(FOUND["voice"]["cache"])}
HEARD = user(len(FOUND["codes"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return personaplex(tmp_path_factory.mktemp("personaplex"), VOICE)


def load(folder: Path, heard: Tensor | None = HEARD, **options: Any) -> Any:
    pipe = mmspec.load(str(folder), processor=Letters(), config={"codec": Codec(), **options})
    pipe.adapter._heard = heard
    return pipe


@pytest.mark.releases
@pytest.mark.parametrize(
    ("recipe", "options", "recorded"),
    [
        ("plain", {}, "saved"),
        ("scd:window=4", {}, "saved"),
        ("scd:window=4,start=up", {"voice": ReferenceCodes("", user(5, 911))}, "codes"),
        ("sjd:window=3", {}, "saved"),
        ("recycle:window=2", {}, "saved"),
    ],
)
def test_greedy_frames_are_those_of_the_package(
    recipe: str, options: dict[str, Any], recorded: str, folder: Path
) -> None:
    """Beside another role, in a batch; the voice is saved or codes."""
    pipe = load(folder, **options)
    assert pipe.voices == ("NATF0",)
    out = pipe([FOUND["role"], "<system> Another role. <system>"], recipe=recipe, temperature=0.0, seed=0)[0]
    frames = torch.tensor(FOUND[recorded])
    assert out.tokens[0][:-1, 0].tolist() == frames[1:, 0].tolist()
    assert torch.equal(pipe.adapter.codes(out.tokens[0]).T, frames[:, 1:])
    words = Letters().decode([number for number in out.tokens[0][:, 0].tolist() if number not in (0, 3)])
    assert out.notes == [f"answer: {words}"] and out.audio.shape[-1] == len(HEARD) * Codec().hop
    assert not out.truncated
