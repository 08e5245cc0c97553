"""Audio metrics, compared with computations that share no formula with them."""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.functional.text import char_error_rate as their_cer
from torchmetrics.functional.text import word_error_rate as their_wer

from mmspec.errors import ArgumentError, PromptError
from mmspec.metrics.audio.cepstrum import mel_cepstra, mel_cepstral_distortion, warp
from mmspec.metrics.audio.log_mel_distance import log_mel_distance
from mmspec.metrics.audio.speaker import speaker_similarity
from mmspec.metrics.audio.spectrum import log_mel, magnitudes, mel_filters
from mmspec.metrics.audio.stft_distance import RESOLUTIONS, stft_distance
from mmspec.metrics.audio.word_error_rate import (
    CER,
    CER_BASIC,
    WER,
    WER_BASIC,
    WordErrorRate,
    character_error_rate,
    edits,
    normalize,
    word_error_rate,
)
from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.features import Features
from mmspec.metrics.image.frechet import frechet_distance
from mmspec.metrics.metric import SampleBatch

RATE = 16_000


def noise(count: int, seed: int) -> Features:
    return np.random.default_rng(seed).normal(size=count) * 0.1


def tone(hertz: float, count: int = 4000) -> Features:
    return np.sin(2 * np.pi * hertz * np.arange(count) / RATE)


def torch_magnitudes(wave: Features, size: int, hop: int, window: int) -> torch.Tensor:
    taper = torch.hann_window(window, dtype=torch.float64)
    return torch.stft(
        torch.from_numpy(wave), size, hop, window, taper, center=True, pad_mode="reflect", return_complex=True
    ).abs()


def test_spectra_equal_a_fourier_sum_and_torch_stft() -> None:
    wave = noise(300, 0)
    found = magnitudes(wave, 64, 16)
    frame = wave[5 * 16 - 32 : 5 * 16 + 32]
    for k in (0, 7, 32):
        terms = [
            x * (0.5 - 0.5 * math.cos(2 * math.pi * n / 64)) * cmath.exp(-2j * math.pi * k * n / 64)
            for n, x in enumerate(frame.tolist())
        ]
        assert found[5, k] == pytest.approx(abs(sum(terms)), abs=1e-10)
    for size, hop, window in [(64, 16, 64), (128, 30, 50)]:
        theirs = torch_magnitudes(wave, size, hop, window).T.numpy()
        np.testing.assert_allclose(magnitudes(wave, size, hop, window), theirs, atol=1e-10)


def test_mel_filters_are_triangles_on_the_mel_scale() -> None:
    filters = mel_filters(20, 512, RATE)

    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    for band in (0, 8, 19):
        ends = [700 * (10 ** (mel(RATE / 2) * (band + i) / 21 / 2595) - 1) for i in range(3)]
        for i in range(257):
            hertz = i * RATE / 512
            up, down = (hertz - ends[0]) / (ends[1] - ends[0]), (ends[2] - hertz) / (ends[2] - ends[1])
            assert filters[i, band] == pytest.approx(max(0.0, min(up, down)), abs=1e-10)
    with pytest.raises(ArgumentError, match="bands=400 is too many"):
        mel_filters(400, 512, RATE)


def test_log_mel_distance_is_the_frechet_distance_of_frames() -> None:
    generated, reference = [noise(6000, 0), noise(5000, 1)], [noise(7000, 2) * 2]
    filters = torch.from_numpy(mel_filters(40, 1024, RATE))
    frames = [
        torch.cat([(torch_magnitudes(w, 1024, 256, 1024).T @ filters).clamp_min(1e-5).log() for w in waves]).numpy()
        for waves in (generated, reference)
    ]
    found = log_mel_distance(generated, reference, RATE, bands=40)
    assert found == pytest.approx(frechet_distance(frames[0], frames[1]), abs=1e-6)
    assert log_mel_distance(generated, generated, RATE) == pytest.approx(0, abs=1e-6)
    assert found > 1


def test_stft_distance_equals_one_made_with_torch() -> None:
    x, y = noise(3000, 0), noise(3000, 1)
    parts = []
    for size, hop, window in RESOLUTIONS:
        a, b = (torch_magnitudes(w, size, hop, window).square().clamp_min(1e-7).sqrt() for w in (x, y))
        parts.append(((b - a).norm() / b.norm() + (a / b).log().abs().mean()).item())
    assert stft_distance(x, y) == pytest.approx(sum(parts) / 3, abs=1e-8)
    assert stft_distance(x, x) == 0
    assert math.isfinite(stft_distance(np.zeros(2000), np.zeros(2000)))


def test_mel_cepstral_distortion_equals_the_definition() -> None:
    x, y = noise(3000, 0), tone(440, 3000)
    spectrum = log_mel(x, RATE)
    cepstra = mel_cepstra(x, RATE)
    for d in (1, 13):
        terms = [v * math.cos(math.pi * d * (i + 0.5) / 80) for i, v in enumerate(spectrum[2].tolist())]
        assert cepstra[2, d - 1] == pytest.approx(math.sqrt(2 / 80) * sum(terms), abs=1e-9)
    a, b = mel_cepstra(x, RATE), mel_cepstra(y, RATE)
    frames = [10 / math.log(10) * math.sqrt(2 * sum((p - q) ** 2)) for p, q in zip(a, b, strict=True)]
    found = mel_cepstral_distortion(x, y, RATE, align=False)
    assert found == pytest.approx(sum(frames) / len(frames), abs=1e-9)
    assert mel_cepstral_distortion(x, x, RATE) == 0
    assert mel_cepstral_distortion(x, 0.5 * x, RATE) == pytest.approx(0, abs=1e-6)  # loudness does not count


