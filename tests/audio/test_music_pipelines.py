"""Pipelines of multi-codebook models, and `mmspec music`: batches, chunks, durations, drafts, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny_codecs
import tiny_music as tiny
import torch
from tiny_music import FRAME, long_musicgen, tokenizer
from transformers import EncodecFeatureExtractor, MusicgenProcessor
from transformers.generation import GenerationMixin

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.load import smaller_model
from mmspec.audio.multi_codebook.delay_pattern import undelay
from mmspec.cli.app import main
from mmspec.errors import ArgumentError, ModelError, PromptError


@pytest.mark.releases
@pytest.mark.parametrize("kind", [{}, {"channels": 2}, {"melody": True}])
def test_musicgen_matches_its_own_generate(kind: dict[str, Any]) -> None:
    model = long_musicgen(**kind)
    pipe = mmspec.load(model, processor=tokenizer(), config={"draft_model": long_musicgen(seed=1, layers=1, **kind)})
    pipe = pipe.with_duration(11 * FRAME)
    texts = ["slow quiet piano", "loud drums"]
    words = tokenizer()(texts, padding=True, return_tensors="pt")
    last = 4 // kind.get("channels", 1) - 1
    own = model.generate(
        input_ids=words["input_ids"], attention_mask=words["attention_mask"], max_new_tokens=11 + last,
        guidance_scale=3.0, do_sample=False,
    )  # fmt: skip
    for recipe in ("plain", "scd:window=4", "draft:window=4"):
        outputs = pipe(texts, recipe=recipe, temperature=0, guidance_scale=3.0, seed=0)
        audio = np.stack([output["audio"] for output in outputs])
        assert audio.dtype == np.float32 and outputs[0]["sampling_rate"] == 1000
        np.testing.assert_allclose(audio, own.numpy(), atol=1e-5)
    assert outputs.stats.draft_calls > 0


def test_audio_does_not_depend_on_the_batch_or_on_streaming() -> None:
    pipe = mmspec.load(long_musicgen(channels=2), processor=tokenizer()).with_duration(30 * FRAME)
    call: dict[str, Any] = {"temperature": 1.0, "guidance_scale": 2.0, "recipe": "scd:window=3"}
    both = pipe(["quiet piano", "happy guitar"], seed=4, **call)
    alone = pipe("happy guitar", seed=5, **call)
    assert torch.equal(alone.tokens[0], both[1].tokens[0]) and alone.audio.shape == (2, 240)
    chunks = list(pipe.stream("happy guitar", seed=5, first=3, every=5, **call))
    assert len(chunks) > 2
    np.testing.assert_allclose(np.concatenate(chunks, axis=-1), alone.audio, atol=1e-5)


def test_guidance_of_1_and_below_is_off() -> None:
    """As in the model's own `generate`; models without guidance take it too."""
    model = long_musicgen()
    pipe = mmspec.load(model, processor=tokenizer()).with_duration(8 * FRAME)
    call: dict[str, Any] = {"seed": 0, "temperature": 1.0, "recipe": "plain"}
    off, none, guided = (pipe("happy guitar", guidance_scale=scale, **call).tokens[0] for scale in (1, 0, 3.0))
    assert torch.equal(off, none) and not torch.equal(off, guided)
    words = tokenizer()(["happy guitar"], return_tensors="pt")
    greedy: dict[str, Any] = {**words, "max_new_tokens": 12, "do_sample": False}
    own = model.generate(**greedy, guidance_scale=1)
    assert torch.equal(
        GenerationMixin.generate(model, **greedy, guidance_scale=0, custom_generate=mmspec.generate), own
    )
    spoken = mmspec.load("spoken")
    assert torch.equal(spoken("one", guidance_scale=0, seed=0).tokens[0], spoken("one", seed=0).tokens[0])


def test_durations() -> None:
    pipe = mmspec.load(long_musicgen(), processor=tokenizer())
    for seconds in (0.0, 0.9):
        with pytest.raises(
            ArgumentError, match=r"seconds=[\d.]+ is not allowed; this model makes 0.008 to 0.768 seconds"
        ):
            pipe.with_duration(seconds)
    assert pipe.with_duration(FRAME)("piano", seed=0, recipe="plain").audio.shape == (1, 8)
    with pytest.raises(PromptError, match="text='  ' is empty"):
        pipe.with_duration(FRAME)("  ")


