"""Pipelines of speech models whose tokens are latents: from folders, at once and streamed, by any recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tiny_latents import planned_head, pocket_processor, tiny, vibevoice, vibevoice_processor

import mmspec
import mmspec.audio.models.vibevoice.decoding
from mmspec.audio.models.pocket.decoding import speak
from mmspec.audio.models.vibevoice.decoding import converse
from mmspec.audio.models.vibevoice.speech import ScriptPart, frames_for
from mmspec.cli.app import main
from mmspec.errors import ArgumentError, PromptError

# diffusers hands tensors to NumPy in its solver.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

TEXT = "hello big world . again hello"
WINDOWS = ["plain", "layer-skip+smoothed:layers=1,sigma=0.3,window=4", "scd+tolerance:window=3,distance=0.5"]


def pocket(family: str = "pocket", **config: Any) -> Any:
    model = tiny(family)
    model.generation_config.temperature, model.generation_config.do_sample = 0.7, True
    model.generation_config.eos_threshold = 0.02
    return mmspec.load(model, processor=pocket_processor(), config=config)


def streamed(pipe: Any, text: str, **call: Any) -> tuple[list[Any], NDArray[np.float32]]:
    chunks = list(pipe.stream(text, first=2, every=3, **call))
    return chunks, np.concatenate(chunks, axis=-1)


@pytest.mark.parametrize("recipe", WINDOWS)
def test_pocket_pipeline(recipe: str) -> None:
    voice = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    pipe = pocket(voices={"anna": voice})
    pipe.adapter.frames = 24
    both = pipe([TEXT, "big world ?"], recipe=recipe, seed=3)
    out = both[0]
    assert out.sampling_rate == 1000 and out.audio.dtype == np.float32 and out.audio.shape[0] == 1
    assert out.audio.shape[1] == 8 * pipe.adapter.codes(out.tokens[0]).shape[1] and float(np.abs(out.audio).max()) > 0
    assert out.audio[0, 0] == 0  # it is faded in
    # A row does not depend on the other rows.
    alone = pipe("big world ?", recipe=recipe, seed=4)
    np.testing.assert_allclose(alone.audio, both[1].audio, atol=1e-3)
    chunks, whole = streamed(pipe, TEXT, recipe=recipe, seed=3)
    assert len(chunks) > 1
    np.testing.assert_allclose(whole, out.audio, atol=1e-3)


def test_the_limit_of_pocket_is_that_of_each_text() -> None:
    pipe = pocket()
    pipe.adapter.model.generation_config.eos_threshold = 1e9  # it never ends by itself
    pipe.adapter.model.config.frame_rate = 2.0
    texts = ["hello", "hello big world again"]
    both = pipe(texts, seed=1)
    tokens = [len(pipe.adapter.processor.tokenizer(text)["input_ids"]) for text in texts]
    limits = [row.tokens for row in both.stats.rows]
    assert limits[0] < limits[1] == max(limits) and limits[1] - limits[0] in (2, 3) and len(set(tokens)) == 2
    assert [out.truncated for out in both] == [True, True]
    for text, out, seed in zip(texts, both, (1, 2), strict=True):
        assert out.audio.shape[1] == 8 * limits[texts.index(text)]
        np.testing.assert_allclose(pipe(text, seed=seed).audio, out.audio, atol=1e-3)


def test_the_frames_of_pocket_are_those_of_its_option() -> None:
    limited, free = pocket(frames=3), pocket()
    assert limited("one two.", seed=1).stats.rows[0].tokens <= 3 < free("one two.", seed=1).stats.rows[0].tokens
    assert limited.with_reference_audio(np.ones((1, 4000), np.float32), 24000).adapter.frames == 3
    with pytest.raises(ArgumentError, match="frames=0 is not allowed; it must be an integer from 1"):
        pocket(frames=0)
    with pytest.raises(ArgumentError, match="min_p=0.5 is not possible: this model.s sampling does not take it"):
        free("one", min_p=0.5)


def test_pocket_pipeline_matches_its_parts() -> None:
    model, processor = tiny("pocket"), pocket_processor()
    pipe = mmspec.load(model, processor=processor)
    pipe.adapter.frames = 9
    prompt = processor.apply_chat_template([{"role": "user", "content": [{"type": "text", "text": TEXT}]}])
    inputs = processor(text=[prompt], return_tensors="pt")
    latents = speak(model, inputs, seed=1, max_frames=9, temperature=0.5)
    own = processor.decode(latents.audio_latents, latents.audio_latents_mask)[0]
    np.testing.assert_allclose(pipe(TEXT, seed=1, temperature=0.5).audio[0], own.numpy(), atol=1e-5)


def test_pipeline_from_a_folder_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, processor = tiny("phonon"), pocket_processor()
    folder, codec = tmp_path / "phonon", tmp_path / "codec"
    processor.audio_tokenizer.save_pretrained(codec)
    processor.audio_tokenizer.config._name_or_path = str(codec)
    processor.audio_tokenizer.name_or_path = str(codec)
    model.generation_config.do_sample, model.generation_config.eos_threshold = True, -100.0
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "voices").mkdir()
    save_file({"latents": torch.randn(2, 6)}, folder / "voices" / "bela.safetensors")
    (tmp_path / "voice.safetensors").write_bytes((folder / "voices" / "bela.safetensors").read_bytes())
    out = tmp_path / "out.wav"
    call = ["speak", TEXT, "-m", str(folder), "-o", str(out), "--seed", "2", "--json"]
    assert main([*call, "--voice", "bela", "--recipe", "few-steps+tolerance:distance=0.1,window=3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert out.stat().st_size > 44 and found["stats"]["tokens_per_call"] > 1 and found["sampling_rate"] == 1000
    assert main([*call, "--stream"]) == 0
    capsys.readouterr()
    assert main([*call, "--recipe", "scd"]) == 2
    assert "use scd+smoothed, scd+tolerance, scd+cspd, or plain" in capsys.readouterr().err
    assert main([*call, "--top-k", "5"]) == 2
    assert "tokens are vectors" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", WINDOWS[1:])
def test_vibevoice_pipeline(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [4, 4, 4, 3, 2, 4, 4, 4, 4, 1]
    monkeypatch.setattr(mmspec.audio.models.vibevoice.decoding, "VibeVoiceHead", planned_head(plan))
    model, processor = vibevoice(), vibevoice_processor()
    voices = {"anna": np.sin(np.arange(24)), "otto": np.cos(np.arange(16) / 3)}
    pipe = mmspec.load(model, processor=processor, config={"voices": voices, "frames": 12})
    script = "Speaker 0: hello big world\nSpeaker 1: again .\nSpeaker 0: hello"
    out = pipe(script, recipe=recipe, seed=1, voice="otto")
    codes = pipe.adapter.codes(out.tokens[0])
    assert out.sampling_rate == 1000 and out.audio.shape == (1, 8 * 7) and codes.shape[1] == 7
    chunks, whole = streamed(pipe, script, recipe=recipe, seed=1, voice="otto")
    assert len(chunks) > 1
    np.testing.assert_allclose(whole, out.audio, atol=1e-3)


def test_vibevoice_reads_scripts() -> None:
    model, processor = vibevoice(), vibevoice_processor()
    pipe = mmspec.load(model, processor=processor, config={"voices": {"anna": np.ones(24)}, "frames": 4})
    (part,) = pipe.read("speaker 1: hello\nbig\n Speaker 0: world", None).parts
    assert part.lines == [("1", "hello\nbig"), ("0", "world")] and list(part.voices) == ["1"]
    assert pipe.read("hello world", None).parts[0].lines == [("0", "hello world")]
    assert pipe.read("hello\nSpeaker 1: world", None).parts[0].lines == [("0", "hello"), ("1", "world")]
    with pytest.raises(PromptError, match="has no words"):
        pipe.read("Speaker 1:  ", None)
    prompt, voices = pipe.adapter.script(part)
    assert prompt.count("<audio>") == 1 and len(voices) == 1  # the second speaker has no voice
    bare = mmspec.load(model, processor=processor, config={"frames": 4})
    inputs = processor(text=[bare.adapter.script(ScriptPart([("0", "hello world")], {}))[0]], return_tensors="pt")
    own = converse(model, inputs, seed=5, max_tokens=4, guidance_scale=1.0)
    assert torch.equal(bare("hello world", seed=5).tokens[0], own.tokens[0])


def test_the_processor_runs_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of prompts are counted without it, and equal those of its outputs."""
    processor = vibevoice_processor()
    voices = {name: np.zeros(length, dtype=np.float32) for name, length in (("a", 33), ("b", 70))}
    pipe = mmspec.load(vibevoice(), processor=processor, config={"frames": 2})
    adapter = type(pipe.adapter)(pipe.adapter.model, processor, voices, frames=2)
    texts = ["Speaker 0: yes\nSpeaker 1: no\nSpeaker 0: no", "yes"]
    parts = [part for text in texts for part in adapter.read(text, None).parts]
    assert [len(part.voices) for part in parts] == [2, 1]
    lengths = [int(adapter._inputs([part])["input_ids"].shape[1]) for part in parts]
    calls, run = list[Any](), type(processor).__call__

    def counted(self: Any, **given: Any) -> Any:
        calls.append(given["text"])
        return run(self, **given)

    monkeypatch.setattr(type(processor), "__call__", counted)
    assert [adapter._length(part) for part in parts] == lengths
    pipe.adapter = adapter
    pipe(texts, seed=0)
    assert len(calls) == 1


