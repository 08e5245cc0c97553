"""Synthesizes and analyzes the training sentences, and fits the codebook.

Command: python -m train_spoken.prepare_data        (about 6 core-minutes)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from train_spoken.config import RUNS
from train_spoken.data import Utterance, utterances
from train_spoken.pitch import pitch

from mmspec.audio.spoken.analysis import log_bands
from mmspec.audio.spoken.config import CODES, VOICES
from mmspec.audio.spoken.script import PAUSE, Script
from mmspec.audio.spoken.text import LEXICON, VOWELS
from mmspec.audio.spoken.words import WORDS

RECORDED = 3000  # sentences stored with their audio, for the codec
READ = 20_000  # sentences stored as codes, for the transformers
SHARD = 1000  # sentences per file
PITCH_WEIGHT, VOICED_WEIGHT = 8.0, 1.5  # relative to the bands, in nats


# Codes int16 [T], the index of the phone at each of them int16 [T], and the script.
Row = tuple[torch.Tensor, torch.Tensor, Script]


def codec_features(utterance: Utterance) -> np.ndarray:
    """The features that are quantized, float32 [T, 2 * (BANDS + 2)]: bands, pitch and voicing of a token's frames."""
    pitch_range = list(VOICES.values())[utterance.voice][1]
    hertz, voiced = pitch(utterance.audio, *pitch_range)
    log_pitch = np.where(voiced, np.log(hertz) - np.log(150.0), 0.0)
    features = np.concatenate(
        [log_bands(utterance.audio), PITCH_WEIGHT * log_pitch[:, None], VOICED_WEIGHT * voiced[:, None]], axis=1
    )
    return features.reshape(len(utterance.phone_at), -1).astype(np.float32)


def nearest(points: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    """The index of the center nearest to each point, int64 [n]."""
    offset = centers.square().sum(1)
    return torch.cat([(offset - 2 * part @ centers.T).argmin(1) for part in points.split(8192)])


def k_means(points: torch.Tensor, count: int, rounds: int = 25) -> torch.Tensor:
    """Centers [count, D] of a k-means clustering; a center without points is moved to a random point."""
    generator = torch.Generator().manual_seed(0)
    centers = points[torch.randperm(len(points), generator=generator)[:count]].clone()
    for i in range(rounds):
        chosen = nearest(points, centers)
        size = torch.bincount(chosen, minlength=count)
        total = torch.zeros_like(centers).index_add_(0, chosen, points)
        centers = total / size.clamp(min=1)[:, None]
        lost = (size == 0).nonzero()[:, 0]
        centers[lost] = points[torch.randint(len(points), (len(lost),), generator=generator)]
        error = (points - centers[chosen]).square().mean().sqrt()
        print(f"k-means {i + 1}: rms {float(error):.4f}, {len(lost)} empty", file=sys.stderr, flush=True)
    return centers


def record(out: Path, count: int) -> None:
    """Writes audio and features of `count` sentences to recorded.pt."""
    audio, features, voices = [], [], []
    for utterance in utterances(count):
        audio.append(torch.from_numpy(utterance.audio).half())
        features.append(torch.from_numpy(codec_features(utterance)))
        voices.append(utterance.voice)
    torch.save({"sounds": audio, "features": features, "voices": voices}, out / "recorded.pt")


def fit_codebook(out: Path) -> None:
    """Writes codes.pt, the codebook [CODES, D], fitted to the features of recorded.pt."""
    points = torch.cat(torch.load(out / "recorded.pt")["features"])
    torch.save(k_means(points, CODES), out / "codes.pt")


def encode(out: Path, count: int) -> None:
    """Writes codes, phones and words of `count` other sentences to read-0.pt, read-1.pt and so on."""
    centers = torch.load(out / "codes.pt")
    rows: list[Row] = []
    for utterance in utterances(count, seed=7):
        codes = nearest(torch.from_numpy(codec_features(utterance)), centers).short()
        script = (utterance.voice, utterance.is_question, utterance.words, utterance.word_starts, utterance.phones)
        rows.append((codes, torch.from_numpy(utterance.phone_at).short(), Script(*script)))
        if len(rows) % SHARD == 0:
            torch.save(rows[-SHARD:], out / f"read-{len(rows) // SHARD - 1}.pt")
            print(f"encoded {len(rows)} sentences", file=sys.stderr, flush=True)


def load_encoded(out: Path) -> list[Row]:
    """Loads the sentences that `encode` has written."""
    return [row for path in sorted(out.glob("read-*.pt")) for row in torch.load(path, weights_only=False)]


def make_lexicon(count: int) -> None:
    """Writes lexicon.json: the most frequent pronunciation of each word, before consonants and before vowels."""
    pronunciations: dict[str, tuple[Counter[str], Counter[str]]] = {word: (Counter(), Counter()) for word in WORDS}
    names: Counter[str] = Counter()
    for utterance in utterances(count, seed=7):
        names.update(utterance.phones)
        first = [i for i, start in enumerate(utterance.word_starts) if start] + [len(utterance.phones)]
        for a, b in zip(first, first[1:], strict=False):
            if utterance.words[a] != PAUSE:
                vowel = b < len(utterance.phones) and utterance.phones[b][0] in VOWELS
                pronunciations[utterance.words[a]][vowel][" ".join(utterance.phones[a:b])] += 1
    missing = [word for word, (before_consonant, _) in pronunciations.items() if not before_consonant]
    if missing:
        raise SystemExit(f"words without a pronunciation: {', '.join(missing)}")
    words = {w: [(c or counts[0]).most_common(1)[0][0] for c in counts] for w, counts in pronunciations.items()}
    LEXICON.write_text(json.dumps({"phones": sorted(names), "words": words}, indent=0) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--recorded", type=int, default=RECORDED)
    parser.add_argument("--read", type=int, default=READ)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not LEXICON.exists():
        make_lexicon(5000)
    for name, step in (
        ("recorded.pt", lambda: record(args.out, args.recorded)),
        ("codes.pt", lambda: fit_codebook(args.out)),
        (f"read-{args.read // SHARD - 1}.pt", lambda: encode(args.out, args.read)),
    ):
        if not (args.out / name).exists():
            step()


if __name__ == "__main__":
    main()
