"""Measure the shipped voice: words heard wrong, of both voices, through written WAV files; sounds and a spectrogram.

Command: python -m mmspec.audio.spoken.evaluate --out examples/speech        (about 4 core-minutes)

All sentences are held out from training; they are left in sentences.txt, which `mmspec eval` measures every recipe on.
The recogniser was trained on espeak's speech and has never heard the voice; what it makes of espeak reading the same
sentences is the first line (with espeak-ng installed).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image

import mmspec
import mmspec.errors
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.spoken.analysis import FLOOR, SIZE, frames
from mmspec.audio.spoken.config import RECIPE, SAMPLING_RATE, SEED_EVAL
from mmspec.audio.spoken.recogniser import embedded_recogniser, sounds_alike
from mmspec.audio.spoken.sentences import sentences
from mmspec.audio.wave import write_audio
from mmspec.metrics.audio.word_error_rate import edits
from mmspec.metrics.bootstrap import Index, bootstrap

RECIPES = ("plain", RECIPE)
_SHOWN = (
    ("low", "please turn on the red light in the kitchen"),
    ("high", "the train to the airport leaves from platform nine at seven forty five"),
    ("low", "your number is B K seven one nine"),
)
_BATCH = 8


def rates(heard: list[str], wanted: list[str]) -> dict[str, float]:
    """The word error rate with its 95 % interval, resampled over sentences."""
    wrong = np.array([edits(a.split(), b.split()) for a, b in zip(heard, wanted, strict=True)])
    words = np.array([len(text.split()) for text in wanted])

    def rate(index: Index) -> float:
        return float(wrong[index].sum() / words[index].sum())

    found = bootstrap(rate, len(words))
    return {"word_error_rate": found.value, "low": found.low, "high": found.high}


def by_recipe(pipe: SpeechPipeline, recipe: str, texts: list[str]) -> dict[str, Any]:
    """Every sentence by one recipe, voices in turns of a batch, written and read again."""
    heard, peaks, levels, calls, tokens, seconds = [], [], [], 0.0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.wav"
        for first in range(0, len(texts), _BATCH):
            voice = pipe.adapter.voices[first // _BATCH % len(pipe.adapter.voices)]
            sounds: Any = pipe(texts[first : first + _BATCH], recipe=recipe, seed=SEED_EVAL + first, voice=voice)
            tokens += sounds.stats.tokens
            calls += sounds.stats.tokens / sounds.stats.tokens_per_call
            for sound in sounds:
                write_audio(sound.audio, sound.sampling_rate, path)
                audio, rate = soundfile.read(path, dtype="float32")
                heard.append(embedded_recogniser().transcribe(audio, rate))
                peaks.append(float(np.abs(audio).max()))
                levels.append(float(audio.std()))
                seconds += sound.seconds
    found: dict[str, Any] = {"recipe": recipe, **rates(heard, [sounds_alike(text) for text in texts])}
    found |= {"tokens_per_call": tokens / calls, "seconds_of_sound": seconds, "sentences": len(texts)}
    return found | {"peak": [min(peaks), max(peaks)], "level": [min(levels), max(levels)]}


def real(texts: list[str]) -> dict[str, Any]:
    """The same of espeak."""
    import random

    from mmspec.audio.spoken.data import read_aloud

    rng = random.Random(0)
    spoken = [one for i, text in enumerate(texts) if (one := read_aloud(text, i // _BATCH % 2, rng)) is not None]
    heard = [embedded_recogniser().transcribe(one.sound, SAMPLING_RATE) for one in spoken]
    return {"recipe": "espeak-ng", **rates(heard, [sounds_alike(one.text) for one in spoken]), "sentences": len(spoken)}


def spectrogram(sound: np.ndarray) -> Image.Image:
    """Frequencies upwards, 10 ms per column, from the floor (white) to the loudest (black)."""
    taper = np.hanning(400).astype(np.float32)
    levels = np.log(np.abs(np.fft.rfft(frames(sound, 400) * taper, SIZE)) / taper.sum() + FLOOR)
    shades = 255 * (1 - (levels - levels.min()) / (levels.max() - levels.min()))
    picture = Image.fromarray(shades.T[::-1].astype(np.uint8))
    return picture.resize((2 * picture.width, picture.height))


def table(rows: list[dict[str, Any]]) -> str:
    """In Markdown."""
    lines = ["| recipe | words heard wrong (95 %) | tokens per call | sentences |", "| --- | ---: | ---: | ---: |"]
    for row in rows:
        share = f"{row['word_error_rate']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"
        adaptive_window = f"{row['tokens_per_call']:.2f}" if "tokens_per_call" in row else ""
        lines.append(f"| {row['recipe']} | {share} | {adaptive_window} | {row['sentences']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("examples/speech"))
    parser.add_argument("-n", type=int, default=320)
    parser.add_argument("--recipes", nargs="*", default=RECIPES)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pipe = mmspec.load("spoken")
    for i, (voice, text) in enumerate(_SHOWN):
        sound = pipe(text, seed=i, voice=voice)
        write_audio(sound.audio, sound.sampling_rate, args.out / f"{voice}-{i}.flac")
        if i == 0:
            spectrogram(sound.audio[0]).save(args.out / "spectrogram.png")
    texts = sentences(args.n, SEED_EVAL + 10, held_out=True)
    (args.out / "sentences.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    rows = []
    try:
        rows.append(real(texts))
    except mmspec.errors.ArgumentError as error:
        print(error, file=sys.stderr)
    for recipe in args.recipes:
        rows.append(by_recipe(pipe, recipe, texts))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        (args.out / "words.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (args.out / "words.md").write_text(table(rows) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
