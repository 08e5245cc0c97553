"""The first MOSS-TTS-Local from its published folder, against prompts, codes and probabilities of its own code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from frame_models import frames_by, until
from tiny_moss import CODES, Codec
from tiny_moss_local_v1 import BOOKS, config, moss_local_v1
from torch import Tensor

import mmspec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.moss_local_v1 import decoding
from mmspec.audio.models.moss_local_v1.decoding import END, FRAME, LocalV1Frames, frame_spec
from mmspec.audio.models.moss_local_v1.model import MossLocalV1, read_config
from mmspec.audio.models.moss_tts.message import MossPart
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import noise_floor

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "moss_local_v1.json").read_text())
VOICE = ReferenceCodes("", torch.tensor([[1, 2, 3], [4, 5, 6], [7, 0, 1]]))
TEXTS = ["one two three", "two", "three one"]
OPTIONS: list[dict[str, Any]] = [{}, {"language": "French", "instruction": "Slowly.", "tokens": 12}, {"voice": VOICE}]
PENALTY = GOLDEN["sampling"]["audio_repetition_penalty"]


def load(folder: Path, **options: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Codec(), **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moss_local_v1(tmp_path_factory.mktemp("moss"))


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Of the recorded messages: plain, with a language, an instruction and a duration, and with a voice."""
    pipes = [load(folder, **each) for each in OPTIONS]
    return [
        pipe.adapter.prompt(pipe.adapter.read(text, None).parts[0]) for pipe, text in zip(pipes, TEXTS, strict=True)
    ]


@pytest.fixture(scope="module")
def model(folder: Path) -> MossLocalV1:
    found: MossLocalV1 = load(folder).adapter.model
    return found


@pytest.mark.releases
@pytest.mark.parametrize("kind", ["plain", "penalized"])
@pytest.mark.parametrize("recipe", ["plain", "scd:window=3", "draft:window=2"])
def test_greedy_codes_are_its_own(
    model: MossLocalV1, prompts: list[tuple[Tensor, Tensor]], kind: str, recipe: str
) -> None:
    """Three prompts in a batch; with top-k 1 the penalty applies, but not with temperature 0."""
    assert [torch.cat([text[:, None], codes], dim=1).tolist() for text, codes in prompts] == GOLDEN["prompts"]
    sampling = SamplingParams(0.0) if kind == "plain" else SamplingParams(1.0, 1)
    spec = replace(frame_spec(11, sampling), first=SamplingParams(0.0))
    made = frames_by(recipe, lambda: LocalV1Frames(model, prompts, 11, sampling, PENALTY), spec)
    assert [[frame[1:] for frame in until(row, END)][:10] for row in made] == GOLDEN["greedy"][kind]


def test_distributions_are_its_own(model: MossLocalV1, prompts: list[tuple[Tensor, Tensor]]) -> None:
    """Of decisions and codes of four frames after a voice; a twin without penalties is far off."""
    s = GOLDEN["sampling"]
    sampling = SamplingParams(s["audio_temperature"], s["audio_top_k"], s["audio_top_p"])

    def farthest(penalty: float) -> float:
        frames, found = LocalV1Frames(model, prompts[2:], 4, sampling, penalty), list[Tensor]()
        logits, sampler = frames.start(), TokenSampler([sampling], None, model.device)
        for codes in torch.tensor(GOLDEN["frames"])[:, None]:
            found.append(logits.cond[0, -1, :2].exp())
            frame = torch.cat([torch.tensor([[FRAME]]), codes], dim=1)
            depth = frames.depth(frame[:, :1], 0, 0)
            for book in range(BOOKS):
                before = frame[:, book : book + 1]
                z = depth.forward(before, np.array([book - 1])) if book else depth.prefill()
                found.append(sampler.probs(z, np.zeros((1, 1), dtype=np.int64))[0, 0])
            logits = frames.step(frame)
        pairs = zip(found, GOLDEN["probs"], strict=True)
        return max(float((ours - torch.tensor(theirs)).abs().max()) for ours, theirs in pairs)

    assert farthest(PENALTY) < 1e-4
    assert farthest(1.0) > 0.05


SAMPLED = SamplingParams(2.0, 2)
BEGUN = (torch.tensor([1, 3, 30]), torch.tensor([[3, 3], [0, 2], [3, 3]]))  # a prompt with a code of each codebook


def small(folder: Path) -> MossLocalV1:
    """A model of 2 codebooks of 3 codes."""
    codec = Codec()
    codec.codebooks, codec.codebook_size = 2, 3
    path = moss_local_v1(folder, n_vq=2, audio_vocab_size=3, audio_pad_code=3)
    found: MossLocalV1 = mmspec.load(str(path), config={"codec": codec}).adapter.model
    return found


