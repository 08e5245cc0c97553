"""PersonaPlex from its published layout, against words, codes and probabilities of NVIDIA's package."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import torch
from batch_states import batch_states
from golden import GOLDEN
from recorded_calls import recorded_graphs
from tiny_personaplex import BOOKS, CODES, SMALL, Codec, Letters, personaplex, user
from torch import Tensor

import mmspec
from mmspec.audio.codecs.mimi import Mimi
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.models.kyutai_tts.model import KyutaiTTS, read_config, read_model
from mmspec.audio.models.personaplex import prompt, speech
from mmspec.audio.models.personaplex.decoding import DuplexFrames
from mmspec.audio.models.personaplex.prompt import conversation
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.audio.wave import write_audio
from mmspec.decoding.rows import can_join, join_rows
from mmspec.errors import ArgumentError, ModelError
from mmspec.loading import check_layout
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import noise_floor

FOUND = json.loads((GOLDEN / "personaplex.json").read_text())
VOICE = {"embeddings": torch.tensor(FOUND["voice"]["embeddings"]), "cache": torch.tensor(FOUND["voice"]["cache"])}
SPOKEN = user(len(FOUND["codes"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return personaplex(tmp_path_factory.mktemp("personaplex"), VOICE)


def load(folder: Path, spoken: Tensor | None = SPOKEN, **options: Any) -> Any:
    pipe = mmspec.load(str(folder), processor=Letters(), config={"codec": Codec(), **options})
    pipe.adapter.user = spoken
    return pipe


@pytest.mark.releases
@pytest.mark.parametrize(
    ("recipe", "options", "recorded"),
    [
        ("plain", {}, "saved"),
        ("scd:window=4,start=up", {"voice": ReferenceCodes("", user(5, 911))}, "codes"),
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
    assert out.notes == [f"answer: {words}"] and out.audio.shape[-1] == len(SPOKEN) * Codec().hop
    assert not out.truncated


def probs(logits: Logits, sampling: SamplingParams) -> Tensor:
    """Probabilities [B, V] of the last of the logits."""
    sampler = TokenSampler([sampling] * len(logits.cond), None, logits.cond.device)
    return sampler.probs(logits, np.zeros(logits.cond.shape[:2], dtype=np.int64))[:, -1]


def test_distributions_are_those_of_the_package(folder: Path) -> None:
    """Of text ids and codes along the most likely tokens, at the default temperatures."""
    pipe, recorded = load(folder), iter(FOUND["probs"])
    made = pipe(FOUND["role"], recipe="plain", temperature=0.0).tokens[0][None]
    part, rest = pipe.read(FOUND["role"], None).parts[0], SamplingParams(0.8, FOUND["top_k"])

    def check(logits: Logits, sampling: SamplingParams) -> None:
        ids, wanted = next(recorded)
        torch.testing.assert_close(probs(logits, sampling)[0, ids], torch.tensor(wanted), atol=1e-4, rtol=0)

    with torch.inference_mode():
        frames = DuplexFrames(pipe.adapter.model, [part])
        logits = frames.start()
        for frame in made[:, :4].unbind(1):
            check(logits, SamplingParams(0.7, FOUND["text_top_k"]))
            depth, given = frames.depth(frame[:, :1], 0, 0), frames.given_codes(frames._length[:, None])[0, 0]
            found = [depth.prefill(), *(depth.forward(frame[:, i : i + 1], np.array([i - 1])) for i in range(1, BOOKS))]
            for own, code in zip(found, given, strict=True):
                check(own, rest) if code < 0 else next(recorded)
            for _ in range(BOOKS):  # the user's, which the package replaces
                next(recorded)
            logits = frames.step(frame)


LENGTH, SAMPLES = 2, 4_000
HOT = FrameSpec(LENGTH, None, 0, SamplingParams(4.0, 3), SamplingParams(4.0, top_p=0.95))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KyutaiTTS:
    """A model of 2 codebooks of 2 codes."""
    for name, codes in (("SILENCE", (1, 0)), ("TONE", (0, 1))):
        monkeypatch.setattr(prompt, name, codes)
    return read_model(personaplex(tmp_path, sizes=SMALL), "cpu", torch.float32, speech.SIZES, 2)


def begun(model: KyutaiTTS, rows: int, spoken: list[list[int]]) -> DuplexFrames:
    own = conversation(torch.tensor([[1, 0], [0, 1]]), [1, 2], torch.tensor(spoken), model.config)
    return DuplexFrames(model, [own] * rows)


def joint(frames: DuplexFrames, sequences: Tensor) -> Tensor:
    """Probabilities of sequences int64 [B, 2, 3] of frames, one per row."""
    logits, total = frames.start(), torch.ones(len(sequences), dtype=torch.float64)
    for own in sequences.unbind(1):
        p = probs(logits, HOT.first).gather(1, own[:, :1])
        depth = frames.depth(own[:, :1], 0, 0)
        p = p * probs(depth.prefill(), HOT.rest).gather(1, own[:, 1:2])
        second = depth.forward(own[:, 1:2], np.zeros(len(own), dtype=np.int64))
        total *= (p * probs(second, HOT.rest).gather(1, own[:, 2:]))[:, 0]
        logits = frames.step(own)
    return total


ONE, OTHER = [[1, 1], [0, 1]], [[0, 0], [1, 0]]


def test_samples_follow_the_distribution(small: KyutaiTTS) -> None:
    """Of two frames, the first with a code that is given; the twin's user says something else."""
    frame = torch.cartesian_prod(torch.arange(4), torch.arange(2), torch.arange(2))
    every = frame[torch.cartesian_prod(torch.arange(16), torch.arange(16))]
    with torch.inference_mode():
        expected, twin = (joint(begun(small, len(every), spoken), every) for spoken in (ONE, OTHER))
    assert abs(float(expected.sum()) - 1) < 1e-5 and int((expected > 0).sum()) > 25
    floor, spread = noise_floor(expected, SAMPLES)
    made = decode_frames(begun(small, SAMPLES, ONE), parse("scd:window=2"), HOT, range(SAMPLES)).frames
    numbers = (made * torch.tensor([4, 2, 1])).sum(-1) @ torch.tensor([16, 1])
    shares = torch.bincount(numbers, minlength=256).double() / SAMPLES
    assert (shares - expected).abs().sum() / 2 < floor + 5 * spread < (shares - twin).abs().sum() / 2


