"""Trains the tokenizer of the scenes model on random crops and exports it.

Command: python -m train_scenes.tokenizer        (about 8 core-minutes)
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from train_scenes.config import SEED_EVAL, SEED_TRAIN, TOKENIZER
from train_scenes.render import render_batch
from train_shapes.tokenizer import fit

from mmspec.vision.scenes.config import WEIGHTS
from mmspec.vision.scenes.domain import IMAGE_SIZE, sample_scene
from mmspec.vision.shapes.tokenizer import ShapesTokenizer


def renders(n: int, seed: int, held_out: bool) -> torch.Tensor:
    """Images of `n` random scenes, float32 [n, 3, 96, 96] in [-1, 1]."""
    rng = random.Random(seed)
    return render_batch([sample_scene(rng, held_out) for _ in range(n)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder to export to")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED_TRAIN)
    pool = renders(TOKENIZER.pool, SEED_TRAIN, held_out=False)
    held_out = renders(256, SEED_EVAL, held_out=True)
    fit(ShapesTokenizer(image_size=IMAGE_SIZE), pool, held_out, TOKENIZER, args.weights)


if __name__ == "__main__":
    main()
