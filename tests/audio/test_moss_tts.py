"""MOSS-TTS with delays from its published folder, against prompts, columns and samples of its own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_moss import BOOKS, CODES, Codec, config, moss
from torch import Tensor
from two_samples import chi_square

import mmspec
from mmspec.audio.models.moss_tts import decoding
from mmspec.audio.models.moss_tts.decoding import DELAY, END, MossRequest, MossTarget, MossTTS, plan, read_config
from mmspec.audio.models.moss_tts.message import MossPart
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError
from mmspec.hub.files import needed_files
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "moss_tts.json").read_text())
VOICE = ReferenceCodes("", torch.tensor([[1, 2, 3], [4, 5, 6], [7, 0, 1]]))


def load(folder: Path, **options: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Codec(), **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moss(tmp_path_factory.mktemp("moss"))


@pytest.fixture
def pipes(folder: Path) -> list[Any]:
    """One per recorded prompt: plain, with a language, an instruction and a duration, and with a voice."""
    options: list[dict[str, Any]] = [
        {},
        {"language": "French", "instruction": "Slowly.", "tokens": 12},
        {"voice": VOICE},
    ]
    return [load(folder, frames=14 - BOOKS, **each) for each in options]


TEXTS = ["one two three", "two", "three one"]


def prompts(pipes: list[Any]) -> list[tuple[Tensor, Tensor]]:
    return [
        pipe.adapter.prompt(pipe.adapter.read(text, None).parts[0]) for pipe, text in zip(pipes, TEXTS, strict=False)
    ]


def test_prompts_are_those_of_its_processor(pipes: list[Any]) -> None:
    for (text, codes), recorded in zip(prompts(pipes), GOLDEN["prompts"], strict=True):
        assert torch.cat([text[:, None], codes], dim=1)[:-1].tolist() == recorded


def request(pipes: list[Any], sampling: SamplingParams, length: int = 14, rows: int = 1) -> MossRequest:
    """The recorded prompts in one batch, padded on the left."""
    found = prompts(pipes) * rows
    longest = max(len(text) for text, _ in found)
    text, mask = torch.zeros(len(found), longest, dtype=torch.int64), torch.zeros(len(found), longest, dtype=torch.bool)
    codes = torch.full((len(found), longest, BOOKS), CODES)
    for row, (ids, columns) in enumerate(found):
        text[row, longest - len(ids) :], codes[row, longest - len(ids) :] = ids, columns
        mask[row, longest - len(ids) :] = True
    return MossRequest(text, codes, mask, length, sampling, 1.5)


def cut(columns: Tensor) -> list[list[int]]:
    ends = (columns[:, 0] == END).nonzero()
    return (columns[: int(ends[0]) + 1] if len(ends) else columns).tolist()


@pytest.mark.releases
@pytest.mark.parametrize(
    "recipe", ["plain", "scd:window=4", "recycle:window=3", "layer-skip:layers=1", "draft:window=3"]
)
def test_greedy_columns_are_its_own(pipes: list[Any], recipe: str) -> None:
    """Three prompts of different lengths in a batch, of which rows end early."""
    model = pipes[0].adapter.model
    made = plan(model, request(pipes, SamplingParams(0.0)))
    draft = made if recipe.startswith("draft") else None
    out = made.decode(model, parse(recipe), [0, 1, 2], draft, None)
    assert [cut(row) for row in out.tokens] == GOLDEN["greedy"]


def samples(pipes: list[Any], rows: int, recipe: str) -> Tensor:
    """Sampled columns int64 [rows, 3 * (1 + K)]."""
    s = GOLDEN["sampling"]
    sampling = SamplingParams(s["audio_temperature"], s["audio_top_k"], s["audio_top_p"])
    model = pipes[0].adapter.model
    made = plan(model, request(pipes[:1], sampling, 3, rows))
    return made.decode(model, parse(recipe), list(range(rows)), None, None).tokens.flatten(1)


def columns_in(samples: Tensor, cells: list[int]) -> Tensor:
    """Outcomes of some cells of three columns, as numbers."""
    return (samples[:, cells] * 9 ** torch.arange(len(cells))).sum(1)


ALL, FEW = [1, 4, 5, 6, 8, 9, 10, 11], [1, 4, 5]


def test_samples_follow_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 samples of three columns; a twin that samples text at another temperature must be told apart."""
    pipes = [load(folder)]
    own = [key for key, count in GOLDEN["samples"].items() for _ in range(count)]
    theirs = torch.tensor([[int(digit) for digit in key] for key in own])
    ours = samples(pipes, 4_000, "scd:window=3")
    for cells in (ALL, FEW):
        base = [columns_in(each, cells) for each in (theirs, ours)]
        found, limit = chi_square(*(torch.unique(torch.cat(base), return_inverse=True)[1].view(2, -1)))
        assert found < limit
    real = MossTarget._processed

    def broken(self: MossTarget, logits: Any, positions: Any) -> Any:
        self._text_temperature = 0.25
        return real(self, logits, positions)

    monkeypatch.setattr(decoding.MossTarget, "_processed", broken)
    ours = samples(pipes, 4_000, "scd:window=3")
    found, limit = chi_square(columns_in(theirs, FEW), columns_in(ours, FEW))
    assert found > 1.5 * limit


