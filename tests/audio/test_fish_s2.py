"""Fish Audio S2 Pro from its published folder, against prompts, codes and probabilities of SGLang-Omni's parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from frame_models import distance_of_two_frames, frames_by, joint_of_two_frames, random_head, until
from tiny_fish_codec import PUBLISHED as CODEC
from tiny_fish_codec import add_codec, codes, recording, weights
from tiny_fish_codec import shapes as codec_shapes
from tiny_fish_s2 import BOOKS, CODES, IDS, TEXTS, VOICE, WIDTH, Codec, config, fish_s2, shapes
from torch import Tensor

import mmspec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.audio.models.fish_s2 import codec as codec_file
from mmspec.audio.models.fish_s2 import decoding
from mmspec.audio.models.fish_s2.codec import FishCodec, read_codec
from mmspec.audio.models.fish_s2.codec_modules import FishCodecModel, read_sizes
from mmspec.audio.models.fish_s2.decoding import FirstCodes, FishFrames, frame_spec
from mmspec.audio.models.fish_s2.model import FishS2, read_config, renamed
from mmspec.audio.models.fish_s2.speech import FishPart
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.hub.files import needed_files
from mmspec.loading import check_layout
from mmspec.recipes import parse
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.testing.exactness import noise_floor

PUBLISHED = Path(__file__).parent.parent / "published"
GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "fish_s2.json").read_text())
VOICES = [None, ReferenceCodes("one", torch.tensor(VOICE)), ReferenceCodes("", torch.tensor(VOICE))]
PARTS = [FishPart(text, voice) for text, voice in zip(TEXTS, VOICES, strict=True)]
MOST_LIKELY = SamplingParams(0.0)


def load(folder: Path, **options: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Codec(), **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fish_s2(tmp_path_factory.mktemp("fish"))


@pytest.fixture(scope="module")
def adapter(folder: Path) -> Any:
    return load(folder, frames=12).adapter


@pytest.mark.releases
@pytest.mark.parametrize(
    ("recipe", "ahead"), [("plain", 0), ("scd:window=3", 0), ("draft:window=3", 0), ("scd", 2), ("frame:window=7", 2)]
)
def test_greedy_codes_are_its_own(adapter: Any, recipe: str, ahead: int) -> None:
    """Three prompts of different lengths in a batch, two with a voice, of which a row ends early."""
    given = [adapter.prompt(part) for part in PARTS]
    assert [ids.tolist() for ids, _ in given] == GOLDEN["prompts"]
    first, model = FirstCodes(MOST_LIKELY, 1.1), adapter.model
    spec = frame_spec(model, 13, MOST_LIKELY, MOST_LIKELY)
    head = random_head(CODES, WIDTH, BOOKS)
    made = frames_by(recipe, lambda: FishFrames(model, given, 13, first, ahead), spec, ahead, head)
    assert [until(row, CODES)[:12] for row in made] == GOLDEN["greedy"]


def test_probabilities_are_its_own(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of first codes along ten frames, in which codes repeat, and of the codes after them; twins are told apart."""
    s, path = GOLDEN["sampling"], torch.tensor(GOLDEN["path"])[None]
    sampling = SamplingParams(s["temperature"], s["top_k"], s["top_p"])

    def found(penalty: float = s["repetition_penalty"]) -> tuple[Tensor, Tensor]:
        made = FishFrames(adapter.model, [adapter.prompt(PARTS[1])], 11, FirstCodes(sampling, penalty), 10)
        start = made.start()
        hidden = made.hidden()[:, -1:]
        firsts = torch.cat([start.cond, made.read(path, Numbers(np.array([0]))).cond], dim=1)
        states = torch.cat([hidden, made.hidden()[:, :-1]], dim=1)
        rest = made.rest(states, path, np.array([0])).cond[0, :, :CODES]
        return firsts[0, :-1].exp(), rest.softmax(-1)

    firsts, rest = found()
    theirs = torch.tensor(GOLDEN["probs"])
    assert float((firsts - theirs).abs().max()) < 1e-4
    assert float((rest - torch.tensor(GOLDEN["residual"])).abs().max()) < 1e-4
    assert float((found(1.0)[0] - theirs).abs().max()) > 0.01
    monkeypatch.setattr(decoding, "AGAIN", sampling)
    assert float((found()[0] - theirs).abs().max()) > 0.01


def few(model: FishS2, rows: int, ahead: int, penalty: float = 3.0) -> tuple[FishFrames, Any]:
    """Two frames after a short prompt."""
    ids = torch.tensor([IDS["<|im_start|>"], 14, IDS["<|voice|>"]])
    first = FirstCodes(SamplingParams(2.0, 3, 0.95), penalty)
    made = FishFrames(model, [(ids, torch.empty(0, 2, dtype=torch.int64))] * rows, 2, first, ahead)
    return made, frame_spec(model, 2, SamplingParams(), SamplingParams(2.0, 2))