def test_long_scripts_are_split_and_keep_their_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.audio.models.vibevoice.speech.MAX_LETTERS", 12)
    monkeypatch.setattr("mmspec.audio.models.vibevoice.speech.MORE_FRAMES", 2)
    monkeypatch.setattr("mmspec.audio.models.vibevoice.speech.FRAMES_PER_LETTER", 0.2)
    model, processor = vibevoice(), vibevoice_processor()
    script = "Speaker 0: hello big . world again\nSpeaker 1: hello .\nSpeaker 0: big"
    anna, otto = np.ones(24), np.zeros(8)
    parts = mmspec.load(model, processor=processor, config={"voices": {"anna": anna, "otto": otto}}).read(script, None)
    assert [part.lines for part in parts.parts] == [
        [("0", "hello big .")],
        [("0", "world again")],
        [("1", "hello ."), ("0", "big")],
    ]
    for part in parts.parts:  # a speaker's voice does not depend on who speaks first in a part
        assert len(part.voices["0"]) == 24 and len(part.voices["1"]) == 8
    bare = mmspec.load(model, processor=processor)
    found = bare(["hello big . world again", "hello"], seed=1, guidance_scale=1.0)
    assert [row.tokens for row in found.stats.rows] == [4, 3, 3]
    assert [row.truncated for row in found.stats.rows] == [True, False, True]
    cut = "truncated: part 1 of 2 ('hello big .') reached its limit of 4 tokens before its end"
    assert cut in found[0].notes and found[1].truncated
    np.testing.assert_allclose(bare("hello", seed=2, guidance_scale=1.0).tokens[0], found[1].tokens[0][:3], atol=1e-4)
    latents = torch.randn(3, bare.adapter.codes(found[0].tokens[0]).shape[0])
    tokens = torch.cat([latents, torch.full((3, 1), 4.0)], dim=1)  # three frames of audio
    audio = bare.adapter.codec.decode(latents.T[None])[0, 0].numpy()
    first, second = bare.read("hello big . world again", None).parts
    np.testing.assert_allclose(bare.adapter.continue_voice(second, first, tokens).voices["0"], audio, atol=1e-6)
    assert not bare.adapter.continue_voice(ScriptPart([("1", "hello")], {}), first, tokens).voices
    chunks = list(bare.stream("hello big . world again", seed=1, guidance_scale=1.0))
    np.testing.assert_allclose(np.concatenate(chunks, axis=-1), found[0].audio, atol=1e-3)