def test_speech_voices_and_limits(folder: Path) -> None:
    pipe = load(folder, frames=5)
    out = pipe(["one two", "three"], seed=3)
    frames = pipe.adapter.codes(out[0].tokens[0])
    assert frames.shape[0] == BOOKS and out[0].audio.shape == (1, 4 * frames.shape[1]) and int(frames.max()) < CODES
    adapter = pipe.adapter
    assert adapter.draws_voice and not load(folder, voice=VOICE).adapter.draws_voice
    later = adapter.continue_voice(MossPart("two", None), MossPart("one", None), out[0].tokens[0])
    assert later.voice is not None and later.voice.shape == (frames.shape[1], BOOKS)
    text = adapter.model.lm_heads[0].weight
    gen, delay, _ = adapter.model.config.slots
    with torch.no_grad():
        text[[gen, delay]] = torch.stack([text[gen], text[gen] * 0])
    never = pipe("one", seed=0, temperature=0)
    assert never.truncated == bool((never.tokens[0][:, 0] != END).all())


def test_a_part_that_is_cut_has_the_frames_that_were_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, logits = load(folder, frames=5), MossTTS.logits

    def endless(self: MossTTS, hidden: Tensor) -> Tensor:
        z = logits(self, hidden)
        z[..., 0, DELAY] = -1e4
        return z

    monkeypatch.setattr(MossTTS, "logits", endless)
    out = pipe("one", seed=0)
    assert out.truncated and pipe.adapter.codes(out.tokens[0]).shape == (BOOKS, 5)
    assert out.audio.shape == (1, 4 * 5)


@pytest.mark.parametrize("rule", ["lantern", "gsd", "pcg", "clusters"])
def test_rules_compare_codes_by_the_vectors_of_their_codebook(folder: Path, rule: str) -> None:
    """Each codebook has its cell, and the token of text is like no other."""
    pipe = load(folder, frames=5)
    tables = pipe.adapter.tables()
    assert len(tables) == BOOKS + 1 and tables[0].shape[0] == 0
    assert all(torch.equal(a, b) for a, b in zip(tables[1:], pipe.adapter.codec.tables(), strict=True))
    assert pipe("one two", seed=1, recipe=f"scd+{rule}:window=3").tokens[0].shape[1] == BOOKS + 1


def test_the_published_layout(folder: Path) -> None:
    """Defaults of the published configuration class, at its size; and which files of a repository are downloaded."""
    published = {"language_config": {"vocab_size": 155648, "hidden_size": 4096, "num_hidden_layers": 2}}
    with torch.device("meta"):
        model = MossTTS(read_config(published, "published"))
    assert model.config.codebooks == 32 and model.config.slots == (151656, 151662, 151653)
    state = {name: tuple(value.shape) for name, value in model.state_dict().items() if "layers" not in name}
    assert state["emb_ext.31.weight"] == (1025, 4096) and state["lm_heads.32.weight"] == (1025, 4096)
    assert state["lm_heads.0.weight"] == state["language_model.embed_tokens.weight"] == (155648, 4096)
    files = [file.name for file in folder.iterdir()]
    assert set(needed_files([*files, "modeling_moss_tts.py", "README.md"], folder)) >= set(files)


def test_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="MOSS-TTS comes without a codec"):
        mmspec.load(str(folder))
    with pytest.raises(
        ArgumentError, match=r"voice has codes of shape \[2\] .* must be integers \[frames, 3\], 0 to 7"
    ):
        load(folder, voice=ReferenceCodes("", torch.tensor([1, 2])))
    with pytest.raises(ModelError, match="has no language_config"):
        read_config({}, "model 'x'")
    for name, value in (("n_vq", 0), ("audio_end_token_id", 99), ("audio_pad_code", 3), ("audio_vocab_size", "x")):
        with pytest.raises(ModelError, match="model 'x' has"):
            read_config({**config(), name: value}, "model 'x'")
