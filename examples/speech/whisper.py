"""What a Whisper hears: the embedded voice, and espeak-ng, on whose speech it was trained, reading the same sentences.

PYTHONPATH=examples/embedded python examples/speech/whisper.py FOLDER_OF_A_WHISPER > examples/speech/whisper.csv
"""

from __future__ import annotations

import csv
import random
import sys
from typing import Any

import numpy as np
from train_spoken.data import synthesize

import mmspec
from mmspec.metrics.audio.text_normalizers import english
from mmspec.metrics.audio.word_error_rate import edits
from mmspec.metrics.extractors.audio import Waveform
from mmspec.metrics.extractors.whisper import WhisperExtractor
from mmspec.metrics.prompts import SPEECH
from mmspec.metrics.shares import ratio_of


def main(folder: str) -> None:
    """Prints the transcripts and the word error rates as CSV; a cell that is a dash has every word right."""
    whisper, pipe, rng = WhisperExtractor(folder), mmspec.load("spoken"), random.Random(0)
    normalizer = english(whisper.spellings)
    voices = pipe.adapter.voices
    names = [f"{maker}, {voice}" for voice in voices for maker in ("spoken", "espeak-ng")]
    wrong: dict[str, list[int]] = {name: [] for name in names}
    words, rows = [], []
    for text in SPEECH:
        reference = normalizer(text).split()
        words.append(len(reference))
        row = [text]
        for number, voice in enumerate(voices):
            made = pipe([text], recipe="plain", seed=0, voice=voice)[0]
            read = synthesize(text.lower().replace(".", ""), number, rng)
            for maker, audio in (("spoken", made.audio), ("espeak-ng", None if read is None else read.audio)):
                transcript = "" if audio is None else whisper.transcribe([Waveform(audio, made.sampling_rate)])[0]
                errors = edits(normalizer(transcript).split(), reference)
                wrong[f"{maker}, {voice}"].append(errors)
                row.append(transcript if errors else "-")
        rows.append(row)

    def rate(errors: list[int]) -> str:
        found: Any = ratio_of(np.array(errors, dtype=np.float64), np.array(words, dtype=np.float64))
        low, high = found.interval().low, found.interval().high
        return f"{found.value:.2f} [{low:.2f}, {high:.2f}]"

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows([["text", *names], *rows, ["word error rate", *map(rate, wrong.values())]])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER_OF_A_WHISPER")
    main(sys.argv[1])
