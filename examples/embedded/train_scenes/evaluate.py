"""Evaluates the scenes model on held-out captions: the classifier reads renders, reconstructions and samples.

Command: python -m train_scenes.evaluate --out runs/scenes        (writes evaluation.json and evaluation.png)
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict
from pathlib import Path

import torch
from train_scenes.config import RUNS, SEED_EVAL
from train_scenes.render import render_batch
from train_shapes.evaluate import Evaluation, image_grid

from mmspec.vision.scenes.classifier import ScenesClassifier, score_captions
from mmspec.vision.scenes.config import GUIDANCE, TEMPERATURE, WEIGHTS
from mmspec.vision.scenes.domain import captions, sample_scene
from mmspec.vision.scenes.grammar import describe
from mmspec.vision.scenes.model import load
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

_BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("-n", type=int, default=512)
    parser.add_argument("--guidance", type=float, default=GUIDANCE)
    parser.add_argument("--temperature", type=float, default=TEMPERATURE)
    parser.add_argument("--recipe", default="plain")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the pipeline and the classifier")
    args = parser.parse_args()
    tokenizer = ShapesTokenizer.from_pretrained(args.weights / "vqvae").float().eval()
    classifier = ScenesClassifier.from_pretrained(args.weights / "classifier").float().eval()
    rng = random.Random(SEED_EVAL + 10)
    scenes = [sample_scene(rng, held_out=True) for _ in range(args.n)]
    images = render_batch(scenes)
    rebuilt = torch.cat([tokenizer.decode(tokenizer.encode(batch)) for batch in images.split(_BATCH)])
    psnr = float((10 * torch.log10(4 / (rebuilt - images).square().mean((1, 2, 3)))).mean())
    stated = [scene.caption for scene in scenes]

    wanted = captions(args.n, SEED_EVAL + 11)
    prompts = [describe(caption) for caption in wanted]
    pipe = load(weights=args.weights)
    start, parts = time.monotonic(), []
    for first in range(0, args.n, _BATCH):
        output = pipe(
            prompts[first : first + _BATCH], recipe=args.recipe, seed=SEED_EVAL + first, output_type="pt",
            guidance_scale=args.guidance, temperature=args.temperature,
        )  # fmt: skip
        parts.append(output.images.float() * 2 - 1)
    samples = torch.cat(parts)
    result = Evaluation(
        args.n, args.guidance, args.temperature, psnr,
        renders=score_captions(classifier.predict(images), stated),
        reconstructions=score_captions(classifier.predict(rebuilt), stated),
        samples=score_captions(classifier.predict(samples), wanted),
        seconds=time.monotonic() - start,
    )  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    report = json.dumps(asdict(result), indent=2)
    (args.out / "evaluation.json").write_text(report + "\n")
    image_grid(samples[:40], prompts[:40], scale=2).save(args.out / "evaluation.png")
    print(report)


if __name__ == "__main__":
    main()
