"""MOSS-TTS-Local v1.5 from its published folder, against prompts, codes and probabilities of its own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from frame_models import distance_of_two_frames, frames_by, joint_of_two_frames, random_head, until
from tiny_moss import Codec
from tiny_moss_local import BOOKS, CODES, KINDS, WIDTH, config, moss_local
from torch import Tensor

import mmspec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.audio.models.moss_local.decoding import FirstToken, MossLocalFrames, frame_spec
from mmspec.audio.models.moss_local.model import MossLocal, read_config
from mmspec.audio.models.moss_tts.message import MossPart
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import noise_floor

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "moss_local.json").read_text())
VOICE = ReferenceCodes("", torch.tensor([[1, 2, 3], [4, 5, 6], [7, 0, 1]]))
TEXTS = ["one two three", "two", "three one"]
OPTIONS: list[dict[str, Any]] = [{}, {"language": "French", "instruction": "Slowly.", "tokens": 12}, {"voice": VOICE}]


def load(folder: Path, **options: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Codec(), **options})


@pytest.fixture(scope="module", params=list(KINDS))
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, moss_local(tmp_path_factory.mktemp(request.param), **KINDS[request.param])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moss_local(tmp_path_factory.mktemp("moss"))


def prompts(folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Of the recorded messages: plain, with a language, an instruction and a duration, and with a voice."""
    pipes = [load(folder, **each) for each in OPTIONS]
    return [
        pipe.adapter.prompt(pipe.adapter.read(text, None).parts[0]) for pipe, text in zip(pipes, TEXTS, strict=True)
    ]


@pytest.mark.releases
@pytest.mark.parametrize(
    ("recipe", "ahead"), [("plain", 0), ("scd:window=3", 0), ("draft:window=3", 0), ("scd", 2), ("frame:window=7", 2)]
)
def test_greedy_codes_are_its_own(recorded: tuple[str, Path], recipe: str, ahead: int) -> None:
    """Three prompts of different lengths in a batch, of which rows end early; prompts are those of its processor."""
    kind, path = recorded
    given, golden = prompts(path), GOLDEN[kind]
    assert [torch.cat([text[:, None], codes], dim=1).tolist() for text, codes in given] == golden["prompts"]
    model, sampling = load(path).adapter.model, SamplingParams(0.0)
    spec, head = frame_spec(model, 13, sampling), random_head(CODES, WIDTH, BOOKS)
    made = frames_by(recipe, lambda: MossLocalFrames(model, given, 13, sampling, ahead), spec, ahead, head)
    assert [until(row, CODES)[:12] for row in made] == golden["greedy"]


def test_distributions_are_its_own(recorded: tuple[str, Path]) -> None:
    """Of the end and all codes of three frames after a voice; its end and first code are one token here."""
    kind, path = recorded
    s, golden = GOLDEN["sampling"], GOLDEN[kind]
    sampling = SamplingParams(s["audio_temperature"], s["audio_top_k"], s["audio_top_p"])
    model = load(path).adapter.model
    prompted = MossLocalFrames(model, prompts(path)[2:], 4, sampling)
    sampler, found = TokenSampler([sampling], None, model.device), list[Tensor]()
    logits = prompted.start()
    for at, frame in enumerate(torch.tensor(golden["frames"])[:, None]):
        first = logits.cond[0, -1].exp()
        found += [torch.stack([first[:CODES].sum(), first[CODES]]), first[:CODES] / first[:CODES].sum()]
        rest = prompted.rest(prompted.hidden()[:, -1:], frame[:, None], np.array([at]))
        found += list(sampler.probs(Logits(rest.cond, None), np.zeros((1, BOOKS - 1), dtype=np.int64))[0, :, :CODES])
        logits = prompted.step(frame)
    for ours, theirs in zip(found, golden["probs"], strict=True):
        assert torch.allclose(ours, torch.tensor(theirs), atol=1e-4)


SAMPLED = SamplingParams(3.0, 2)


