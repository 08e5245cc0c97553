"""Reference audio, melodies and voices: against the models' own `generate`, from files, and errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny_codecs
import tiny_music
import tiny_speech
import torch
from numpy.typing import NDArray
from tiny_music import FRAME, long_musicgen, tokenizer
from transformers import MusicgenMelodyFeatureExtractor, MusicgenMelodyProcessor

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.csm.speech import CsmAdapter
from mmspec.audio.multi_codebook.delay_pattern import undelay
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes
from mmspec.audio.wave import write_audio
from mmspec.cli.app import main
from mmspec.errors import ArgumentError
from mmspec.limits import VOICE_SECONDS
from mmspec.media.audio import read_audio


def wave(samples: int, channels: int = 1) -> NDArray[np.float32]:
    place = np.arange(samples)
    return np.stack([0.5 * np.sin(place * (0.3 + 0.1 * c) + place**2 / 900) for c in range(channels)]).astype("float32")


def melody_processor() -> Any:
    extract = MusicgenMelodyFeatureExtractor(sampling_rate=1000, n_fft=64, hop_length=16, chunk_length=1)
    return MusicgenMelodyProcessor(extract, tokenizer())


@pytest.mark.releases
@pytest.mark.parametrize("channels", [1, 2])
def test_melody_matches_the_models_own_generate(channels: int) -> None:
    model, processor = long_musicgen(melody=True, channels=channels), melody_processor()
    texts, melody = ["slow quiet piano", "loud drums"], wave(300)
    pipe = mmspec.load(model, processor=processor).with_duration(11 * FRAME)
    words = processor(audio=[melody[0]] * 2, sampling_rate=1000, text=texts, padding=True, return_tensors="pt")
    own = model.generate(**words, max_new_tokens=11 + 4 // channels - 1, guidance_scale=3.0, do_sample=False)
    how: dict[str, Any] = {"recipe": "scd:window=4", "temperature": 0, "guidance_scale": 3.0, "seed": 0}
    audio = np.stack(pipe.with_reference_audio(melody, 1000)(texts, **how).audio)
    np.testing.assert_allclose(audio, own.numpy(), atol=1e-5)
    assert not np.allclose(audio, np.stack(pipe(texts, **how).audio), atol=1e-3)
    longer = pipe.with_reference_audio(melody, 1000).with_duration(12 * FRAME)("piano", **how)
    assert longer.audio.shape == (channels, 12 * 8)


def test_melody_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has another sampling rate, and two channels."""
    folder, file = tmp_path / "model", tmp_path / "tune.flac"
    model = long_musicgen(melody=True)
    model.save_pretrained(folder)
    melody_processor().save_pretrained(folder)
    write_audio(wave(900, 2), 2000, file)
    words = ["music", "piano", "-m", str(folder), "--seconds", "0.1", "--recipe", "plain", "--temperature", "0"]
    assert main([*words, "--melody", str(file), "-o", str(tmp_path / "x.wav")]) == 0
    written, _ = soundfile.read(tmp_path / "x.wav", dtype="float32")
    pipe = mmspec.load(model, processor=melody_processor()).with_duration(0.1)
    output = pipe.with_reference_audio(*read_audio(file, VOICE_SECONDS))("piano", recipe="plain", temperature=0, seed=0)
    np.testing.assert_allclose(written, output.audio[0].clip(-1, 1), atol=1e-4)
    capsys.readouterr()
    for name in ("no.wav", "no.raw"):
        (tmp_path / name).write_text("none")
    for more, message in (
        (["--melody", str(tmp_path / "none.wav"), "-m", "none"], "none.wav' is not a readable recording (no such"),
        (["--melody", str(tmp_path)], "is not a readable recording (not a file)"),
        (["--melody", str(tmp_path / "no.wav")], "is not a readable recording (Format not recognised)"),
        (["--melody", str(tmp_path / "no.raw")], "is not a readable recording (samplerate"),
    ):
        assert main([*words, *more, "-o", str(tmp_path / "y.wav")]) == 2
        assert message in capsys.readouterr().err
    assert main(["speak", "one", "--voice-file", str(file), "-o", str(tmp_path / "y.wav")]) == 2
    assert "this model does not accept reference audio" in capsys.readouterr().err
    assert main(["speak", "one", "--voice-text", "two", "-o", str(tmp_path / "y.wav")]) == 2
    assert "--voice-text requires --voice-file" in capsys.readouterr().err


def test_reference_audio_is_resampled_and_mixed() -> None:
    position = np.arange(4000)
    stereo = np.stack([np.sin(position * 0.05), np.zeros(4000)]).astype(np.float32)
    mixed = ReferenceAudio(stereo, 2000).mono(1000).numpy()
    assert mixed.shape == (2000,)
    np.testing.assert_allclose(mixed[100:1900], 0.5 * np.sin(np.arange(100, 1900) * 0.1), atol=5e-3)
    for wrong in (stereo[0], stereo[:, :0], stereo * np.float32(np.nan)):
        with pytest.raises(ArgumentError, match="it must be"):
            ReferenceAudio(wrong, 1000)
    with pytest.raises(ArgumentError, match="sampling_rate=0 is not allowed"):
        ReferenceAudio(stereo, 0)