def test_the_limit_of_a_script_fits_its_text() -> None:
    text, model = "word. " * 900, vibevoice()
    model.config.text_config.max_position_embeddings = 2**14
    (part,) = mmspec.load(model, processor=vibevoice_processor()).read(text, None).parts
    seconds = frames_for(part) / 7.5
    assert len(text) / 15 * 1.5 < seconds < len(text) / 15 * 3


def test_voices_that_are_not_usable_are_refused(tmp_path: Path) -> None:
    model, processor = tiny("phonon"), pocket_processor()
    model.config.name_or_path = str(tmp_path)
    model.name_or_path = str(tmp_path)
    (tmp_path / "voices").mkdir()
    for name in ("bela", "alba"):
        save_file({"latents": torch.randn(2, 6)}, tmp_path / "voices" / f"{name}.safetensors")
    assert mmspec.load(model, processor=processor).adapter.voices == ("alba", "bela")
    save_file({"latents": torch.randn(2, 5)}, tmp_path / "voices" / "carl.safetensors")
    with pytest.raises(ArgumentError, match=r"voices\['carl'\] has the shape \[2, 5\]"):
        mmspec.load(model, processor=processor)
    with pytest.raises(ArgumentError, match=r"voices\['a'\] has values that are not finite"):
        mmspec.load(tiny("pocket"), processor=processor, config={"voices": {"a": torch.full((3, 4), torch.nan)}})


def test_errors() -> None:
    model, processor = tiny("pocket"), pocket_processor()
    for config, message in (
        ({"style": "x"}, "config has 'style'"),
        ({"voices": {"a": torch.zeros(3, 5)}}, r"voices\['a'\] has the shape \[3, 5\]; it must be .*\[frames, 4\]"),
        ({"voices": {"a": "nowhere.safetensors"}}, "cannot be read"),
    ):
        with pytest.raises(ArgumentError, match=message):
            mmspec.load(model, processor=processor, config=config)
    pipe = mmspec.load(model, processor=processor, config={"voices": {"a": np.sin(np.arange(100.0))}})
    assert pipe.adapter.voice_latents["a"].shape[1] == 4
    adapter = pipe.with_reference_audio(np.sin(np.arange(200.0))[None], 2000).adapter
    assert adapter.voices == ("reference", "a") and adapter.voice_latents["reference"].shape[1] == 4
    pipe = mmspec.load(vibevoice(), processor=vibevoice_processor(), config={"frames": 2})
    for call, message in (({"temperature": 0.5}, "leave them out"), ({"recipe": "sjd"}, r"sjd\+smoothed")):
        with pytest.raises(ArgumentError, match=message):
            pipe("hello", **call)
    processor.audio_tokenizer = None
    with pytest.raises(ArgumentError, match="no audio tokenizer that decodes"):
        mmspec.load(model, processor=processor)