@pytest.fixture(scope="module")
def small() -> FishS2:
    """A model whose frames have 2 codes of 3."""
    found = config()
    found["semantic_end_token_id"] = found["semantic_start_token_id"] + 2
    found["audio_decoder_config"] |= {"num_codebooks": 2, "vocab_size": 3}
    model = FishS2(read_config(found, "small"), 40)
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.4
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize(("recipe", "ahead"), [("scd:window=2", 0), ("recycle", 2)])
def test_samples_follow_its_distribution(small: FishS2, recipe: str, ahead: int) -> None:
    """The limit is five standard deviations above the noise floor of 3,000 samples; a twin forgets the penalty."""
    with torch.inference_mode():
        expected = joint_of_two_frames(lambda: FrameTarget(*few(small, 10, 1), 10, 2))
    assert abs(float(expected.sum()) - 1) < 1e-5
    rows = 3_000
    floor, spread = noise_floor(expected, rows)

    def distance(penalty: float) -> float:
        prompted, spec = few(small, rows, ahead, penalty)
        made = decode_frames(prompted, parse(recipe), spec, range(rows), ahead=ahead)
        return distance_of_two_frames(made, expected)

    limit = floor + 5 * spread
    assert distance(3.0) < limit
    if not ahead:
        assert distance(1.0) > 2 * limit


def test_speech_voices_and_limits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = load(folder, frames=5, residual=SamplingParams(0.8, 30, 0.9))
    whole = pipe(TEXTS, seed=3)
    frames = pipe.adapter.codes(whole[0].tokens[0])
    assert frames.shape[0] == BOOKS and whole[0].audio.shape == (1, 4 * frames.shape[1]) and int(frames.max()) < CODES
    adapter = pipe.adapter
    assert adapter.draws_voice and not load(folder, voice=VOICES[1]).adapter.draws_voice
    later = adapter.continue_voice(FishPart("two", None), FishPart("one", None), whole[0].tokens[0])
    assert later.voice.transcript == "one" and later.voice.codes.shape == (frames.shape[1], BOOKS)
    parts = adapter.read("<|speaker:1|>one. " + "<|speaker:0|>" + "two three. " * 60, None).parts
    assert len(parts) > 1 and all(part.text.startswith("<|speaker:") for part in parts)
    logits = FishS2.first_logits

    def endless(self: FishS2, hidden: Tensor) -> Tensor:
        return logits(self, hidden).index_fill(-1, torch.tensor(CODES), -1e4)

    monkeypatch.setattr(FishS2, "first_logits", endless)
    never = pipe("one", seed=0)
    assert never.truncated and adapter.codes(never.tokens[0]).shape == (BOOKS, 5)


def test_the_published_layout(folder: Path) -> None:
    """At the published size: names and shapes; and which files of a repository are downloaded."""
    found = json.loads((PUBLISHED / "fish-s2-pro" / "config.json").read_text())
    read = read_config(found, "published")
    with torch.device("meta"):
        model = FishS2(read, 155776)
        published = {name: torch.empty(shape) for name, shape in of_size(10, 4096).items()}
    used, own = renamed(published, read), model.state_dict()
    assert {name: value.shape for name, value in used.items()} == {name: value.shape for name, value in own.items()}
    assert used["slow.layers.35.self_attn.q_proj.weight"].shape == (4096, 2560)
    assert read.slow.rope_parameters["rope_theta"] == 1e6 and read.fast.num_hidden_layers == 4
    files = [file.name for file in folder.iterdir()]
    assert set(needed_files([*files, "codec.pth", "other.pth", "README.md"], folder)) >= {*files, "codec.pth"}
    check_layout("fishaudio/s2-pro", folder, [*files, "codec.pth"])  # its config.json names no class


def of_size(books: int, codes: int) -> dict[str, tuple[int, ...]]:
    """The published names, at the published size."""
    wide = {32: 2560, 48: 9728, 64: 6144, 40: 155776, 16: 128, CODES: codes, CODES * BOOKS: codes * books}
    made = dict[str, tuple[int, ...]]()
    for name, shape in shapes().items():
        layers = 36 if name.startswith("text_model") else 4
        sizes = tuple(wide[n] for n in shape)
        sizes = (2560, 4096) if name.endswith("wo.weight") else sizes
        for layer in range(layers) if ".layers.0." in name else [0]:
            made[name.replace(".layers.0.", f".layers.{layer}.")] = sizes
    return made


def codec_in(folder: Path) -> FishCodec:
    return read_codec(add_codec(folder), "cpu")