def test_warping_takes_the_shortest_of_the_cheapest_paths() -> None:
    cost = np.random.default_rng(0).integers(0, 4, (5, 7)).astype(float)

    def paths(i: int, j: int) -> list[tuple[float, int]]:
        if (i, j) == (0, 0):
            return [(cost[0, 0], 1)]
        before = [(i - 1, j - 1), (i - 1, j), (i, j - 1)]
        return [(c + cost[i, j], n + 1) for a, b in before if a >= 0 and b >= 0 for c, n in paths(a, b)]

    assert warp(cost) == min(paths(4, 6))
    late = np.concatenate([noise(2048, 3), tone(300)])
    assert mel_cepstral_distortion(late, late[1024:], RATE) < mel_cepstral_distortion(
        late, late[1024:], RATE, align=False
    )


TEXTS = [("a red circl", "a red circle"), ("", "two words"), ("one more word here", "one word"), ("same", "same")]


def test_error_rates_equal_those_of_torchmetrics() -> None:
    hypotheses, references = [list(column) for column in zip(*TEXTS, strict=True)]
    assert word_error_rate(hypotheses, references) == pytest.approx(float(their_wer(hypotheses, references)), abs=1e-6)
    assert character_error_rate(hypotheses, references) == pytest.approx(
        float(their_cer(hypotheses, references)), abs=1e-6
    )
    assert word_error_rate(["a b c d"], ["x"]) == 4


def test_edits_equal_the_recursive_definition() -> None:
    def slow(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(slow(a[1:], b) + 1, slow(a, b[1:]) + 1, slow(a[1:], b[1:]) + (a[0] != b[0]))

    rng = np.random.default_rng(0)
    for _ in range(30):
        a, b = ("".join(rng.choice(list("abc"), rng.integers(0, 6))) for _ in range(2))
        assert edits(a, b) == slow(a, b)


def test_normalized_texts_differ_in_words_only() -> None:
    assert normalize("  It's -- a RED, round circle!\n") == "it's a red round circle"


@dataclass
class Recognizer:
    """Transcribes a recording as what it is given."""

    transcript: str
    spellings = {"colour": "color"}

    def transcribe(self, audio: Any) -> list[str]:
        return [self.transcript]

    def expected(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("prompt", "transcript", "wrong", "basic"),
    [
        ("your number is B K seven one nine", "Your number is BK719.", 0, 5),
        ("It is half past three.", "it's half past 3", 0, 2),
        ("Doctor Smith won't like the colour.", "Dr Smith will not like the color", 0, 4),
        ("twenty lamps", "20 lambs", 1, 2),
        ("Größe: über 20!", "große über 20", 0, 1),
        ("你好,世界", "你好 世界", 0, 0),
    ],
)
def test_error_rates_normalize_as_whisper_does(prompt: str, transcript: str, wrong: int, basic: int) -> None:
    samples = SampleBatch([Path("x.wav")], [prompt], audio=[Waveform(tone(440.0), RATE)])
    recognizer: Any = Recognizer(transcript)
    assert WER.extract(samples, recognizer)[0][0] == wrong
    assert WER_BASIC.extract(samples, recognizer)[0][0] == basic
    assert (CER.extract(samples, recognizer)[0][0] == 0) == (wrong == 0)
    assert (WER.variant, CER_BASIC.variant, WordErrorRate("spoken").variant) == (
        "english normalizer", "basic normalizer", "",
    )  # fmt: skip


def test_the_english_normalizer_refuses_other_scripts() -> None:
    for prompt in ("你好,世界", "नमस्ते", "привет"):
        with pytest.raises(PromptError, match="use wer-basic or cer-basic"):
            WER.check_prompts([prompt], {})
        WER_BASIC.check_prompts([prompt], {})
    WER.check_prompts(["12:30", "über größe", "a café (東京)"], {})


def test_speaker_similarity_is_the_cosine() -> None:
    found = speaker_similarity([[1.0, 0.0], [1.0, 1.0], [2.0, 0.0]], [[3.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])
    np.testing.assert_allclose(found, [1.0, math.sqrt(0.5), -1.0], atol=1e-12)


def test_invalid_recordings_and_texts_raise() -> None:
    short, hole = noise(100, 0), noise(3000, 0)
    hole[7] = np.nan
    for call, message in [
        (lambda: stft_distance(short, short), "generated has 100 samples; at least 1025"),
        (lambda: stft_distance(noise(3000, 0), noise(2000, 0)), "equally long"),
        (lambda: stft_distance(noise(3000, 0), hole), "reference has NaN"),
        (lambda: mel_cepstral_distortion(noise(900, 0)[None], hole, RATE), r"generated has shape \[1, 900\]"),
        (lambda: log_mel_distance([], [hole], RATE), "generated holds no recording"),
        (lambda: log_mel_distance([noise(3000, 0)], [short], RATE), r"reference\[0\] has 100 samples"),
        (lambda: word_error_rate(["a"], []), "one for each"),
        (lambda: word_error_rate(["a"], [" "]), "references holds no words"),
        (lambda: character_error_rate([""], [""]), "references holds no characters"),
        (lambda: speaker_similarity(np.zeros((1, 2)), np.ones((1, 2))), "length 0"),
        (lambda: speaker_similarity(np.ones((1, 2)), np.ones((2, 2))), "one for each"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