def test_dia_pipeline() -> None:
    model = tiny.dia(2)
    codec = codec_of(tiny_codecs.dac())
    pipe = mmspec.load(model, processor=tokenizer(), config={"codec": codec, "draft_model": tiny.dia(3, layers=1)})
    pipe.adapter.frames = 20
    words = tokenizer()(["[S1] slow quiet piano"], return_tensors="pt")
    # The prompt of `DiaProcessor` for a text without audio: 18 until a codebook begins, then 17.
    begun = torch.tensor([[18, 17, 17, 17], [18, 18, 18, 17], [18, 18, 18, 18]]).T[None]
    own = model.generate(
        **words, max_new_tokens=23, guidance_scale=3.0, top_k=5, do_sample=False, decoder_input_ids=begun.int(),
        decoder_attention_mask=torch.ones(1, 4),
    )  # fmt: skip
    wanted = undelay(own[:, 1:], [0, 2, 3])[0]
    wanted = wanted[: int((wanted[:, 0] >= 16).nonzero()[0])].T
    greedy = {"temperature": 0, "guidance_scale": 3.0, "top_k": 5, "seed": 0}
    one = pipe("slow quiet piano", recipe="scd:window=4", **greedy)
    codes = pipe.adapter.codes(one.tokens[0])
    assert torch.equal(codes, wanted) and one.audio.shape == (1, 8 * codes.shape[1])
    for recipe in ("plain", "draft:window=3"):
        assert torch.equal(pipe("slow quiet piano", recipe=recipe, **greedy).tokens[0], one.tokens[0])
    with pytest.raises(ArgumentError, match="seconds=3 is not possible: this model's text determines the duration"):
        pipe.with_duration(3)


def test_errors() -> None:
    with pytest.raises(ModelError, match="draft_model is a DiaForConditionalGeneration, which is another class"):
        mmspec.load(long_musicgen(), processor=tokenizer(), config={"draft_model": tiny.dia()})
    with pytest.raises(ModelError, match=r"the codec has 3 codebooks of 16, the model 4 of 16"):
        mmspec.load(long_musicgen(), processor=tokenizer(), config={"codec": codec_of(tiny_codecs.dac())})
    with pytest.raises(ArgumentError, match="Dia comes without a codec; pass its processor, or a DAC's folder"):
        mmspec.load(tiny.dia(), processor=tokenizer())
    with pytest.raises(ArgumentError, match="config has 'style', which MusicGen does not have"):
        mmspec.load(long_musicgen(), processor=tokenizer(), config={"style": "x"})
    pipe = mmspec.load(long_musicgen(), processor=tokenizer(), config={"draft_model": long_musicgen(codebooks=2)})
    with pytest.raises(ModelError, match=r"draft_model makes \(2,\) codebooks, the model \(4,\)"):
        pipe.with_duration(5 * FRAME)("piano", recipe="draft:window=3")
    pipe = mmspec.load(long_musicgen(), processor=tokenizer())
    with pytest.raises(
        ArgumentError, match="recipe 'tree' is not possible here: this model generates columns of codes"
    ):
        pipe.with_duration(5 * FRAME)("piano", recipe="tree")


def test_draft_model_of_a_large_musicgen() -> None:
    folder = Path("/hub/models--facebook--musicgen-large/snapshots/0123")
    assert smaller_model(folder) == "facebook/musicgen-small"


def test_music_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    model = long_musicgen(channels=2)
    model.save_pretrained(folder)
    MusicgenProcessor(EncodecFeatureExtractor(sampling_rate=1000), tokenizer()).save_pretrained(folder)
    words = ["music", "quiet piano", "-m", str(folder), "--seconds", "0.1", "--recipe", "scd:window=3"]
    assert main([*words, "-n", "2", "-o", str(tmp_path / "x.wav"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [Path(path).name for path in record["outputs"]] == ["x-0.wav", "x-1.wav"]
    audio, rate = soundfile.read(record["outputs"][0])
    assert rate == 1000 and audio.shape == (96, 2) and record["seconds_of_sound"] == [0.096, 0.096]
    assert main([*words, "-o", str(tmp_path / "y.flac"), "--stream"]) == 0
    whole, _ = soundfile.read(tmp_path / "y.flac")
    np.testing.assert_allclose(whole, audio, atol=1e-4)
    capsys.readouterr()
    for more, message in (
        (["--seconds", "900"], "seconds=900 is not allowed; this model makes"),
        (["-o", str(tmp_path / "x.mp3")], ".mp3 files cannot have a sampling rate of 1000"),
        (["--recipe", "scdd"], "unknown recipe 'scdd' (did you mean 'scd'?)"),
        (["-m", "shapes"], "model 'shapes' does not generate audio"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err
