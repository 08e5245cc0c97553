"""Trains the classifier that scores samples, and exports it.

Command: python -m train_scenes.classifier        (about 6 core-minutes)
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from train_scenes.config import CLASSIFIER, SEED_EVAL, SEED_TRAIN
from train_scenes.render import render_batch
from train_shapes.config import ClassifierTraining
from train_shapes.export import export

from mmspec.vision.scenes.classifier import ScenesClassifier, score_captions
from mmspec.vision.scenes.config import WEIGHTS
from mmspec.vision.scenes.domain import Caption, sample_scene


def labelled(rng: random.Random, n: int, held_out: bool) -> tuple[torch.Tensor, list[Caption]]:
    """Random images and their captions."""
    scenes = [sample_scene(rng, held_out) for _ in range(n)]
    return render_batch(scenes), [scene.caption for scene in scenes]


def train(config: ClassifierTraining, weights: Path) -> None:
    torch.manual_seed(SEED_TRAIN)
    rng = random.Random(SEED_TRAIN + 1)
    model = ScenesClassifier().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), config.lr, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.lr, total_steps=config.steps)
    held_images, held_captions = labelled(random.Random(SEED_EVAL + 1), 512, held_out=True)
    start = time.monotonic()
    for step in range(config.steps):
        images, captions = labelled(rng, config.batch, held_out=False)
        targets = torch.tensor([caption.indices() for caption in captions])
        images = images + config.noise * torch.randn_like(images)
        model.train()
        with torch.autocast("cpu", torch.bfloat16):
            slots = model.slot_logits(images)
        value = torch.stack([F.cross_entropy(part.float(), targets[:, i]) for i, part in enumerate(slots)]).sum()
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
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
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(CLASSIFIER, args.weights)


if __name__ == "__main__":
    main()
