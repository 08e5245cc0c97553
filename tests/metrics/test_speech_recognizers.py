"""Audio extractors, with networks of random weights saved to a folder, and evaluations of audio."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from fake_pipe import open_gate
from tiny_recognizers import save_clap, save_wavlm, save_whisper

import mmspec
from mmspec.audio.spoken.recognizer import SpokenRecognizer
from mmspec.cli.app import main
from mmspec.decoding.stats import RowStats, Stats
from mmspec.decoding.step import Step
from mmspec.errors import ArgumentError
from mmspec.metrics import metric
from mmspec.metrics.audio.log_mel_distance import log_mel_distance, moments, pooled
from mmspec.metrics.evaluation.media import read_waveform
from mmspec.metrics.extractors import spoken
from mmspec.metrics.extractors.audio import Waveform, resample
from mmspec.metrics.extractors.clap import ClapExtractor
from mmspec.metrics.extractors.wavlm import WavLMExtractor
from mmspec.metrics.extractors.whisper import WhisperExtractor
from mmspec.metrics.gaussian import fit
from mmspec.metrics.image.frechet import frechet_distance
from mmspec.metrics.prompts import BUILTIN
from mmspec.recipes import Recipe

RATE = 8000


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("networks")
    savers = {"clap": save_clap, "wavlm": save_wavlm, "whisper": save_whisper}
    return {name: str(save(folder / name)) for name, save in savers.items()}


def recordings() -> list[Waveform]:
    rng = np.random.default_rng(0)
    sizes = ((8000, RATE), (30_000, 16_000), (300, 22_050))
    return [Waveform(rng.normal(size=count) * 0.1, rate) for count, rate in sizes]


def test_resampling_keeps_a_tone_and_drops_higher_frequencies() -> None:
    for rate, to in ((22_050, 16_000), (16_000, 24_000), (44_100, 8000)):
        wave = np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
        found = resample(wave, rate, to)
        expected = np.sin(2 * np.pi * 440 * np.arange(to) / to)
        assert len(found) == to
        inner = slice(to // 20, -to // 20)
        np.testing.assert_allclose(found[inner], expected[inner], atol=2e-3)
    high = np.sin(2 * np.pi * 7000 * np.arange(16_000) / 16_000)
    assert np.abs(resample(high, 16_000, 8000)[400:-400]).max() < 1e-2


@pytest.mark.parametrize(("kind", "width"), [(ClapExtractor, 12), (WavLMExtractor, 6), (WhisperExtractor, 16)])
def test_a_recording_does_not_depend_on_its_batch(networks: dict[str, str], kind: Any, width: int) -> None:
    extractor = kind(networks[kind.name])
    found = extractor(recordings())
    assert found.shape == (3, width) and found.dtype == np.float64 and np.isfinite(found).all()
    alone = np.concatenate([extractor([one]) for one in recordings()])
    np.testing.assert_allclose(found, alone, atol=1e-5 * np.abs(found).max())
    assert np.abs(found[0] - found[1]).max() > 1e-4 * np.abs(found).max()


def test_clap_embeds_audio_and_prompts_in_one_space(networks: dict[str, str]) -> None:
    extractor = ClapExtractor(networks["clap"])
    ids = torch.tensor([[0, 4, 5, 2]])
    with torch.no_grad():
        states = extractor.model.text_model(ids, torch.ones_like(ids)).pooler_output
        expected = torch.nn.functional.normalize(extractor.model.text_projection(states), dim=-1)
    np.testing.assert_allclose(extractor.texts(["ab"]), expected.numpy(), atol=1e-6)
    assert extractor.texts(["ab", "long words that do not fit"]).shape == (2, 12)
    # Audio beyond the input length is cut off at the end, not at a random place.
    long = np.random.default_rng(1).normal(size=3 * RATE) * 0.1
    np.testing.assert_array_equal(extractor([Waveform(long, RATE)]), extractor([Waveform(long[:RATE], RATE)]))


def test_wavlm_returns_the_vector_of_its_model(networks: dict[str, str]) -> None:
    extractor = WavLMExtractor(networks["wavlm"])
    wave = recordings()[1].wave
    scaled = torch.from_numpy((wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)).float()
    with torch.no_grad():
        expected = extractor.model(scaled[None]).embeddings
    np.testing.assert_allclose(extractor([Waveform(wave, 16_000)]), expected.numpy(), atol=1e-4)


def test_whisper_transcribes_long_recordings_in_pieces(
    networks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor = WhisperExtractor(networks["whisper"])
    batches: list[int] = []

    def generate(features: torch.Tensor) -> torch.Tensor:
        batches.append(len(features))
        return torch.tensor([[0, 4, 5, 30, 6, 2]] * len(features))

    monkeypatch.setattr(extractor.model, "generate", generate)
    assert extractor.transcribe([Waveform(np.ones(40_000) * 0.1, 16_000), Waveform(np.ones(99) * 0.1, RATE)]) == [
        "ab c ab c ab c", "ab c",
    ]  # fmt: skip
    assert batches == [3, 1]


def test_moments_of_recordings_add_up() -> None:
    rng = np.random.default_rng(0)
    one, two = ([rng.normal(size=n) * 0.1 for n in sizes] for sizes in ((4000, 9000, 700), (5000, 800)))
    together = [pooled(np.stack([moments(wave, 16_000, 20) for wave in waves])) for waves in (one, two)]
    expected = log_mel_distance(one, two, 16_000, bands=20)
    assert frechet_distance(together[0], together[1]) == pytest.approx(expected, rel=1e-9)
    assert together[0].count == 16 + 36 + 3 and fit(rng.normal(size=(4, 2))).count == 4


class Voice:
    """Generates half a second of a tone chosen by the prompt; `lantern` adds noise."""

    output_kind = "audio"

    def __init__(self) -> None:
        self.channels = 1
        self.calls = 0
        self.streamed: list[str] = []

    def set_progress_bar_config(self, *, disable: bool) -> None:
        assert disable

    def __call__(self, texts: list[str], *, recipe: Recipe, seed: list[int], **options: Any) -> Any:
        made = []
        for text, one in zip(texts, seed, strict=True):
            key = zlib.crc32(f"{text} {one}".encode())
            wave = 0.3 * np.sin(2 * np.pi * (200 + key % 400) * np.arange(RATE // 2) / RATE)
            noise = 0.0 if recipe.exact else float(recipe.knobs["delta"])
            wave = wave + 0.2 * noise * np.random.default_rng(key).normal(size=len(wave))
            audio = np.repeat(wave[None].astype(np.float32), self.channels, 0)
            made.append({"audio": audio, "sampling_rate": RATE})
        calls = 5 if recipe.name == "plain" else 2
        self.calls += 1
        row_count = len(texts) + (self.calls % 3 == 0)  # in every third call one text is two sentences
        for call in range(calls):
            options["on_step"](Step(call + 1, 10, 10, [torch.zeros(10 * (call + 1) // calls)] * row_count))
        rows = [RowStats(10, calls, 0.0, None, None)] * len(texts)
        parts = dict.fromkeys(("target", "drafter", "rule", "other"), 0.1)
        stats = Stats(calls, 10 * len(texts), 10 / calls, [], 0, 0.4, parts, 7, rows=rows)
        return type("Outputs", (list,), {"stats": stats})(made)

    def stream(self, text: str, *, recipe: Recipe, seed: int, **options: Any) -> Iterator[np.ndarray]:
        self.streamed.append(recipe.name)
        yield np.zeros((self.channels, RATE // 4), dtype=np.float32)
        raise AssertionError("only the first chunk must be read")


@pytest.fixture
def voice(monkeypatch: pytest.MonkeyPatch) -> Voice:
    voice = Voice()
    monkeypatch.setattr(mmspec, "load", lambda model, device, dtype=None: voice, raising=False)
    open_gate(monkeypatch)
    monkeypatch.setattr(metric, "SET_RESAMPLES", 20)
    return voice


def arguments(out: Path, networks: dict[str, str], *more: str) -> list[str]:
    where = [text for name, path in networks.items() for text in (f"--{name}", path)]
    metrics = "logmel,fd@wavlm,kd@clap,speaker,mcd,stft,clap,wer,cer"
    run = ["eval", "-m", "voice", "-o", str(out), "--recipes", "lantern:delta=0.1|0.9", "--metrics", metrics]
    return [*run, "--limit", "3", "--seeds", "0,1", "--batch", "3", *where, *more]


def test_an_evaluation_of_audio(voice: Voice, tmp_path: Path, networks: dict[str, str]) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out"
    prompts.write_text("\n".join(BUILTIN[:3]))
    assert main(arguments(out, networks, "--prompts", str(prompts))) == 0
    record = json.loads((out / "results.json").read_text())
    plain, little, much = (row["quality"] for row in record["rows"])
    for name in ("logmel", "fd@wavlm"):
        assert plain[name]["value"] < little[name]["value"] < much[name]["value"], name
    for name in ("mcd", "stft"):
        assert plain[name]["value"] < much[name]["value"] and much[name]["difference"]["low"] > 0, name
    assert much["logmel"]["difference"]["low"] > 0 and much["logmel"]["extractor"] == ""
    assert -1 <= plain["speaker"]["value"] <= 1 and plain["speaker"]["extractor"].startswith("wavlm-")
    assert plain["wer"]["extractor"].startswith("whisper-")
    assert plain["wer"]["extractor"].endswith(", english normalizer")
    assert plain["wer"]["value"] == pytest.approx(1) and plain["wer"]["n"] == 6  # random weights transcribe nothing
    speed = record["rows"][0]["speed"]
    assert speed["real_time"] == pytest.approx(speed["seconds"] / 0.5) and speed["grid"] is None
    # For each recipe and the reference two calls of three texts, and one to warm up each rule, whatever its strength.
    assert (
        voice.streamed.count("lantern") == 2 * 2 + 1
        and voice.streamed.count("plain") == 2 * 2 + 1
        and speed["first"] > 0
    )
    files = sorted((out / "samples").rglob("*.wav"))
    assert len(files) == 4 * 6
    clip = read_waveform(files[0])
    assert clip.rate == RATE and clip.seconds == 0.5
    page = (out / "report.html").read_text()
    # Three samples of each recipe; two pairs that lose most of each of two recipes.
    assert page.count("<audio ") == 3 * 3 + 2 * 2 * 2 and "data:audio/wav;base64," in page and "real time" in page


def test_a_reference_of_one_voice(
    voice: Voice, tmp_path: Path, networks: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    voices = tmp_path / "voices"
    voices.mkdir()
    soundfile.write(voices / "one.flac", 0.1 * np.sin(np.arange(9000) / 9), 22_050)
    more = ["--metrics", "speaker,nll", "--reference", str(voices)]
    assert main(arguments(tmp_path / "out", networks, *more)) == 2
    assert "metric 'nll' is not possible: this model's pipeline does not measure it" in capsys.readouterr().err
    more[1] = "speaker"
    assert main(arguments(tmp_path / "new", networks, *more)) == 0
    soundfile.write(voices / "two.wav", np.zeros(9000), 16_000)
    assert main(arguments(tmp_path / "new", networks, *more)) == 2
    assert "must hold one sample, or 6 in the order of the samples; it holds 2" in capsys.readouterr().err
    (voices / "three.png").touch()
    assert main(arguments(tmp_path / "new", networks, *more)) == 2
    assert "holds images and recordings" in capsys.readouterr().err


def test_the_embedded_recognizer_needs_no_weights(
    voice: Voice, tmp_path: Path, networks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    recognizer = SpokenRecognizer(channels=8, depth=1)
    monkeypatch.setattr(spoken, "embedded_recognizer", lambda: recognizer)

    def transcribe(wave: Any, rate: int) -> str:
        return "four two" if len(wave) == rate // 2 == 8000 else ""

    monkeypatch.setattr(recognizer, "transcribe", transcribe)
    (tmp_path / "prompts.txt").write_text("four\n42\n\nfive two\n")
    more = ["--metrics", "wer@spoken,fd@spoken", "--prompts", str(tmp_path / "prompts.txt")]
    assert main(arguments(tmp_path / "out", networks, *more)) == 0
    row = json.loads((tmp_path / "out" / "results.json").read_text())["rows"][0]["quality"]
    assert row["wer@spoken"]["extractor"].startswith("spoken-")
    assert row["fd@spoken"]["extractor"] == row["wer@spoken"]["extractor"]
    assert 0 < row["wer@spoken"]["value"] < 1


def test_metrics_of_images_refuse_audio(
    voice: Voice, tmp_path: Path, networks: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, networks, "--metrics", "attributes")) == 2
    assert "metric 'attributes' is of images, and" in capsys.readouterr().err
    assert main(arguments(tmp_path, networks, "--metrics", "wer@clap")) == 2
    assert "unknown extractor 'clap'; known: spoken, whisper" in capsys.readouterr().err
    assert main(arguments(tmp_path, networks, "--metrics", "wer@spoken,cer")) == 2
    assert "error rates by spoken and whisper cannot be combined" in capsys.readouterr().err


def test_an_unreadable_recording_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(b"RIFF")
    with pytest.raises(ArgumentError, match="x.wav' is not a readable recording"):
        read_waveform(path)
    soundfile.write(path, np.zeros(0), 8000)
    with pytest.raises(ArgumentError, match="no samples"):
        read_waveform(path)