def test_rows_join_captured_calls(small: KyutaiTTS) -> None:
    frame = torch.tensor([[1, 0, 1], [2, 1, 0]])
    with recorded_graphs() as recordings:
        made, other, alone = (begun(small, 2, spoken * 2) for spoken in (ONE, OTHER, OTHER))
        for each in (made, other, alone):
            each.start(), each.step(frame)
        wanted = alone.step(frame).cond
        assert can_join(made, other) and recordings.count
        join_rows(made, other, [2, 3], *batch_states(2, 2))
        torch.testing.assert_close(made.step(frame.repeat(2, 1)).cond[2:], wanted, atol=1e-5, rtol=1e-4)


def test_recordings_are_encoded_by_mimi(folder: Path) -> None:
    """The recording to answer and that of a voice; the last frame is filled up."""
    mimi = Mimi(tiny_codecs.mimi(BOOKS, CODES))
    wave = np.sin(np.arange(round(3.5 * mimi.hop), dtype=np.float32))[None]
    pipe = load(folder, None, codec=mimi)
    answering = pipe.with_reference_audio(wave, mimi.sampling_rate)
    padded = torch.nn.functional.pad(torch.from_numpy(wave[0]), (0, mimi.hop // 2))
    assert torch.equal(answering.adapter.user, mimi.encode(padded)) and len(answering.adapter.user) == 4
    out = answering("Be kind.", voice="NATF0", seed=1)
    assert out.audio.shape[-1] == 4 * mimi.hop
    chunks = answering.stream("Be kind.", voice="NATF0", seed=1, first=1, every=2)
    np.testing.assert_allclose(np.concatenate(list(chunks), axis=1), out.audio, atol=1e-5)
    assert chunks.notes == out.notes and out.notes[0].startswith("answer: ")
    file = folder / "voice.wav"
    write_audio(wave, mimi.sampling_rate, file)
    own = load(folder, None, codec=mimi, voice=file)
    torch.testing.assert_close(own.adapter.voice, mimi.encode(padded), atol=0, rtol=0)


def test_samples_change_with_the_temperature_of_a_call(folder: Path) -> None:
    pipe = load(folder)
    part = pipe.read("Be kind.", None).parts[0]
    spec = pipe.adapter.prepare_rows([part], parse("plain"), [pipe.adapter.sampling]).spec
    assert (spec.first, spec.rest) == (SamplingParams(0.7, 25), SamplingParams(0.8, 250))
    called = replace(pipe.adapter.sampling, temperature=0.0)
    assert pipe.adapter.prepare_rows([part], parse("plain"), [called]).spec.first == SamplingParams(0.0, 25)


def test_voices_in_a_folder_come_before_the_archive(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    for name in ("NATM1", "NATF2"):
        torch.save(VOICE, tmp_path / "voices" / f"{name}.pt")
    files = speech.VoiceFiles(tmp_path)
    config = load(folder).adapter.model.config
    assert files.names == ("NATF2", "NATM1") and len(files.read("NATM1", config).embeds) == len(VOICE["embeddings"])


def test_errors(folder: Path, tmp_path: Path) -> None:
    pipe = load(folder)
    audio = np.zeros((1, 24_000), dtype=np.float32)
    torch.save({**VOICE, "embeddings": torch.zeros(4, 1, 1, 8)}, tmp_path / "narrow.pt")
    torch.save({**VOICE, "cache": torch.zeros(1, 17, 2)}, tmp_path / "short.pt")
    torch.save({**VOICE, "cache": torch.full((1, 17, 4), CODES)}, tmp_path / "other.pt")
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: load(folder, None)("Be kind."), ArgumentError, "reference audio is missing; PersonaPlex answers"),
        (lambda: pipe("Be kind.", voice="NATF9"), ArgumentError, "voice='NATF9' is not allowed; use one of NATF0"),
        (lambda: pipe("Be kind.", recipe="draft"), ArgumentError, "'draft' is not possible for PersonaPlex"),
        (lambda: pipe("Be kind.", recipe="frame"), ArgumentError, "'frame' is not possible for PersonaPlex"),
        (lambda: pipe("Be kind.", guidance_scale=2.0), ArgumentError, "this model has no guidance"),
        (lambda: pipe.with_reference_audio(audio, 24_000), ArgumentError, "this codec cannot encode recordings"),
        (lambda: load(folder, voice="x.pt"), ArgumentError, "voice='x.pt' is not allowed; .* a file, or one of NATF0"),
        (lambda: load(folder, voice=tmp_path / "narrow.pt"), ModelError, r"embeddings of shape \[4, 1, 1, 8\]"),
        (lambda: load(folder, voice=tmp_path / "short.pt"), ModelError, r"a cache of shape \[1, 17, 2\]; it must be"),
        (lambda: load(folder, voice=tmp_path / "other.pt"), ModelError, "texts end at 20, codes at 2048"),
        (lambda: load(folder, voice=ReferenceCodes("", user(3)[:, :4])), ArgumentError, "voice has codes of shape"),
        (lambda: load(folder, codec=None), ArgumentError, "needs Mimi in the layout of transformers"),
        (lambda: load(folder, draft_model=str(folder)), ArgumentError, "no smaller model was published"),
        (lambda: load(personaplex(tmp_path / "mute"))("Be kind."), ArgumentError, "has no voices; pass config="),
        (
            lambda: mmspec.load(str(folder), processor=object(), config={"codec": Codec()}),
            ArgumentError,
            "it needs encode and decode",
        ),
    ]
    for call, kind, message in calls:
        with pytest.raises(kind, match=message):
            call()
    (tmp_path / "mute" / "voices.tgz").write_bytes(b"no archive")
    with pytest.raises(ModelError, match="voices .* cannot be read"):
        load(tmp_path / "mute")


def test_the_published_layout(tmp_path: Path) -> None:
    """With all steps along the depth, 16 742 874 000 bytes, as the published file has with its header."""
    (tmp_path / "config.json").write_text('{"model_type": "personaplex", "version": "7b-v1"}')
    check_layout("nvidia/personaplex-7b-v1", tmp_path, ["config.json", "model.safetensors", "voices.tgz"])
    with torch.device("meta"):
        whole = KyutaiTTS(read_config({**speech.SIZES, "dep_q": 16}, "published"))
        used = KyutaiTTS(read_config(speech.SIZES, "published", BOOKS))
    sizes = [2 * sum(p.numel() for p in model.parameters()) for model in (whole, used)]
    assert sizes[0] + 56_208 == 16_742_874_000 and sizes[1] < 0.93 * sizes[0]
