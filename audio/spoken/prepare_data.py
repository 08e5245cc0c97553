"""Record and analyse the training sentences, and choose the codes.

Command: python -m mmspec.audio.spoken.prepare_data        (about 6 core-minutes)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from mmspec.audio.spoken.analysis import log_bands, pitch
from mmspec.audio.spoken.config import CODES, RUNS, VOICES
from mmspec.audio.spoken.data import Utterance, utterances
from mmspec.audio.spoken.script import PAUSE, Script
from mmspec.audio.spoken.text import LEXICON, VOWELS
from mmspec.audio.spoken.words import WORDS

RECORDED = 3000  # sentences kept with their sound, for the codec
READ = 20_000  # sentences encoded, for the transformers
SHARD = 1000
PITCH_WEIGHT, VOICED_WEIGHT = 8.0, 1.5  # against the bands, in nats


# Codes int16 [T], the phone at each of them int16 [T], and the phones.
Row = tuple[torch.Tensor, torch.Tensor, Script]


def features(utterance: Utterance) -> np.ndarray:
    """What is quantised: float32 [T, 2 * (bands + 2)], of the frames of each token."""
    ends = list(VOICES.values())[utterance.voice][1]
    hertz, voiced = pitch(utterance.sound, *ends)
    heard = np.where(voiced, np.log(hertz) - np.log(150.0), 0.0)
    kept = np.concatenate(
        [log_bands(utterance.sound), PITCH_WEIGHT * heard[:, None], VOICED_WEIGHT * voiced[:, None]], axis=1
    )
    return kept.reshape(len(utterance.phone_at), -1).astype(np.float32)


def nearest(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """The centre next to each point, int64 [n]."""
    offset = centres.square().sum(1)
    return torch.cat([(offset - 2 * part @ centres.T).argmin(1) for part in points.split(8192)])


def k_means(points: torch.Tensor, count: int, rounds: int = 25) -> torch.Tensor:
    """Centres [count, D]; one that lost all its points starts anew at a random point."""
    generator = torch.Generator().manual_seed(0)
    centres = points[torch.randperm(len(points), generator=generator)[:count]].clone()
    for i in range(rounds):
        chosen = nearest(points, centres)
        size = torch.bincount(chosen, minlength=count)
        total = torch.zeros_like(centres).index_add_(0, chosen, points)
        centres = total / size.clamp(min=1)[:, None]
        lost = (size == 0).nonzero()[:, 0]
        centres[lost] = points[torch.randint(len(points), (len(lost),), generator=generator)]
        error = (points - centres[chosen]).square().mean().sqrt()
        print(f"k-means {i + 1}: rms {float(error):.4f}, {len(lost)} empty", file=sys.stderr, flush=True)
    return centres


def record(out: Path, count: int) -> None:
    """Keeps sounds and features of `count` sentences in recorded.pt."""
    sounds, kept, voices = [], [], []
    for utterance in utterances(count):
        sounds.append(torch.from_numpy(utterance.sound).half())
        kept.append(torch.from_numpy(features(utterance)))
        voices.append(utterance.voice)
    torch.save({"sounds": sounds, "features": kept, "voices": voices}, out / "recorded.pt")


def choose_codes(out: Path) -> None:
    """Fits codes.pt [CODES, D] to the recorded features."""
    points = torch.cat(torch.load(out / "recorded.pt")["features"])
    torch.save(k_means(points, CODES), out / "codes.pt")


def encode(out: Path, count: int) -> None:
    """Keeps the codes, phones and words of `count` sentences, other than the recorded ones, in read-0.pt and so on."""
    centres = torch.load(out / "codes.pt")
    rows: list[Row] = []
    for utterance in utterances(count, seed=7):
        codes = nearest(torch.from_numpy(features(utterance)), centres).short()
        script = (utterance.voice, utterance.asks, utterance.words, utterance.starts, utterance.phones)
        rows.append((codes, torch.from_numpy(utterance.phone_at).short(), Script(*script)))
        if len(rows) % SHARD == 0:
            torch.save(rows[-SHARD:], out / f"read-{len(rows) // SHARD - 1}.pt")
            print(f"encoded {len(rows)} sentences", file=sys.stderr, flush=True)


def load_read(out: Path) -> list[Row]:
    """What `encode` has written by now."""
    return [row for path in sorted(out.glob("read-*.pt")) for row in torch.load(path, weights_only=False)]


def make_lexicon(count: int) -> None:
    """Writes lexicon.json: how each word was said most often, before consonants and before vowels."""
    said: dict[str, tuple[Counter[str], Counter[str]]] = {word: (Counter(), Counter()) for word in WORDS}
    names: Counter[str] = Counter()
    for utterance in utterances(count, seed=7):
        names.update(utterance.phones)
        first = [i for i, start in enumerate(utterance.starts) if start] + [len(utterance.phones)]
        for a, b in zip(first, first[1:], strict=False):
            if utterance.words[a] != PAUSE:
                vowel = b < len(utterance.phones) and utterance.phones[b][0] in VOWELS
                said[utterance.words[a]][vowel][" ".join(utterance.phones[a:b])] += 1
    missing = [word for word, (before_consonant, _) in said.items() if not before_consonant]
    if missing:
        raise SystemExit(f"never said: {', '.join(missing)}")
    words = {w: [(c or counts[0]).most_common(1)[0][0] for c in counts] for w, counts in said.items()}
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
        ("codes.pt", lambda: choose_codes(args.out)),
        (f"read-{args.read // SHARD - 1}.pt", lambda: encode(args.out, args.read)),
    ):
        if not (args.out / name).exists():
            step()


if __name__ == "__main__":
    main()
