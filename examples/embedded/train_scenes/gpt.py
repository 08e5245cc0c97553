"""Trains the transformer of the scenes model, or its draft model, and exports the averaged weights at intervals.

Commands:  OMP_NUM_THREADS=1 python -m train_scenes.gpt --config target     (draft: --config draft)

The tokenizer must be trained first. The work folder (--out) holds the encoded images and a checkpoint, from which a
restarted command continues. The schedule is a budget of CPU time (--minutes), so that other work on the machine does
not shorten the training.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from muon import MuonAdamW, update_average
from torch import Tensor
from torch.nn import functional as F
from train_scenes.config import GPT, RUNS, GPTTraining
from train_scenes.data import caption_features, training_set, validation
from train_shapes.export import export
from train_shapes.gpt import FOLDERS, build, muon_blocks

from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.scenes.config import WEIGHTS
from mmspec.vision.scenes.domain import CONDITION_SLOTS, FEATURE_DIM
from mmspec.vision.shapes.tokenizer import ShapesTokenizer


@torch.no_grad()
def bits_per_token(gpt: LlamaGenGPT, tokens: Tensor, condition: Tensor) -> float:
    """Mean negative log-likelihood of tokens [n, N] in bits, given conditions of these images."""
    total = 0.0
    for some, conditions in zip(tokens.long().split(16), condition.split(16), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            logits = gpt(some, conditions)
        total += float(F.cross_entropy(logits.float().flatten(0, 1), some.flatten(), reduction="sum"))
    return total / tokens.numel() / math.log(2)


def fit(
    gpt: LlamaGenGPT,
    pick: Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]],
    count: int,
    held_out_bits: Callable[[LlamaGenGPT], float],
    config: GPTTraining,
    checkpoint: Path,
    folder: Path,
    compiled: bool,
) -> None:
    """Trains a transformer for its budget of CPU time, and exports the average of its weights at intervals.

    Args:
        gpt: With initial weights.
        pick: Tokens int64 [B, N] and conditions of some of the training images, by number.
        count: The number of training images.
        held_out_bits: Bits per token of a transformer on held-out images.
        config: Batch, learning rates and budget.
        checkpoint: The file that a restarted command continues from.
        folder: Where the average is exported to.
        compiled: Whether to use torch.compile.
    """
    average = copy.deepcopy(gpt)
    optimizer = MuonAdamW(gpt, muon_blocks, config)
    step, seconds = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        gpt.load_state_dict(state["gpt"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizers"])
        step, seconds = state["step"], state["seconds"]
    generator = torch.Generator().manual_seed(1000 + step)

    def save() -> None:
        state = {"gpt": gpt.state_dict(), "average": average.state_dict(), "step": step, "seconds": seconds}
        torch.save(state | {"optimizers": optimizer.state_dict()}, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)
        export(average, folder)
        report = f"step {step} images {step * config.batch} CPU minutes {seconds / 60:.1f}"
        print(f"{report} held-out {held_out_bits(average):.4f} bits/token", file=sys.stderr, flush=True)

    forward = torch.compile(gpt) if compiled else gpt
    order = torch.randperm(count, generator=generator)
    cursor, recent, last_save, last = 0, 0.0, time.monotonic(), time.process_time()
    budget = 60 * config.cpu_minutes
    while seconds < budget:
        if cursor + config.batch > len(order):
            order, cursor = torch.randperm(count, generator=generator), 0
        tokens, condition = pick(order[cursor : cursor + config.batch], generator)
        cursor += config.batch
        dropped = torch.rand(len(condition), generator=generator) < config.caption_drop
        condition[dropped] = gpt.unconditional(int(dropped.sum()))
        with torch.autocast("cpu", torch.bfloat16):
            logits = forward(tokens, condition)
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step(step, seconds / budget)
        update_average(average, gpt, step, config.ema)
        step += 1
        now = time.process_time()
        seconds += now - last
        last = now
        recent = 0.98 * recent + 0.02 * loss.item() if recent else loss.item()
        if step % 50 == 0:
            line = f"step {step} loss {recent / math.log(2):.4f} bits/token, {(budget - seconds) / 60:.1f} CPU min left"
            print(line, file=sys.stderr, flush=True)
        if time.monotonic() - last_save > 60 * config.checkpoint_minutes:
            save()
            last_save, last = time.monotonic(), time.process_time()
    save()


def train(config: GPTTraining, name: str, out: Path, weights: Path, compiled: bool) -> None:
    tokenizer = ShapesTokenizer.from_pretrained(weights / "vqvae").float().eval()
    codes, held_out = training_set(tokenizer, out), validation(tokenizer, 128)
    torch.manual_seed(0)
    gpt = build(config, tokenizer, CONDITION_SLOTS, FEATURE_DIM)

    def pick(numbers: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return codes.tokens[numbers].long(), caption_features(codes.slots[numbers], generator)

    captions = caption_features(held_out.slots, torch.Generator().manual_seed(0))  # some values are omitted
    bits = partial(bits_per_token, tokens=held_out.tokens, condition=captions)
    fit(gpt, pick, len(codes.tokens), bits, config, out / f"{name}.pt", weights / FOLDERS[name], compiled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(GPT), default="target")
    parser.add_argument("--out", type=Path, default=RUNS, help="work folder: codes, checkpoints")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the tokenizer and to export to")
    parser.add_argument("--minutes", type=float, help="budget of CPU time that the learning rate decays over")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile (which needs a C++ compiler)")
    args = parser.parse_args()
    config = GPT[args.config]
    config = replace(config, cpu_minutes=args.minutes or config.cpu_minutes)
    train(config, args.config, args.out, args.weights, not args.no_compile)


if __name__ == "__main__":
    main()
