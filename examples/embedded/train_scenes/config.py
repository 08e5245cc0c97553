"""The hyperparameters of the scenes training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from train_shapes.config import ClassifierTraining, TokenizerTraining

RUNS = Path("runs/scenes")  # codes, checkpoints and logs, outside the package

SEED_TRAIN = 3  # training scenes
SEED_EVAL = 30_000_000  # captions and renders of evaluations

TOKENIZER = TokenizerTraining(steps=5000, pool=4096)
CLASSIFIER = ClassifierTraining(steps=1500, batch=32)


@dataclass(frozen=True)
class GPTTraining:
    """Attributes: see `train_shapes.config.GPTTraining`; the budget is CPU time of one thread."""

    dim: int
    n_layer: int
    n_head: int
    ffn_dim: int
    cpu_minutes: float
    batch: int = 12
    muon_lr: float = 0.02
    adamw_lr: float = 4e-3
    weight_decay: float = 0.01
    warmup: int = 50
    decay_from: float = 0.4
    final_lr: float = 0.02
    ema: float = 0.997
    caption_drop: float = 0.1
    checkpoint_minutes: float = 5.0


GPT = {
    "target": GPTTraining(dim=192, n_layer=6, n_head=4, ffn_dim=512, cpu_minutes=140),
    "draft": GPTTraining(dim=96, n_layer=1, n_head=2, ffn_dim=256, cpu_minutes=12),
}
NUM_CODES = 65_536  # distinct training images, encoded once
