"""All constants of the training of the voice.

The weights in the package are made in this order: `prepare_data`, `codec`, `transformer --config target`,
`transformer --config draft`, `count_ngrams`, `recognizer`. `evaluate` measures the result. espeak-ng must be installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RUNS = Path("runs/spoken")  # data, checkpoints and logs, outside the package

SEED_TRAIN = 1
SEED_EVAL = 20_000_000  # of the held-out sentences

SPEEDS = (155, 160, 165)  # words per minute; each sentence is read at a random one
PITCHES = (46, 50, 54)
LEAD = 0.04  # seconds of silence before the first word and after the last
TAIL = 0.08


@dataclass(frozen=True)
class CodecTraining:
    steps: int = 1100
    batch: int = 8
    crop: int = 40  # tokens
    lr: float = 2e-3
    decay_from: float = 0.4
    pitch_weight: float = 2.0


@dataclass(frozen=True)
class TransformerTraining:
    dim: int
    layers: int
    heads: int
    hidden: int
    minutes: float  # of CPU time on one core
    batch: int = 20  # sentences
    muon_lr: float = 0.02
    adamw_lr: float = 4e-3
    weight_decay: float = 0.01
    warmup: int = 50
    decay_from: float = 0.4
    final_lr: float = 0.02  # share of the peak
    ema: float = 0.99
    checkpoint_minutes: float = 4.0


TRANSFORMERS = {
    "target": TransformerTraining(dim=192, layers=5, heads=4, hidden=448, minutes=22),
    "draft": TransformerTraining(dim=64, layers=1, heads=2, hidden=192, minutes=4),
}


@dataclass(frozen=True)
class RecognizerTraining:
    sentences: int = 2500
    steps: int = 1200
    batch: int = 12
    lr: float = 2e-3
