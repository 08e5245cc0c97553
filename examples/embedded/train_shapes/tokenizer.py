"""Trains the tokenizer on random crops and exports it.

Command: python -m train_shapes.tokenizer        (about 7 core-minutes)
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from train_shapes.config import SEED_EVAL, SEED_TRAIN, TokenizerTraining
from train_shapes.export import export
from train_shapes.render import render_batch

from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.domain import LOOKS, Look, sample_scene
from mmspec.vision.shapes.tokenizer import ShapesTokenizer


def renders(n: int, seed: int, held_out: bool, look: Look) -> torch.Tensor:
    """Images of `n` random scenes, float32 [n, 3, 64, 64] in [-1, 1]."""
    rng = random.Random(seed)
    return render_batch([sample_scene(rng, held_out, look) for _ in range(n)])


def loss(output: torch.Tensor, image: torch.Tensor, config: TokenizerTraining) -> torch.Tensor:
    """L1 error, squared error, and L1 error of the differences between pixels, which keeps edges sharp.

    Args:
        output: Reconstructions [B, 3, h, w].
        image: Images [B, 3, h, w].
        config: The weights of the terms.
    """
    error = output - image
    gradients = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
    return error.abs().mean() + config.mse_weight * error.square().mean() + config.gradient_weight * gradients


@torch.no_grad()
def psnr(model: ShapesTokenizer, images: torch.Tensor) -> float:
    """Peak signal-to-noise ratio of reconstructions in dB, averaged over images."""
    error = torch.cat([model.decode(model.encode(batch)) - batch for batch in images.split(64)])
    return float((10 * torch.log10(4 / error.square().mean((1, 2, 3)))).mean())


def fit(
    model: ShapesTokenizer, pool: torch.Tensor, held_out: torch.Tensor, config: TokenizerTraining, weights: Path
) -> None:
    """Trains a tokenizer on random crops of images, and exports it, reduced to the codes that occur, to `weights`.

    Args:
        model: The tokenizer, with initial weights.
        pool: Images to train on, float32 [n, 3, H, W] in [-1, 1].
        held_out: Images to evaluate on.
        config: Steps, crops and learning rate.
        weights: The folder that gets the folder `vqvae`.
    """
    model = model.to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), config.lr, betas=(0.9, 0.98), weight_decay=1e-4)
    decay_start = config.decay_from * config.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda step: min((step + 1) / config.warmup, 1.0, (config.steps - step) / (config.steps - decay_start)),
    )
    start = time.monotonic()
    corners = (pool.shape[-1] - config.crop) // model.factor + 1
    for step in range(config.steps):
        picks = torch.randint(len(pool), (config.batch,)).tolist()
        offsets = (torch.randint(corners, (config.batch, 2)) * model.factor).tolist()
        crops = [pool[i, :, y : y + config.crop, x : x + config.crop] for i, (y, x) in zip(picks, offsets, strict=True)]
        batch = torch.stack(crops).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(batch)
        value = loss(output.float(), batch, config)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % 400 == 0:
            seconds = time.monotonic() - start
            quality = psnr(model, held_out[:64])
            rest = seconds / (step + 1) * (config.steps - step - 1)
            report = (
                f"step {step + 1} loss {value.item():.4f} PSNR {quality:.2f} dB, {seconds:.0f} s, {rest:.0f} s left"
            )
            print(report, file=sys.stderr, flush=True)
            export(model, weights / "vqvae")
    # Codes that do not occur are not tokens: they would only widen the transformer's head.
    reduced = model.reduced(torch.cat([model.encode(batch) for batch in pool.split(64)]).unique())
    export(reduced, weights / "vqvae")
    print(f"{reduced.vocab_size} tokens, held-out PSNR {psnr(reduced, held_out):.2f} dB", file=sys.stderr)


def train(config: TokenizerTraining, weights: Path, threads: int, look: Look) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(SEED_TRAIN)
    pool = renders(config.pool, SEED_TRAIN, held_out=False, look=look)
    held_out = renders(256, SEED_EVAL, held_out=True, look=look)
    fit(ShapesTokenizer(), pool, held_out, config, weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder to export to")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=TokenizerTraining().steps)
    parser.add_argument("--look", choices=sorted(LOOKS), default="clean", help="look of the rendered scenes")
    args = parser.parse_args()
    train(TokenizerTraining(steps=args.steps), args.weights, args.threads, LOOKS[args.look])


if __name__ == "__main__":
    main()
