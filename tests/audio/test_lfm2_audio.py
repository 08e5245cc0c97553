"""LFM2-Audio from its published folder, against prompts, codes, probabilities and audio of liquid-audio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_lfm2_audio
import torch
from frame_models import distance_of_two_frames, frames_by, joint_of_two_frames, random_head, until
from tiny_codecs import mimi
from tiny_lfm2_audio import (
    BOOKS, CODES, TEXTS, WIDTH, Codec, add_detokenizer, config, lfm2_audio, shapes, some_codes,
)  # fmt: skip
from torch import Tensor

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.audio.models.lfm2_audio import decoding, model
from mmspec.audio.models.lfm2_audio.decoding import Lfm2AudioFrames, ProjectedDepthTarget, frame_spec
from mmspec.audio.models.lfm2_audio.model import Lfm2Audio, read_config, read_model, renamed
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.hub.files import needed_files
from mmspec.recipes import parse
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import noise_floor

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "lfm2_audio.json").read_text())
MOST_LIKELY = SamplingParams(0.0)


def load(folder: Path, **options: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Codec(), **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lfm2_audio(tmp_path_factory.mktemp("lfm2"))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The adapter of a model with the published number of codes, and the prompts of the original."""
    where = lfm2_audio(tmp_path_factory.mktemp("published"), GOLDEN["codes"], GOLDEN["end"])
    adapter = mmspec.load(str(where), config={"codec": codec_of(mimi(codebooks=BOOKS, codebook_size=2048))}).adapter
    prompts = [adapter.read(*each).parts[0] for each in zip(TEXTS, GOLDEN["voices"], strict=True)]
    assert GOLDEN["begins"] == [[128]] * 3  # audio begins at once
    assert [ids.tolist() for ids in prompts] == [[*ids, 128] for ids in GOLDEN["prompts"]]
    return adapter.model, prompts


@pytest.mark.releases
@pytest.mark.parametrize(
    ("recipe", "ahead"), [("plain", 0), ("scd:window=3", 0), ("draft:window=3", 0), ("scd", 2), ("frame:window=7", 2)]
)
def test_greedy_codes_are_its_own(published: Any, recipe: str, ahead: int) -> None:
    """Three prompts of different lengths in a batch, whose rows end at different places."""
    made, prompts = published
    spec = frame_spec(made, GOLDEN["frames"], MOST_LIKELY)
    head = random_head(GOLDEN["codes"], WIDTH, BOOKS)
    found = frames_by(recipe, lambda: Lfm2AudioFrames(made, prompts, GOLDEN["frames"], ahead), spec, ahead, head)
    assert [until(row, GOLDEN["codes"]) for row in found] == GOLDEN["greedy"]


def test_probabilities_are_its_own(published: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all codes along five frames, with its temperature and top-k; twins are told apart."""
    made, prompts = published
    path = torch.tensor(GOLDEN["path"])[None]
    sampler = TokenSampler([SamplingParams(GOLDEN["temperature"], GOLDEN["top_k"])], None, torch.device("cpu"))
    wanted = torch.zeros(path.numel(), GOLDEN["codes"] + 1)
    for place, own in enumerate(GOLDEN["probs"]):
        for token, probability in own:
            wanted[place, token] = probability

    def distance() -> float:
        frames = Lfm2AudioFrames(made, prompts[1:2], 6, 5)
        start = frames.start()
        hidden = frames.hidden()[:, -1:]
        firsts = torch.cat([start.cond, frames.read(path, Numbers(np.array([0]))).cond], dim=1)[:, :-1]
        states = torch.cat([hidden, frames.hidden()[:, :-1]], dim=1)
        rest = frames.rest(states, path, np.array([0])).cond.unflatten(1, (-1, BOOKS - 1))
        z = torch.cat([firsts[:, :, None], rest], dim=2).flatten(1, 2)
        found = sampler.probs(decoding_logits(z), np.zeros(z.shape[:2], dtype=np.int64))[0]
        return float((found - wanted).abs().max())

    assert distance() < 1e-4
    with monkeypatch.context() as patch:
        patch.setattr(ProjectedDepthTarget, "_projections", lambda self: self.inputs[0].unflatten(1, (BOOKS, -1)) * 0.9)
        assert distance() > 0.01


def decoding_logits(z: Tensor) -> Any:
    return mmspec.sampling.logits.Logits(z, None)


def few(made: Lfm2Audio, rows: int, ahead: int) -> tuple[Lfm2AudioFrames, Any]:
    """Two frames after a short prompt."""
    frames = Lfm2AudioFrames(made, [torch.tensor([1, 6, 14])] * rows, 2, ahead)
    return frames, frame_spec(made, 2, SamplingParams(1.5, 3))


@pytest.fixture(scope="module")
def small() -> Lfm2Audio:
    """A model whose frames have 2 codes of 3; the second one may be the end, which ends nothing there."""
    made = Lfm2Audio(read_config(config() | {"codebooks": 2}, "small", 3))
    generator = torch.Generator().manual_seed(1)
    for p in made.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.4
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize(("recipe", "ahead"), [("scd:window=2", 0), ("recycle", 2)])
def test_samples_follow_its_distribution(small: Lfm2Audio, recipe: str, ahead: int) -> None:
    """The limit is five standard deviations above the noise floor of 3,000 samples."""
    with torch.inference_mode():
        expected = joint_of_two_frames(lambda: FrameTarget(*few(small, 13, 1), 13, 2), 4)
    assert abs(float(expected.sum()) - 1) < 1e-5
    rows = 3_000
    floor, spread = noise_floor(expected, rows)
    prompted, spec = few(small, rows, ahead)
    made = decode_frames(prompted, parse(recipe), spec, range(rows), ahead=ahead)
    assert distance_of_two_frames(made, expected, 4) < floor + 5 * spread