@pytest.mark.releases
def test_voice_of_dia_matches_its_own_generate() -> None:
    model, dac = tiny_music.dia(2), tiny_codecs.dac()
    processor = SimpleNamespace(tokenizer=tokenizer(), audio_tokenizer=dac)
    model.config.decoder_config.max_position_embeddings = 1 + 26 + 3
    pipe = mmspec.load(model, processor=processor)
    voice, delays = wave(45), [0, 2, 3]
    codes = dac.encode(torch.nn.functional.pad(torch.from_numpy(voice), (0, 3))[None]).audio_codes[0].T  # 6 frames
    words = tokenizer()(["[S1] happy [S1] slow quiet piano"], return_tensors="pt")
    # The prompt of `DiaProcessor`: 18 until a codebook begins, then its codes, then 17.
    columns = torch.full((1, 1 + 6 + 3, 3), 17)
    for k, d in enumerate(delays):
        columns[0, : d + 1, k], columns[0, d + 1 : d + 7, k] = 18, codes[:, k]
    own = model.generate(
        **words, max_new_tokens=20 + 3, guidance_scale=3.0, top_k=5, do_sample=False, decoder_input_ids=columns.int(),
        decoder_attention_mask=torch.ones(1, 10),
    )  # fmt: skip
    wanted = undelay(own[:, 7:], delays)[0]
    ends = (wanted[:, 0] >= 16).nonzero()
    wanted = wanted[: int(ends[0])].T if len(ends) else wanted.T
    following = pipe.with_reference_audio(voice, 1000, "happy")
    out = following("slow quiet piano", recipe="scd:window=4", temperature=0, guidance_scale=3.0, top_k=5, seed=0)
    assert wanted.shape[1] > 2 and torch.equal(following.adapter.codes(out.tokens[0]), wanted)
    with pytest.raises(ArgumentError, match="transcript of the reference audio is missing; Dia continues from it"):
        pipe.with_reference_audio(voice, 1000)
    message = "audio of 30 frames is too long for a voice; the model has positions for 26"
    with pytest.raises(ArgumentError, match=message):
        pipe.with_reference_audio(wave(240), 1000, "happy")
    bare = mmspec.load(model, processor=tokenizer(), config={"codec": codec_of(dac)})
    with pytest.raises(ArgumentError, match="the processor cannot encode reference audio; pass a DiaProcessor"):
        bare.with_reference_audio(voice, 1000, "happy")


@pytest.mark.releases
def test_voice_of_csm_matches_its_own_generate() -> None:
    model, voice = tiny_speech.csm(codes=8), wave(40)
    pipe = mmspec.load(model, processor=Words(), config={"frames": 8})
    frames = model.codec_model.encode(torch.from_numpy(voice)[None]).audio_codes.shape[-1]
    placeholders = [model.config.audio_token_id] * frames + [model.config.audio_eos_token_id]
    ids = torch.tensor([[4, 5, *placeholders, 4, 2, 3]])
    greedy = {"do_sample": False, "depth_decoder_do_sample": False}
    own = model.generate(
        ids,
        input_values=torch.from_numpy(voice)[None],
        input_values_cutoffs=torch.tensor([[40]]),
        max_new_tokens=8,
        output_audio=True,
        **greedy,
    )[0]
    following = pipe.with_reference_audio(voice, 1000, "six")
    for recipe in ("scd:window=3", "plain"):
        out = following(["two three", "three"], recipe=recipe, temperature=0, seed=0)
        np.testing.assert_allclose(out[0].audio[0], own.numpy(), atol=1e-4)
    assert not np.array_equal(pipe("two three", recipe="plain", temperature=0, seed=0).audio, out[0].audio)
    with pytest.raises(ArgumentError, match="transcript of the reference audio is missing; CSM continues from it"):
        pipe.with_reference_audio(voice, 1000, " ")
    message = "too long for a voice; of the model's 64 positions, 8 are for the generated frames"
    with pytest.raises(ArgumentError, match=message):
        pipe.with_reference_audio(wave(4000), 1000, "six")


def test_later_parts_of_csm_go_on_with_the_voice_of_the_first() -> None:
    model = tiny_speech.csm(codes=8)
    pipe = mmspec.load(model, processor=Words(), config={"frames": 8})
    text = "two three " * 5 + "six " * 8
    out = pipe(text, recipe="scd:window=3", seed=3)
    assert len(out.tokens) == 2 and out.truncated == any("truncated" in note for note in out.notes)
    # As a voice of these frames, with the first part for transcript.
    codes = pipe.adapter.codes(out.tokens[0]).T
    first, second = pipe.read(text, None).texts
    voice = ReferenceCodes(first, codes)
    following = CsmAdapter(model, Words(), pipe.adapter.codec, frames=8, reference=voice)
    assert not following.draws_voice
    again: Any = SpeechPipeline(following)(second, recipe="scd:window=3", seed=3 + 2**32)
    assert torch.equal(following.codes(again.tokens[0]), pipe.adapter.codes(out.tokens[1]))
    chunks = list(pipe.stream(text, recipe="scd:window=3", seed=3))
    np.testing.assert_allclose(np.concatenate(chunks, axis=-1), out.audio, atol=1e-4)


class Words:
    """A tokenizer of lines such as "[0]two three"."""

    def __call__(self, line: str, add_special_tokens: bool) -> dict[str, list[int]]:
        ids = {"[0]": 4, "two": 2, "three": 3, "six": 5}
        return {"input_ids": [ids[word] for word in line.replace("]", "] ").split()]}


def test_models_and_processors_without_melody() -> None:
    pipe = mmspec.load(long_musicgen(), processor=tokenizer())
    message = "this model does not follow a melody; facebook/musicgen-melody does"
    with pytest.raises(ArgumentError, match=message):
        pipe.with_reference_audio(wave(100), 1000)
    pipe = mmspec.load(long_musicgen(melody=True), processor=tokenizer())
    with pytest.raises(ArgumentError, match="the processor cannot read a melody; pass the model's own processor"):
        pipe.with_reference_audio(wave(100), 1000)
