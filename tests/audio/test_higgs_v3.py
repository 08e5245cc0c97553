"""Higgs TTS 3 from its published folder, against prompts, columns, probabilities and samples of SGLang-Omni's parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import tiny_higgs_v3
import torch
from part_runs import decode_rows
from tiny_higgs_v3 import BOOKS, CODES, TEXTS, VOICE, Codec, config, higgs_v3
from torch import Tensor
from transformers import HiggsAudioV2TokenizerConfig, HiggsAudioV2TokenizerModel, PreTrainedTokenizerFast
from two_samples import chi_square

import mmspec
from mmspec.audio.codecs.higgs import HiggsCodec
from mmspec.audio.models.higgs_v3 import model as published
from mmspec.audio.models.higgs_v3.decoding import HiggsV3Request, HiggsV3Target, plan
from mmspec.audio.models.higgs_v3.model import CODEC_CONFIG, HiggsV3, read_codec, read_config, renamed
from mmspec.audio.models.higgs_v3.speech import HiggsV3Part
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import ColumnSampler

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "higgs_v3.json").read_text())
SAMPLING = SamplingParams(*(GOLDEN["sampling"][name] for name in ("temperature", "top_k", "top_p")))
VOICES = [None, ReferenceCodes("", torch.tensor(VOICE)), ReferenceCodes("one", torch.tensor(VOICE))]
PARTS = [HiggsV3Part(text, voice) for text, voice in zip(TEXTS, VOICES, strict=True)]
CELLS = {"early": [(1, 0), (1, 1), (2, 2)], "late": [(3, 0), (4, 1), (4, 2)]}


def load(folder: Path, **options: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Codec(), **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return higgs_v3(tmp_path_factory.mktemp("higgs"))


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return load(folder, frames=14)


def test_prompts_are_those_of_its_engine(pipe: Any) -> None:
    for part, recorded in zip(PARTS, GOLDEN["prompts"], strict=True):
        ids, columns = pipe.adapter.prompt(part)
        assert [-100 if i < 0 else i for i in ids.tolist()] == recorded and int((ids < 0).sum()) == len(columns)


def request(pipe: Any, sampling: SamplingParams, length: int = 16, rows: int = 1) -> HiggsV3Request:
    """The first recorded prompt in some rows."""
    ids, columns = pipe.adapter.prompt(PARTS[0])
    empty = torch.zeros(rows, len(ids), BOOKS, dtype=torch.int64)
    return HiggsV3Request(ids.expand(rows, -1), empty, torch.ones(rows, len(ids), dtype=torch.bool), length, sampling)


@pytest.mark.releases
@pytest.mark.parametrize(
    "recipe", ["plain", "scd:window=4", "sjd:window=3", "recycle:window=3", "layer-skip:layers=1", "draft:window=3"]
)
def test_greedy_columns_and_frames_are_its_own(folder: Path, pipe: Any, recipe: str) -> None:
    """Three prompts of different lengths in a batch, two with a voice; a mark too early to end a row is in one."""
    adapter = pipe.adapter if not recipe.startswith("draft") else load(folder, frames=14, draft_model=folder).adapter
    found = decode_rows(adapter, PARTS, parse(recipe), SamplingParams(0.0), [0, 1, 2])
    for row, columns, frames in zip(found, GOLDEN["greedy"], GOLDEN["frames"], strict=True):
        own = row[: len(columns)].tolist()
        ended = own[-1][0] == CODES + 2
        assert own[:-1] == columns[:-1] and own[-1][1:] == columns[-1][1:] and ended == (len(columns) < 16)
        assert adapter.codes(row).T.tolist() == frames


def test_probabilities_are_its_own(pipe: Any) -> None:
    """Along recorded columns, after temperature, top-k and top-p; one at another temperature must be told apart."""
    target = plan(pipe.adapter.model, request(pipe, SAMPLING)).target(8, False)
    path = torch.tensor(GOLDEN["path"])[None]
    raw = torch.cat([target.prefill().cond, target.forward(path[:, :-1], np.array([0])).cond], dim=1)

    def probs(sampling: SamplingParams) -> Tensor:
        sampler = ColumnSampler([sampling], None, raw.device)
        return dense(sampler(Logits(raw, None), Numbers(np.arange(raw.shape[1])[None])))[0, ..., :-1]

    theirs = torch.tensor(GOLDEN["probs"])
    assert float((probs(SAMPLING) - theirs).abs().max()) < 1e-5
    assert float((probs(SamplingParams(1.0, 4, 0.9)) - theirs).abs().max()) > 0.01


def outcomes(tokens: Tensor, name: str) -> list[str]:
    """Some cells of rows as in the recording: the cells of a row's last column that no codec reads count too."""
    found = []
    for row in tokens.tolist():
        ends = [t for t, column in enumerate(row) if column[0] == CODES + 2]
        last = ends[0] if ends else len(row)
        found.append(" ".join(str(row[t][k]) if t <= last else "-" for t, k in CELLS[name]))
    return found


