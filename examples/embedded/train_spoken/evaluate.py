"""Measures the word error rate of the shipped voice, and writes audio examples and a spectrogram.

Command: python -m train_spoken.evaluate --out examples/speech        (about 4 core-minutes)

All sentences are held out from training; they are written to sentences.txt, which `mmspec eval` measures every recipe
on. Both voices are measured, through WAV files. The recognizer was trained on espeak-ng's speech, not on the voice; its
error rate on espeak-ng reading the same sentences is the first row (if espeak-ng is installed).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from train_spoken.config import SEED_EVAL
from train_spoken.sentences import sentences

import mmspec
import mmspec.errors
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.spoken.analysis import FLOOR, SIZE, frames
from mmspec.audio.spoken.config import RECIPE, SAMPLING_RATE
from mmspec.audio.spoken.recognizer import embedded_recognizer, merge_homophones
from mmspec.audio.wave import write_audio
from mmspec.limits import AUDIO_SECONDS
from mmspec.media.audio import read_audio
from mmspec.metrics.audio.word_error_rate import edits
from mmspec.metrics.bootstrap import Index, bootstrap

RECIPES = ("plain", RECIPE)
_EXAMPLES = (
    ("low", "please turn on the red light in the kitchen"),
    ("high", "the train to the airport leaves from platform nine at seven forty five"),
    ("low", "your number is B K seven one nine"),
)
_BATCH = 8


def error_rate(transcripts: list[str], references: list[str]) -> dict[str, float]:
    """The word error rate with its 95 % bootstrap interval over sentences."""
    errors = np.array([edits(a.split(), b.split()) for a, b in zip(transcripts, references, strict=True)])
    words = np.array([len(text.split()) for text in references])

    def rate(index: Index) -> float:
        return float(errors[index].sum() / words[index].sum())

    interval = bootstrap(rate, len(words))
    return {"word_error_rate": interval.value, "low": interval.low, "high": interval.high}


def evaluate_recipe(pipe: SpeechPipeline, recipe: str, texts: list[str]) -> dict[str, Any]:
    """Measures all sentences with one recipe; batches use the voices in turn."""
    transcripts, peaks, levels, calls, tokens, seconds = [], [], [], 0.0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.wav"
        for first in range(0, len(texts), _BATCH):
            voice = pipe.adapter.voices[first // _BATCH % len(pipe.adapter.voices)]
            outputs: Any = pipe(texts[first : first + _BATCH], recipe=recipe, seed=SEED_EVAL + first, voice=voice)
            tokens += outputs.stats.tokens
            calls += outputs.stats.tokens / outputs.stats.tokens_per_call
            for output in outputs:
                write_audio(output.audio, output.sampling_rate, path)
                audio, rate = read_audio(path, AUDIO_SECONDS)
                transcripts.append(embedded_recognizer().transcribe(audio[0], rate))
                peaks.append(float(np.abs(audio).max()))
                levels.append(float(audio.std()))
                seconds += output.seconds
    references = [merge_homophones(text) for text in texts]
    row: dict[str, Any] = {"recipe": recipe, **error_rate(transcripts, references)}
    row |= {"tokens_per_call": tokens / calls, "seconds_of_sound": seconds, "sentences": len(texts)}
    return row | {"peak": [min(peaks), max(peaks)], "level": [min(levels), max(levels)]}


def evaluate_espeak(texts: list[str]) -> dict[str, Any]:
    """Measures espeak-ng reading the same sentences.

    Raises:
        ArgumentError: If espeak-ng is not installed.
    """
    import random

    from train_spoken.data import synthesize

    rng = random.Random(0)
    utterances = [one for i, text in enumerate(texts) if (one := synthesize(text, i // _BATCH % 2, rng)) is not None]
    transcripts = [embedded_recognizer().transcribe(one.audio, SAMPLING_RATE) for one in utterances]
    references = [merge_homophones(one.text) for one in utterances]
    return {"recipe": "espeak-ng", **error_rate(transcripts, references), "sentences": len(utterances)}


def spectrogram(audio: np.ndarray) -> Image.Image:
    """A spectrogram with 10 ms per column, from the floor (white) to the loudest (black)."""
    taper = np.hanning(400).astype(np.float32)
    levels = np.log(np.abs(np.fft.rfft(frames(audio, 400) * taper, SIZE)) / taper.sum() + FLOOR)
    shades = 255 * (1 - (levels - levels.min()) / (levels.max() - levels.min()))
    image = Image.fromarray(shades.T[::-1].astype(np.uint8))
    return image.resize((2 * image.width, image.height))


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """The results as a table in Markdown."""
    lines = ["| recipe | word error rate (95 %) | tokens per call | sentences |", "| --- | ---: | ---: | ---: |"]
    for row in rows:
        share = f"{row['word_error_rate']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"
        tokens_per_call = f"{row['tokens_per_call']:.2f}" if "tokens_per_call" in row else ""
        lines.append(f"| {row['recipe']} | {share} | {tokens_per_call} | {row['sentences']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("examples/speech"))
    parser.add_argument("-n", type=int, default=320)
    parser.add_argument("--recipes", nargs="*", default=RECIPES)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pipe = mmspec.load("spoken")
    for i, (voice, text) in enumerate(_EXAMPLES):
        output = pipe(text, seed=i, voice=voice)
        write_audio(output.audio, output.sampling_rate, args.out / f"{voice}-{i}.flac")
        if i == 0:
            spectrogram(output.audio[0]).save(args.out / "spectrogram.png")
    texts = sentences(args.n, SEED_EVAL + 10, held_out=True)
    (args.out / "sentences.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    rows = []
    try:
        rows.append(evaluate_espeak(texts))
    except mmspec.errors.ArgumentError as error:
        print(error, file=sys.stderr)
    for recipe in args.recipes:
        rows.append(evaluate_recipe(pipe, recipe, texts))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        (args.out / "words.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
