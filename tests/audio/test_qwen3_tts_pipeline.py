"""Qwen3-TTS from published folders: audio of the original, voices, streams, long texts, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden_qwen3_tts as golden
import numpy as np
import pytest
import torch

import mmspec
import mmspec.loading
from mmspec.audio.codecs import qwen3_tts as codec
from mmspec.audio.models.qwen3_tts.speaker import embed_voice
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.errors import ArgumentError, ModelError
from mmspec.hub.files import needed_files
from mmspec.training.settings import TrainingSettings
from mmspec.training.trainer import Trainer

FRAMES = golden.recorded()["length"] - 1
CALLS = golden.recorded()["cases"]


def wave() -> ReferenceAudio:
    return ReferenceAudio(golden.expected()["reference"][None].numpy(), 24000)


def load(where: Path, kind: str, **config: Any) -> Any:
    return mmspec.load(str(golden.copy(where / kind, kind)), config={"frames": FRAMES, **config})


def check_audio(audio: Any, name: str) -> None:
    np.testing.assert_allclose(audio.audio[0], golden.expected()[name].numpy(), atol=1e-5)


@pytest.mark.releases
def test_codec_is_the_originals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded at once, in pieces, and as a stream; and encoded."""
    made = codec.read_codec(golden.FOLDER / "speech_tokenizer", "cpu")
    codes = golden.expected()["codec.codes"].transpose(1, 2)
    audio = made.decode(codes)
    for row in range(2):
        torch.testing.assert_close(audio[row, 0], golden.expected()[f"codec.audio.{row}"])
    assert audio.shape == (2, 1, 24 * made.hop) and 0.01 < float(audio.abs().mean()) < 0.9
    monkeypatch.setattr(codec, "CHUNK", 7)
    torch.testing.assert_close(made.decode(codes), audio, atol=1e-5, rtol=0)
    stream = made.stream()
    chunks = [stream.push(each) for each in codes.split([3, 1, 1, 7, 10, 2], dim=-1)]
    assert [chunk.shape[-1] // made.hop for chunk in chunks] == [3, 1, 1, 7, 10, 2]
    torch.testing.assert_close(torch.cat([*chunks, stream.finish()], dim=-1), audio, atol=1e-5, rtol=0)
    assert torch.equal(made.encode(golden.expected()["reference"]), golden.expected()["reference_codes"])
    tables, quantizer = made.tables(), made._model.decoder.quantizer
    summed = sum(table[codes[:, k]] for k, table in enumerate(tables))
    torch.testing.assert_close(summed, quantizer(codes).transpose(1, 2))


def test_speaker_encoder_is_the_originals() -> None:
    torch.testing.assert_close(embed_voice(golden.model(), wave()), golden.expected()["speaker"], atol=1e-4, rtol=1e-4)


def test_cloned_voice(tmp_path: Path) -> None:
    """By reference audio with and without its transcript; the audio continues that of the reference."""
    pipe = load(tmp_path, "base", language="english")
    with pytest.raises(ArgumentError, match="reference audio is missing; this model clones voices"):
        pipe("Hi")
    cloned = pipe.with_reference_audio(wave().audio, 24000, CALLS["clone"]["ref_text"])
    texts = CALLS["clone"]["text"]
    for i, audio in enumerate(cloned(texts, temperature=0, seed=0)):
        check_audio(audio, f"clone.audio.{i}")
    alone = load(tmp_path / "alone", "base").with_reference_audio(wave().audio, 24000)
    for i, audio in enumerate(alone(CALLS["clone_speaker_only"]["text"], temperature=0, seed=0)):
        check_audio(audio, f"clone_speaker_only.audio.{i}")


def test_named_voices_and_instructions(tmp_path: Path) -> None:
    pipe = load(tmp_path, "custom_voice", instruct=CALLS["custom_voice"]["instruct"][1])
    assert pipe.adapter.voices == ("ann", "bob")
    found = pipe(CALLS["custom_voice"]["text"][1], voice="bob", temperature=0, seed=0)
    check_audio(found, "custom_voice.audio.1")
    assert found.truncated == (found.audio.shape[1] == FRAMES * pipe.adapter.codec.hop)
    with pytest.raises(ArgumentError, match="voice='Tom' is not allowed; use one of ann, bob"):
        pipe("Hi", voice="Tom")
    with pytest.raises(ArgumentError, match="does not accept reference audio: it is a custom_voice model"):
        pipe.with_reference_audio(wave().audio, 24000)
    with pytest.raises(ArgumentError, match="language='englisch' is not allowed .did you mean 'english'."):
        load(tmp_path / "language", "custom_voice", language="englisch")
    folder = golden.copy(tmp_path / "small", "custom_voice", tts_model_size="0b6")
    with pytest.raises(ArgumentError, match="this model follows no instructions"):
        mmspec.load(str(folder), config={"instruct": "Slowly."})


def test_designed_voice_is_kept_in_a_long_text(tmp_path: Path) -> None:
    """Texts of the original's; and parts of a text, of which the later ones continue the first."""
    pipe = load(tmp_path, "voice_design", instruct=CALLS["voice_design"]["instruct"][2], language="chinese")
    check_audio(pipe(CALLS["voice_design"]["text"][2], temperature=0, seed=0), "voice_design.audio.2")
    text = " ".join(["This is a sentence of a longer text."] * 4)
    whole = pipe(text, seed=2)
    assert len(whole.tokens) > 1
    prepared = pipe.read(text, None)
    later = pipe.adapter.continue_voice(prepared.parts[1], prepared.parts[0], whole.tokens[0])
    codes = pipe.adapter.codes(whole.tokens[0]).T
    assert torch.equal(later.continuation.codes, codes)
    own = golden.ids(f"<|im_start|>assistant\n{prepared.texts[0]}<|im_end|>\n")
    assert torch.equal(later.continuation.ids, own)


@pytest.mark.releases
def test_windows_of_several_frames_and_draft_models(tmp_path: Path) -> None:
    inside, ahead = (load(tmp_path / str(n), "custom_voice", ahead=n) for n in (0, 2))
    drafted = load(tmp_path / "draft", "custom_voice", draft_model=str(tmp_path / "0" / "custom_voice"))
    texts = ["Hi there.", "Yes"]
    calls = [(inside, "scd:window=2"), (ahead, "scd"), (drafted, "draft:window=2"), (inside, "plain")]
    found = [pipe(texts, recipe=recipe, temperature=0, seed=0) for pipe, recipe in calls]
    for each in found[1:]:
        for one, other in zip(found[0], each, strict=True):
            np.testing.assert_allclose(one.audio, other.audio, atol=1e-5)
    assert found[2].stats.tokens_per_call > 1.3  # the draft model is the model
    other = golden.copy(tmp_path / "other", "base")
    with pytest.raises(ModelError, match="draft_model has kind=base, the model custom_voice"):
        load(tmp_path / "wrong", "custom_voice", draft_model=str(other))


def test_parts_that_reach_their_limit_say_so(tmp_path: Path) -> None:
    short = load(tmp_path / "short", "custom_voice", frames=2)("Hi there.", seed=0)
    assert short.truncated and "reached its limit of 8 tokens" in short.notes[0]


def test_dtype_of_the_files(tmp_path: Path) -> None:
    """The model is in bfloat16, its codec in float32, which its audio needs."""
    folder = golden.copy(tmp_path / "model", "custom_voice")
    pipe = mmspec.load(str(folder), config={"frames": 6}, dtype="auto")
    assert pipe.adapter.model.dtype == torch.bfloat16
    for recipe in ("plain", "scd:window=2"):
        assert pipe("Yes", recipe=recipe, seed=0).audio.dtype == np.float32


def test_refused_folders_and_options(tmp_path: Path) -> None:
    folder = golden.copy(tmp_path / "model", "custom_voice")
    text = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"tts_model_type": "singing"}, "is not a Qwen3-TTS: ValueError: tts_model_type is 'singing'"),
        ({"talker_config": {**text["talker_config"], "num_hidden_layers": 3}}, "missing: talker.model.layers.2"),
        ({"talker_config": {**text["talker_config"], "num_hidden_layers": 10**6}}, "num_hidden_layers=1000000"),
    ):
        (folder / "config.json").write_text(json.dumps({**text, **change}))
        with pytest.raises(ModelError, match=message):
            mmspec.load(str(folder))
    (folder / "config.json").write_text(json.dumps(text))
    (folder / "speech_tokenizer" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="is not the 12.5 Hz codec of Qwen3-TTS"):
        mmspec.load(str(folder))