def test_samples_follow_its_own(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 samples of six columns, of which rows end; a twin that ends them too early must be told apart."""

    def distance(name: str) -> tuple[float, float]:
        made = plan(pipe.adapter.model, request(pipe, SAMPLING, 6, 4_000))
        tokens = made.decode(pipe.adapter.model, parse("scd:window=3"), list(range(4_000)), None, None).tokens
        own = [key for key, count in GOLDEN["samples"][name].items() for _ in range(count)]
        ids = {key: i for i, key in enumerate(sorted({*own, *outcomes(tokens, name)}))}
        return chi_square(*(torch.tensor([ids[key] for key in each]) for each in (own, outcomes(tokens, name))))

    for name in CELLS:
        found, limit = distance(name)
        assert found < limit
    real = HiggsV3Target.__init__

    def broken(self: HiggsV3Target, inner: Any, history: Any, codebooks: int, end: int) -> None:
        real(self, inner, history, codebooks, end)
        write = history.write
        history.write = lambda tokens, at: write(torch.where(tokens < 0, end, tokens), at)

    monkeypatch.setattr(HiggsV3Target, "__init__", broken)
    found, limit = distance("late")
    assert found > 1.5 * limit


def test_speech_voices_and_limits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = load(folder, frames=5)
    out = pipe(["one two", "three"], seed=3)
    frames = pipe.adapter.codes(out[0].tokens[0])
    assert frames.shape[0] == BOOKS and out[0].audio.shape == (1, 4 * frames.shape[1]) and int(frames.max()) < CODES
    adapter = pipe.adapter
    assert adapter.draws_voice and not load(folder, voice=VOICES[2]).adapter.draws_voice
    later = adapter.continue_voice(HiggsV3Part("two", None), HiggsV3Part("one", None), out[0].tokens[0])
    assert later.voice.transcript == "one" and later.voice.codes.shape == (frames.shape[1], BOOKS)
    long = pipe(". ".join(["one two three four"] * 20) + ".", seed=1)
    assert len(long.tokens) > 1
    logits = HiggsV3.logits

    def endless(self: HiggsV3, hidden: Tensor) -> Tensor:
        return logits(self, hidden).index_fill(-1, torch.tensor(CODES + 1), -1e4)

    monkeypatch.setattr(HiggsV3, "logits", endless)
    cut = pipe("one", seed=0)
    assert cut.truncated and adapter.codes(cut.tokens[0]).shape == (BOOKS, 5)


@pytest.mark.parametrize("rule", ["lantern", "gsd", "pcg", "clusters"])
def test_rules_compare_codes_by_the_vectors_of_their_codebook(pipe: Any, rule: str) -> None:
    assert pipe("one two", seed=1, recipe=f"scd+{rule}:window=3").tokens[0].shape[1] == BOOKS


def test_the_published_layout() -> None:
    """At the published size: the names and shapes of the model's 399 tensors and of its codec's."""
    found = json.loads((Path(__file__).parent.parent / "published" / "higgs-tts-3-4b" / "config.json").read_text())
    for rope in ({"rope_parameters": {"rope_theta": None, "rope_type": "default"}}, {"rope_theta": None}):
        other = {name: value for name, value in found["text_config"].items() if name != "rope_parameters"} | rope
        assert read_config(found | {"text_config": other}, "published").language.rope_parameters["rope_theta"] == 1e6
    with torch.device("meta"):
        model = HiggsV3(read_config(found, "published"))
    assert model.config.language.rope_parameters["rope_theta"] == 1e6 and model.config.codes == 1024
    tied = {"body.embed_tokens.weight": "tied.embedding.text_embedding.weight"}
    tied["codes.weight"] = "tied.embedding.modality_embeddings.0.embedding.weight"
    state = {tied.get(name, name): value for name, value in model.state_dict().items()}
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    assert len(state) == 399 and shapes["tied.embedding.text_embedding.weight"] == (151936, 2560)
    assert shapes["tied.embedding.modality_embeddings.0.embedding.weight"] == (8208, 2560)
    assert shapes["body.layers.35.self_attn.q_proj.weight"] == (4096, 2560)
    assert shapes["body.layers.0.self_attn.k_norm.weight"] == (128,)
    assert renamed(state, True)[0].keys() == model.state_dict().keys()
    with torch.device("meta"):
        codec = HiggsAudioV2TokenizerModel(HiggsAudioV2TokenizerConfig(**CODEC_CONFIG))
    names = codec.state_dict()
    assert len(names) == 527 and names["quantizer.quantizers.7.codebook.embed"].shape == (1024, 64)
    assert codec.config.hop_length == 960 and codec.config.num_quantizers == 8
    assert names["fc2.weight"].shape == (256, 1024) and names["acoustic_decoder.conv1.weight"].shape == (1024, 256, 7)


def test_the_codec_in_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks, and encodes a voice; names of normalized weights in files of earlier torch are read too."""
    own = tiny_codecs.higgs(real=True)
    monkeypatch.setattr(published, "CODEC_CONFIG", own.config.to_dict())
    tensors = {
        name.replace(".parametrizations.weight.original0", ".weight_g"): value.contiguous()
        for name, value in own.state_dict().items()
    }
    pipe = mmspec.load(str(higgs_v3(tmp_path / "higgs", tensors)), config={"frames": 3})
    codec = HiggsCodec(own)
    out = pipe("one", seed=0)
    np.testing.assert_allclose(out.audio, codec.decode(pipe.adapter.codes(out.tokens[0])[None])[0].numpy(), atol=1e-6)
    tone = np.sin(np.arange(15_000) / 20).astype(np.float32)[None]
    monkeypatch.setattr(ReferenceCodes, "checked", lambda self, *_: self)  # it has more codes than the model
    voice = pipe.with_reference_audio(tone, 24_000, transcript=" two ").adapter.options.voice
    padded = torch.nn.functional.pad(torch.from_numpy(tone), (0, 9_000))[None]
    torch.testing.assert_close(voice.codes, own.encode(padded).audio_codes[0].T)
    assert voice.transcript == "two" and voice.codes.shape == (25, BOOKS)


def test_errors(folder: Path) -> None:
    with pytest.raises(ModelError, match="the codec of model .* does not fit a HiggsAudioV2TokenizerModel"):
        mmspec.load(str(folder))
    with pytest.raises(ModelError, match="has no codec in its files; pass one as tokenizer="):
        read_codec({}, "model 'x'", "cpu")
    with pytest.raises(ArgumentError, match="this codec cannot encode reference audio"):
        load(folder).with_reference_audio(np.zeros((1, 100), dtype=np.float32), 1000)
    with pytest.raises(ModelError, match="has no text_config"):
        read_config({}, "model 'x'")
    for name, value in (("encoder_type", "whisper"), ("num_codebooks", 2), ("vocab_size", "x"), ("out_dim", 7)):
        broken = {**config(), "audio_encoder_config": {**config()["audio_encoder_config"], name: value}}
        with pytest.raises(ModelError, match="model 'x' has"):
            read_config(broken, "model 'x'")
    marked = ReferenceCodes("one<|audio|>", torch.tensor(VOICE))
    with pytest.raises(PromptError, match=r"transcript contains '<\|audio\|>', a mark of the prompt"):
        load(folder, voice=marked)
    with pytest.raises(PromptError, match=r"text contains '<\|ref_audio\|>', a mark of the prompt"):
        load(folder)("one <|ref_audio|> two")
    with pytest.raises(ArgumentError, match="processor=5 is not allowed; it must be a tokenizer of transformers"):
        mmspec.load(str(folder), processor=5, config={"codec": Codec()})


def test_codes_of_a_voice_are_integers() -> None:
    with pytest.raises(ArgumentError, match="transcript=5 is not allowed; it must be a text"):
        ReferenceCodes(5, torch.tensor(VOICE))  # type: ignore[arg-type]
    for dtype in (torch.bool, torch.complex64, torch.float32):
        with pytest.raises(ArgumentError, match=rf"voice has codes of shape \[3, 3\] and type {dtype}; they must be"):
            ReferenceCodes("", torch.tensor(VOICE).to(dtype)).checked(BOOKS, CODES, "Higgs")
    found = ReferenceCodes("", torch.tensor(VOICE, dtype=torch.uint8)).checked(BOOKS, CODES, "Higgs")
    assert found.codes.dtype == torch.int64 and found.codes.tolist() == VOICE


def test_tokenizers_of_the_hub_are_read_with_the_access_of_the_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict[str, Any]()
    own = tiny_higgs_v3.tokenizer()

    def read(where: Any, **options: Any) -> Any:
        asked.update(options, where=where)
        return own

    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", read)
    mmspec.load(str(folder), processor="someone/words", config={"codec": Codec()}, cache_dir=tmp_path, token="secret")
    assert (asked["where"], asked["cache_dir"], asked["token"]) == ("someone/words", tmp_path, "secret")