def test_the_codec_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audio of codes, some beyond the smaller codebooks, and codes of a recording; longer than both windows."""
    recorded = json.loads((Path(__file__).parent.parent / "golden" / "fish_codec.json").read_text())
    codec, given = codec_in(tmp_path), codes(recorded["frames"])
    audio = codec.decode(given)
    theirs = torch.tensor(recorded["audio"])

    def distance(other: FishCodec) -> float:
        return float((other.decode(given)[:, 0, :: recorded["every"]] - theirs).abs().max())

    assert audio.shape == (2, 1, recorded["length"]) and distance(codec) < 1e-4
    assert codec.encode(recording(recorded["samples"])).tolist() == recorded["codes"]
    stream = codec.stream()
    chunks = [stream.push(chunk) for chunk in given.split([1, 2, 50, 60, 27], dim=-1)]
    assert [chunk.shape[-1] for chunk in chunks] == [16, 32, 800, 960, 432] and stream.finish().shape[-1] == 0
    torch.testing.assert_close(torch.cat(chunks, dim=-1), audio, atol=2e-4, rtol=0)
    assert [list(table.shape) for table in codec.tables()] == [[CODES, 128], [CODES - 4, 128], [CODES - 4, 128]]
    monkeypatch.setattr(codec_file, "halves", lambda tensor, heads: tensor)
    assert distance(read_codec(tmp_path, "cpu")) > 0.01


def test_the_published_codec() -> None:
    """Names, shapes and number of the tensors in codec.pth, at its size."""
    published = codec_shapes(CODEC)
    assert len(published) == 541
    with torch.device("meta"):
        state = codec_file.renamed({name: torch.empty(shape) for name, shape in published.items()})
        model = FishCodecModel(read_sizes(state))
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in model.state_dict().items()
    }
    assert model.hop == 2048 and len(model.quantizer.codebooks) == 10


def test_a_voice_from_a_recording(tmp_path: Path) -> None:
    pipe = mmspec.load(str(add_codec(fish_s2(tmp_path))), config={"frames": 5})
    voice = recording(100).numpy()[None]
    cloned = pipe.with_reference_audio(voice, 44100, " one ")
    codes, transcript = cloned.adapter.options.voice.codes, cloned.adapter.options.voice.transcript
    assert codes.shape == (7, BOOKS) and transcript == "one" and not cloned.adapter.draws_voice
    out = cloned("two", seed=1)
    assert out.sampling_rate == 44100 and np.isfinite(out.audio).all() and out.audio.std() > 0
    np.testing.assert_allclose(np.concatenate(list(cloned.stream("two", seed=1)), axis=-1), out.audio, atol=1e-4)
    with pytest.raises(ArgumentError, match="this codec cannot encode reference audio"):
        load(tmp_path).with_reference_audio(voice, 44100)


def test_broken_codecs(tmp_path: Path) -> None:
    for change, message in (
        ({"quantizer.post_module.norm.weight": None}, "missing"),
        ({"encoder.block.1.block.4.conv.bias": torch.zeros(3)}, "wrong shape"),
        ({"decoder.model.1.block.1.conv.parametrizations.weight.original1": torch.zeros(3)}, "is not a codec of Fish"),
        ({name: None for name in weights() if "codebook.weight" in name}, "is not a codec of Fish S2"),
        ({"other": torch.zeros(1)}, "unknown: other"),
    ):
        state = {name: value for name, value in (weights() | change).items() if value is not None}
        torch.save(state, tmp_path / "codec.pth")
        with pytest.raises(ModelError, match=message):
            read_codec(tmp_path, "cpu")


def test_errors(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="Fish S2 has no codec here; put codec.pth into"):
        mmspec.load(str(folder))
    with pytest.raises(PromptError, match=r"text contains '<\|im_end\|>', a mark of the prompt"):
        load(folder)("one<|im_end|>")
    with pytest.raises(PromptError, match=r"transcript contains '<\|voice\|>', a mark of the prompt"):
        load(folder, voice=ReferenceCodes("<|voice|>", torch.tensor(VOICE)))
    with pytest.raises(ArgumentError, match="processor=5 is not allowed; it must be a tokenizer of transformers"):
        mmspec.load(str(folder), processor=5, config={"codec": Codec()})
    with pytest.raises(ModelError, match="has no text_config or no audio_decoder_config"):
        read_config({}, "model 'x'")
    for place, name, value in (
        (None, "eos_token_id", "x"), (None, "semantic_end_token_id", 33), ("text_config", "use_moe", True),
        ("text_config", "dim", 0), ("audio_decoder_config", "text_dim", 8), ("text_config", "norm_eps", 0),
    ):  # fmt: skip
        broken = config()
        (broken if place is None else broken[place])[name] = value
        with pytest.raises(ModelError, match="model 'x' has"):
            read_config(broken, "model 'x'")
