"""LFM2-Audio from its published folder, against prompts, codes, probabilities and audio of liquid-audio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_kani
import torch
from frame_models import distance_of_two_frames, frames_by, joint_of_two_frames, random_head, until
from safetensors.torch import load_file, save_file
from tiny_codecs import mimi
from tiny_lfm2_audio import (
    BOOKS,
    CODES,
    TEXTS,
    WIDTH,
    Codec,
    add_detokenizer,
    config,
    lfm2_audio,
    some_codes,
)  # fmt: skip

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.audio.models.lfm2_audio.decoding import Lfm2AudioFrames, ProjectedDepthTarget, frame_spec
from mmspec.audio.models.lfm2_audio.model import Lfm2Audio, read_config, renamed
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.hub.files import needed_files
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
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
        found = sampler.probs(Logits(z, None), np.zeros(z.shape[:2], dtype=np.int64))[0]
        return float((found - wanted).abs().max())

    assert distance() < 1e-4
    with monkeypatch.context() as patch:
        patch.setattr(ProjectedDepthTarget, "_projections", lambda self: self.inputs[0].unflatten(1, (BOOKS, -1)) * 0.9)
        assert distance() > 0.01


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


def test_the_decoder_is_its_own(tmp_path: Path) -> None:
    pipe = mmspec.load(str(add_detokenizer(lfm2_audio(tmp_path / "model"))), config={"frames": 12})
    codec, codes = pipe.adapter.codec, some_codes()
    audio = codec.decode(codes)
    assert audio.shape == (2, 1, 9 * codec.hop) and codec.hop == 6 * 16
    torch.testing.assert_close(audio[:, 0], torch.tensor(GOLDEN["audio"]), atol=1e-4, rtol=0)
    stream = codec.stream()
    chunks = [stream.push(chunk) for chunk in codes.split([1, 5, 3], dim=-1)]
    assert [chunk.shape[-1] for chunk in chunks] == [0, 5 * codec.hop, 3 * codec.hop]  # a frame is looked ahead
    torch.testing.assert_close(torch.cat([*chunks, stream.finish()], dim=-1), audio, atol=1e-4, rtol=0)
    assert [list(table.shape) for table in codec.tables()] == [[CODES, WIDTH]] * BOOKS
    out = pipe(TEXTS[0], seed=1)
    assert out.sampling_rate == 24000 and out.audio.std() > 0
    np.testing.assert_allclose(np.concatenate(list(pipe.stream(TEXTS[0], seed=1)), axis=-1), out.audio, atol=1e-4)


def test_speech_voices_and_limits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = load(folder, frames=5)
    assert pipe.voices == ("UK male", "UK female", "US male", "US female")
    adapter = pipe.adapter
    named = [adapter.read("two", voice).parts[0].tolist() for voice in (None, "UK male", "US female")]
    own = load(folder, system="Perform TTS. Use the US female voice.").adapter
    assert named[0] == named[1] != named[2] == own.read("two", None).parts[0].tolist() and own.voices == ()
    assert len(adapter.read("one two three. " * 40, None).parts) == 2
    for i, out in enumerate(pipe(TEXTS, seed=[7, 8, 9])):
        assert torch.equal(out.tokens[0], pipe(TEXTS[i], seed=7 + i).tokens[0])
    draft = load(folder, frames=5, draft_model=str(folder))(TEXTS[0], recipe="draft:window=3", temperature=0)
    assert torch.equal(draft.tokens[0], pipe(TEXTS[0], temperature=0).tokens[0])
    frames = torch.tensor([[3, 4, 5], [3, CODES, 5], [6, 7, 8], [CODES, 1, 1], [1, 1, 1]])
    assert adapter.codes(frames).T.tolist() == [[3, 4, 5], [6, 7, 8]]
    logits = Lfm2Audio.first_logits

    def endless(self: Lfm2Audio, hidden: torch.Tensor) -> torch.Tensor:
        return logits(self, hidden).index_fill(-1, torch.tensor(CODES), -1e4)

    monkeypatch.setattr(Lfm2Audio, "first_logits", endless)
    never = pipe("one", seed=0)
    assert never.truncated and never.tokens[0].shape == (6, BOOKS)


def test_the_published_layout(folder: Path) -> None:
    """At the published size: shapes under the names of the files; and which files of a repository are downloaded."""
    sizes = config() | {"codebooks": 8, "depthformer": {"layers": 6, "dim": 1024, "tie": True}}
    sizes["lfm"] = sizes["lfm"] | {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8}
    read = read_config(sizes, "published", 2048)
    with torch.device("meta"):
        own = Lfm2Audio(read).state_dict()
    given = {
        "depth_linear.weight": [8192, 2048],
        "audio_embedding.embedding.weight": [16392, 2048],
        "depth_embeddings.7.to_logits.weight": [2049, 1024],
        "depthformer.layers.5.operator.qkv_proj.weight": [1536, 1024],
        "depthformer.layers.5.feed_forward.w1.weight": [2816, 1024],
        "depthformer.layers.5.operator.bounded_attention.q_layernorm.weight": [32],
        "conformer.pre_encode.out.bias": [512],
        "codebook_offsets": [8],
    }
    found = renamed({name: torch.empty(shape, device="meta") for name, shape in given.items()}, read)
    assert len(found) == 8 and all(own[name].shape == tensor.shape for name, tensor in found.items())
    files = [file.name for file in folder.iterdir()]
    codec = ["audio_detokenizer/config.json", "audio_detokenizer/model.safetensors"]
    needed = needed_files([*files, *codec, "tokenizer-e351c8d8-checkpoint125.safetensors", "README.md"], folder)
    assert {*files, *codec} <= set(needed) and "tokenizer-e351c8d8-checkpoint125.safetensors" not in needed


def test_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="LFM2-Audio needs Mimi here; pass tokenizer='kyutai/mimi'"):
        mmspec.load(str(folder))
    with pytest.raises(ArgumentError, match="this model does not accept reference audio"):
        load(folder).with_reference_audio(np.zeros((1, 100), dtype=np.float32), 24000)
    with pytest.raises(PromptError, match="is too long; of the model's 1024 positions"):
        load(folder, frames=1020)("one")
    with pytest.raises(PromptError, match=r"text contains '<\|im_end\|>', a mark of the prompt"):
        load(folder)("one<|im_end|>")
    for change, message in (
        ({"lfm": None}, "no lfm or no depthformer"),
        ({"codebooks": 1}, "codebooks=1"),
        ({"depthformer": {"layers": 1, "dim": 96}}, "it must be a multiple of 64"),
    ):
        with pytest.raises(ModelError, match=message):
            read_config(config() | change, "model 'x'", 3)
    with pytest.raises(ModelError, match=r"the tokenizer has <\|audio_start\|> as \d, the model as 128; they do not"):
        mmspec.load(str(folder), processor=tiny_kani.tokenizer(), config={"codec": Codec()})
    many = lfm2_audio(tmp_path / "many")
    (many / "config.json").write_text(json.dumps(config() | {"codebooks": 4}))
    with pytest.raises(ModelError, match="has codebooks=4 in its config.json, and weights of 3"):
        load(many)
    broken = add_detokenizer(lfm2_audio(tmp_path / "broken"))
    (broken / "audio_detokenizer" / "config.json").write_text(json.dumps(config()["lfm"] | {"num_hidden_layers": 900}))
    with pytest.raises(ModelError, match="num_hidden_layers=900"):
        mmspec.load(str(broken))
    state = tiny_state(lfm2_audio(tmp_path / "other"), {"depth_embeddings.0.embedding.weight": None})
    with pytest.raises(ModelError, match=r"is not an LFM2-Audio: depth_embeddings\.0\.embedding\.weight is missing"):
        mmspec.load(str(state), config={"codec": Codec()})


def tiny_state(folder: Path, change: dict[str, torch.Tensor | None]) -> Path:
    state = load_file(folder / "model.safetensors") | change
    save_file({name: value for name, value in state.items() if value is not None}, folder / "model.safetensors")
    return folder
