"""Evaluates the embedded model on held-out captions: the classifier reads renders, reconstructions and samples.

Command: python -m train_shapes.evaluate --out runs/shapes        (writes evaluation.json and evaluation.png)
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from train_shapes.config import RUNS, SEED_EVAL
from train_shapes.render import render_batch, to_uint8

from mmspec.vision.shapes.classifier import Scores, ShapesClassifier, score_captions
from mmspec.vision.shapes.config import GUIDANCE, TEMPERATURE, WEIGHTS
from mmspec.vision.shapes.domain import LOOKS, Look, captions, sample_scene
from mmspec.vision.shapes.grammar import describe
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

# Prompts and a seed to images [B, 3, H, W] in [-1, 1].
Decode = Callable[[Sequence[str], int], torch.Tensor]

_BATCH = 32


@dataclass
class Evaluation:
    """Results on held-out (object, relation, object) tuples.

    Attributes:
        n: Captions.
        guidance: The guidance scale.
        temperature: The temperature.
        psnr: Peak signal-to-noise ratio of reconstructions, dB.
        renders: Scores of rendered scenes.
        reconstructions: Scores of encoded and decoded renders.
        samples: Scores of samples.
        seconds: Time of all samples.
    """

    n: int
    guidance: float
    temperature: float
    psnr: float
    renders: Scores
    reconstructions: Scores
    samples: Scores
    seconds: float


def pipeline_decoder(weights: Path, guidance: float, temperature: float) -> Decode:
    """Plain decoding by the pipeline in `weights`."""
    from mmspec.vision.shapes.model import load

    pipe = load(weights=weights)
    pipe.set_progress_bar_config(disable=True)

    def decode(prompts: Sequence[str], seed: int) -> torch.Tensor:
        output = pipe(
            list(prompts), recipe="plain", seed=seed, guidance_scale=guidance, temperature=temperature, output_type="pt"
        )
        return output.images.float() * 2 - 1

    return decode


def evaluate(
    decode: Decode, n: int, guidance: float, temperature: float, weights: Path, look: Look
) -> tuple[Evaluation, torch.Tensor, list[str]]:
    """The results, the samples [n, 3, 64, 64] in [-1, 1] and their prompts."""
    tokenizer = ShapesTokenizer.from_pretrained(weights / "vqvae").float().eval()
    classifier = ShapesClassifier.from_pretrained(weights / "classifier").float().eval()
    rng = random.Random(SEED_EVAL + 10)
    scenes = [sample_scene(rng, held_out=True, look=look) for _ in range(n)]
    stated = [scene.caption for scene in scenes]
    images = render_batch(scenes)
    rebuilt = torch.cat([tokenizer.decode(tokenizer.encode(batch)) for batch in images.split(_BATCH)])
    psnr = (10 * torch.log10(4 / (rebuilt - images).square().mean((1, 2, 3)))).mean()

    wanted = captions(n, SEED_EVAL + 11, held_out=True)
    prompts = [describe(caption) for caption in wanted]
    start, parts = time.monotonic(), []
    for first in range(0, n, _BATCH):
        parts.append(decode(prompts[first : first + _BATCH], SEED_EVAL + first))
        print(f"sampled {min(first + _BATCH, n)} of {n}", file=sys.stderr, flush=True)
    samples, seconds = torch.cat(parts), time.monotonic() - start
    result = Evaluation(
        n, guidance, temperature, float(psnr),
        renders=score_captions(classifier.predict(images), stated),
        reconstructions=score_captions(classifier.predict(rebuilt), stated),
        samples=score_captions(classifier.predict(samples), wanted),
        seconds=seconds,
    )  # fmt: skip
    return result, samples, prompts


def image_grid(images: torch.Tensor, labels: Sequence[str], columns: int = 8, scale: int = 3) -> Image.Image:
    """A grid of enlarged images [B, 3, H, W] in [-1, 1] with their labels below."""
    side, text = images.shape[-1] * scale, 36
    rows = -(-len(labels) // columns)
    grid = Image.new("RGB", (columns * (side + 4), rows * (side + text)), "white")
    draw = ImageDraw.Draw(grid)
    for i, (pixels, label) in enumerate(zip(to_uint8(images), labels, strict=True)):
        x, y = i % columns * (side + 4), i // columns * (side + text)
        grid.paste(Image.fromarray(np.asarray(pixels)).resize((side, side), Image.Resampling.NEAREST), (x, y))
        words, lines = label.split(), [""]
        for word in words:
            if len(lines[-1]) + len(word) > side // 6 - 1:
                lines.append("")
            lines[-1] += f"{word} "
        draw.text((x, y + side), "\n".join(lines), fill="black", font_size=9, spacing=0)
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("-n", type=int, default=512)
    parser.add_argument("--guidance", type=float, default=GUIDANCE)
    parser.add_argument("--temperature", type=float, default=TEMPERATURE)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the pipeline and the classifier")
    parser.add_argument("--look", choices=sorted(LOOKS), default="clean", help="look of the rendered scenes")
    args = parser.parse_args()
    decode = pipeline_decoder(args.weights, args.guidance, args.temperature)
    result, samples, prompts = evaluate(decode, args.n, args.guidance, args.temperature, args.weights, LOOKS[args.look])
    args.out.mkdir(parents=True, exist_ok=True)
    report = json.dumps(asdict(result), indent=2)
    (args.out / "evaluation.json").write_text(report + "\n")
    image_grid(samples[:40], prompts[:40]).save(args.out / "evaluation.png")
    print(report)


if __name__ == "__main__":
    main()