@pytest.mark.parametrize(("recipe", "ahead"), [("scd:window=2", 0), ("recycle", 2)])
def test_samples_follow_its_distribution(
    recipe: str, ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is five standard deviations above the noise floor of 5,000 samples.

    A twin that samples the end with the temperature of codes is more than twice as far.
    """
    model = small(tmp_path)
    prompt = (torch.tensor([1, 3, 30]), torch.full((3, 2), 3))

    def begun(rows: int, ahead: int) -> tuple[MossLocalFrames, Any]:
        return MossLocalFrames(model, [prompt] * rows, 2, SAMPLED, ahead), frame_spec(model, 2, SAMPLED)

    with torch.inference_mode():
        expected = joint_of_two_frames(lambda: FrameTarget(*begun(10, 1), 10, 2))
    assert abs(float(expected.sum()) - 1) < 1e-5
    rows = 5_000
    floor, spread = noise_floor(expected, rows)
    limit = floor + 5 * spread

    def distance() -> float:
        prompted, spec = begun(rows, ahead)
        made = decode_frames(prompted, parse(recipe), spec, range(rows), ahead=ahead)
        return distance_of_two_frames(made, expected)

    assert distance() < limit
    real = FirstToken.__call__

    def broken(first: FirstToken, prefix: Tensor, logits: Tensor) -> Tensor:
        text, codes = logits[:, :2] / first.sampling.temperature, logits[:, 2:]
        return real(first, prefix, torch.cat([text, codes], dim=1))

    monkeypatch.setattr(FirstToken, "__call__", broken)
    assert distance() > 2 * limit


def small(folder: Path) -> MossLocal:
    """A model of 2 codebooks of 3 codes."""
    local = config()["gpt2_config"]
    path = moss_local(folder, n_vq=2, audio_vocab_size=3, audio_pad_token_id=3, gpt2_config=local)
    codec = Codec()
    codec.codebooks, codec.codebook_size = 2, 3
    found: MossLocal = mmspec.load(str(path), config={"codec": codec}).adapter.model
    return found


def test_speech_and_voices(folder: Path) -> None:
    pipe = load(folder, frames=5)
    whole = pipe(TEXTS, seed=3)
    frames = pipe.adapter.codes(whole[0].tokens[0])
    assert frames.shape[0] == BOOKS and frames.shape[1] <= 5 and int(frames.max()) < CODES
    adapter = pipe.adapter
    assert adapter.draws_voice and not load(folder, voice=VOICE).adapter.draws_voice
    later = adapter.continue_voice(MossPart("two", None), MossPart("one", None), whole[0].tokens[0])
    assert (later.voice is not None) == bool(frames.shape[1])


def test_the_published_size() -> None:
    """By the model card of v1.5: a Qwen3 of 4B, a layer of width 2560, 12 codebooks of 1024."""
    local = {"n_embd": 2560, "n_layer": 1, "n_head": 32, "n_inner": 9728, "activation_function": "silu"}
    language = {"vocab_size": 151936, "hidden_size": 2560, "num_hidden_layers": 2}
    with torch.device("meta"):
        model = MossLocal(read_config({"qwen3_config": language, "gpt2_config": local}, "published"))
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if not name.startswith("transformer.l")}
    assert shapes["audio_embeddings.11.weight"] == (1024, 2560) and shapes["local_text_lm_head.weight"] == (2, 2560)
    assert shapes["local_transformer.h.0.mlp.fc_in.weight"] == (9728, 2560)
    assert model.config.start == 151669 and model.config.language.rope_parameters["rope_theta"] == 1e6


def test_errors(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="MOSS-TTS-Local comes without a codec"):
        mmspec.load(str(folder))
    with pytest.raises(ModelError, match="has no qwen3_config or no gpt2_config"):
        read_config({}, "model 'x'")
    for name, value in (("n_vq", 0), ("audio_end_token_id", 99), ("audio_pad_token_id", 3), ("audio_vocab_size", "x")):
        with pytest.raises(ModelError, match="model 'x' has"):
            read_config(config(**{name: value}), "model 'x'")
    for name, value in (("position_embedding_type", "alibi"), ("activation_function", "x"), ("n_embd", 16)):
        with pytest.raises(ModelError, match="model 'x' has"):
            read_config(config(gpt2_config=config()["gpt2_config"] | {name: value}), "model 'x'")