def test_a_hub_repository_is_downloaded_with_its_codec() -> None:
    files = [
        "README.md", "config.json", "generation_config.json", "merges.txt", "model.safetensors", "vocab.json",
        "tokenizer_config.json", "speech_tokenizer/config.json", "speech_tokenizer/model.safetensors",
        "speech_tokenizer/preprocessor_config.json",
    ]  # fmt: skip
    assert set(files) - {"README.md"} <= set(needed_files(files, None))
    mmspec.loading.check_layout("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", golden.FOLDER, files)


def test_a_frame_head_drafts_for_the_talker(tmp_path: Path) -> None:
    """Trained for a step, with text that is added to frames, a repetition penalty and an end of its own."""
    pipe = load(tmp_path, "custom_voice", non_streaming_mode=False)
    folder = tmp_path / "head"
    settings = TrainingSettings("frame", "kl", ("Hi there.", "o"), ("Yes.",), 2, 1, 2, 1e-3, 1, 32, 0)
    trainer = Trainer(pipe, settings, folder)
    trainer.train(trainer.collect(), 1, 1)
    pipe.add_drafter(folder)
    texts = ["Hi there.", "A longer text, with more words in it."]
    plain, drafted = (pipe(texts, recipe=recipe, temperature=0, seed=0) for recipe in ("plain", "frame"))
    for one, other in zip(plain, drafted, strict=True):
        np.testing.assert_allclose(one.audio, other.audio, atol=1e-5)
