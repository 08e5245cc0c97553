"""The hyperparameters of the shapes training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RUNS = Path("runs/shapes")  # codes, checkpoints and logs, outside the package

SEED_TRAIN = 1  # training scenes
SEED_EVAL = 20_000_000  # captions and renders of evaluations


@dataclass(frozen=True)
class TokenizerTraining:
    steps: int = 5600
    batch: int = 32
    crop: int = 32  # px, a multiple of the downsampling factor
    pool: int = 6144  # distinct images that crops come from
    lr: float = 2e-3
    warmup: int = 100
    decay_from: float = 0.4  # share of the steps after which the learning rate falls linearly to 0
    mse_weight: float = 2.0
    gradient_weight: float = 0.5


@dataclass(frozen=True)
class ClassifierTraining:
    steps: int = 1200
    batch: int = 64
    lr: float = 2e-3
    noise: float = 0.04  # standard deviation of pixel noise, images in [-1, 1]


@dataclass(frozen=True)
class GPTTraining:
    dim: int
    n_layer: int
    n_head: int
    ffn_dim: int
    minutes: float  # wall-clock budget on two cores
    block: int = 1  # tokens per side of what a step yields
    batch: int = 8  # per process, of two
    muon_lr: float = 0.02
    adamw_lr: float = 4e-3
    weight_decay: float = 0.01
    warmup: int = 50
    decay_from: float = 0.4
    final_lr: float = 0.02  # share of the peak
    ema: float = 0.995
    caption_drop: float = 0.1
    checkpoint_minutes: float = 6.0


GPT = {
    "target": GPTTraining(dim=192, n_layer=5, n_head=4, ffn_dim=512, minutes=88),
    "draft": GPTTraining(dim=96, n_layer=1, n_head=2, ffn_dim=256, minutes=4),
    # Not part of the package: models whose step yields 2 x 2 tokens; see examples/methods/README.md.
    "blocks": GPTTraining(dim=128, n_layer=3, n_head=4, ffn_dim=384, minutes=6, block=2),
    "blocks-draft": GPTTraining(dim=64, n_layer=1, n_head=2, ffn_dim=192, minutes=2, block=2),
}
NUM_CODES = 40_960  # distinct training images, encoded once
