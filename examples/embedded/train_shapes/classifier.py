"""Trains the evaluation classifier on new renders and exports it.

Command: python -m train_shapes.classifier        (about 4 core-minutes)
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from train_shapes.config import SEED_EVAL, SEED_TRAIN, ClassifierTraining
from train_shapes.export import export
from train_shapes.render import render_batch

from mmspec.vision.shapes.classifier import ShapesClassifier, score_captions
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.domain import LOOKS, Caption, Look, sample_scene


def labelled(rng: random.Random, n: int, held_out: bool, look: Look) -> tuple[torch.Tensor, list[Caption]]:
    """`n` random renders, float32 [n, 3, 64, 64] in [-1, 1], and their canonical captions."""
    scenes = [sample_scene(rng, held_out, look) for _ in range(n)]
    return render_batch(scenes), [scene.caption.canonical() for scene in scenes]


def train(config: ClassifierTraining, weights: Path, threads: int, look: Look) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(SEED_TRAIN)
    rng = random.Random(SEED_TRAIN + 1)
    held_images, held_captions = labelled(random.Random(SEED_EVAL + 1), 512, held_out=True, look=look)
    model = ShapesClassifier().to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), config.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.lr, config.steps, pct_start=0.1)
    start = time.monotonic()
    for step in range(config.steps):
        images, captions = labelled(rng, config.batch, held_out=False, look=look)
        targets = torch.tensor([caption.indices() for caption in captions])
        images = images + config.noise * torch.randn_like(images)
        model.train()
        with torch.autocast("cpu", torch.bfloat16):
            slots = model.slot_logits(images.contiguous(memory_format=torch.channels_last))
        value = torch.stack([F.cross_entropy(part.float(), targets[:, i]) for i, part in enumerate(slots)]).sum()
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % 250 == 0 or step + 1 == config.steps:
            scores = score_captions(model.predict(held_images), held_captions)
            report = {name: round(share, 4) for name, share in scores.items()}
            seconds = time.monotonic() - start
            print(f"step {step + 1} loss {value.item():.4f} {seconds:.0f} s {report}", file=sys.stderr, flush=True)
            export(model, weights / "classifier")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder to export to")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=ClassifierTraining().steps)
    parser.add_argument("--look", choices=sorted(LOOKS), default="clean", help="look of the rendered scenes")
    args = parser.parse_args()
    train(ClassifierTraining(steps=args.steps), args.weights, args.threads, LOOKS[args.look])


if __name__ == "__main__":
    main()