def joint(model: MossLocalV1) -> Tensor:
    """Probabilities of all sequences of 2 frames of 2 codes of 3 or of the end, float64 [10 * 10]."""
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    sampler = TokenSampler([SAMPLED] * 9, None, model.device)
    at, zero = np.zeros((9, 1), dtype=np.int64), np.zeros(9, dtype=np.int64)

    def outcomes(frames: LocalV1Frames, decisions: Tensor) -> Tensor:
        """Of the pairs, and of the end, float64 [10]."""
        depth = frames.depth(torch.full((9, 1), FRAME), 0, 0)
        p = sampler.probs(depth.prefill(), at)[:, 0].gather(1, pairs[:, :1])
        q = sampler.probs(depth.forward(pairs[:, :1], zero), at)[:, 0].gather(1, pairs[:, 1:])
        scores = decisions[:2].exp().double()
        return torch.cat([scores[FRAME] * (p * q)[:, 0].double(), scores[END:]])

    begun = LocalV1Frames(model, [BEGUN] * 9, 2, SAMPLED, 3.0)
    first = outcomes(begun, begun.start().cond[0, -1])
    total = torch.zeros(10, 10, dtype=torch.float64)
    total[9, 9] = first[9]
    for i, pair in enumerate(pairs.tolist()):
        frames = LocalV1Frames(model, [BEGUN] * 9, 2, SAMPLED, 3.0)
        frames.start()
        total[i] = first[i] * outcomes(frames, frames.step(torch.tensor([[FRAME, *pair]] * 9)).cond[0, -1])
    return total.flatten()


@pytest.mark.parametrize("recipe", ["scd:window=2", "recycle:window=2"])
def test_samples_follow_its_distribution(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties included. The limit is five standard deviations above the noise floor of 4,000 samples.

    A twin that penalizes codes of all codebooks alike is more than twice as far.
    """
    model, rows = small(tmp_path), 4_000
    with torch.inference_mode():
        expected = joint(model)
    assert abs(float(expected.sum()) - 1) < 1e-5
    floor, spread = noise_floor(expected, rows)
    limit = floor + 5 * spread

    def distance() -> float:
        prompted = LocalV1Frames(model, [BEGUN] * rows, 2, SAMPLED, 3.0)
        frames = decode_frames(prompted, parse(recipe), frame_spec(2, SAMPLED), range(rows)).frames
        number = torch.where(frames[..., 0] == END, 9, frames[..., 1] * 3 + frames[..., 2])
        made = torch.bincount(number[:, 0] * 10 + number[:, 1], minlength=100).double() / rows
        return float((made - expected).abs().sum() / 2)

    assert distance() < limit
    real = decoding.penalized
    monkeypatch.setattr(decoding, "penalized", lambda z, seen, p: real(z, torch.ones_like(seen), p))
    assert distance() > 2 * limit


def test_speech_and_fewer_codebooks(folder: Path) -> None:
    pipe = load(folder, frames=5)
    whole = pipe(TEXTS, seed=3)
    frames = pipe.adapter.codes(whole[0].tokens[0])
    assert frames.shape[0] == BOOKS and frames.shape[1] <= 5 and int(frames.max()) < CODES
    few = load(folder, codebooks=2, frames=5)
    tokens = few("one two three", seed=3).tokens[0]
    assert tokens.shape[1] == 3
    later = few.adapter.continue_voice(MossPart("two", None), MossPart("one", None), torch.tensor([[FRAME, 1, 2]]))
    assert later.voice.tolist() == [[1, 2, CODES]] and few.adapter.prompt(later)[1].shape[1] == 2


def test_the_published_size() -> None:
    """By its README and the configuration's class: a Qwen3 of 1.7B, four layers of width 1536, 32 codebooks."""
    language = {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 2, "head_dim": 128}
    with torch.device("meta"):
        model = MossLocalV1(read_config({"language_config": language, "local_num_layers": 4}, "published"))
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["model.embedding_list.32.weight"] == (1025, 2048)
    assert shapes["local_transformer.layers.3.mlp.gate_proj.weight"] == (8960, 1536)
    assert shapes["local_to_speech_embedding_mlps.32.down_proj.weight"] == (2048, 2048)
    assert shapes["lm_heads.0.weight"] == (151936, 2048) and model.config.start == 151652


def test_errors(folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"recipe 'frame' is not possible for the first MOSS-TTS-Local"):
        load(folder)("one", recipe="frame")
    for name, value in (("n_vq", 0), ("audio_end_token_id", 99), ("audio_pad_code", 3), ("language_config", None)):
        with pytest.raises(ModelError, match="model 'x' has"):
            read_config(config(**{name: value}), "model 'x'")
