"""Trains the transformer of the shapes model, or its draft model, and exports the averaged weights at intervals.

One process:  python -m train_shapes.gpt --config target
Two cores:    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m train_shapes.gpt --config target
Draft:        the same with --config draft
Blocks:       the same with --config blocks and blocks-draft, and another --weights that holds the tokenizer too

The tokenizer must be trained first. The work folder (--out) holds the encoded images and a checkpoint, from which a
restarted command continues. The schedule is a wall-clock budget (--minutes).
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from muon import MuonAdamW, update_average
from torch.nn import functional as F
from train_shapes.config import GPT, RUNS, GPTTraining
from train_shapes.data import Codes, caption_features, load_codes, merge_shards, validation, write_shard
from train_shapes.export import export

from mmspec.vision.llamagen.gpt import LlamaGenBlockGPT, LlamaGenGPT
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.domain import CONDITION_SLOTS, FEATURE_DIM, LOOKS, Look
from mmspec.vision.shapes.text import ShapesTextEncoder
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

FOLDERS = {"target": "transformer", "draft": "draft_transformer"}
FOLDERS |= {"blocks": "transformer", "blocks-draft": "draft_transformer"}


@dataclass
class Progress:
    """The state of the training besides tensors.

    Attributes:
        step: Completed steps.
        seconds: Time that they took.
    """

    step: int = 0
    seconds: float = 0.0


class GPTSizes(Protocol):
    """The sizes of a transformer; see `GPTTraining`."""

    @property
    def dim(self) -> int: ...

    @property
    def n_layer(self) -> int: ...

    @property
    def n_head(self) -> int: ...

    @property
    def ffn_dim(self) -> int: ...


def build(
    config: GPTSizes, tokenizer: ShapesTokenizer, slots: int, feature_dim: int, block: int = 1
) -> LlamaGenGPT | LlamaGenBlockGPT:
    """A transformer with initial weights.

    Args:
        config: Its sizes.
        tokenizer: Of its images.
        slots: Condition slots of a caption.
        feature_dim: Features of a slot.
        block: Tokens per side of what a step yields.
    """
    kind = LlamaGenGPT if block == 1 else partial(LlamaGenBlockGPT, (block, block))
    gpt = kind(
        vocab_size=tokenizer.vocab_size, dim=config.dim, n_layer=config.n_layer, n_head=config.n_head,
        ffn_dim=config.ffn_dim, model_type="t2i", cls_token_num=slots, caption_dim=feature_dim,
        grid_size=tokenizer.grid_size // block, rope_base=100.0, qk_norm=True, condition_rope="identity",
        position_embedding=True,
    )  # fmt: skip
    gpt.init_weights()
    # One-hot captions pass through two matrices; with the usual 0.02 in both, condition slots would start near zero.
    torch.nn.init.normal_(gpt.cls_embedding.cap_proj.fc1.weight, std=0.5)
    return gpt


def muon_blocks(name: str) -> int:
    """Row blocks of the matrices that Muon trains: those of the layers, and the last one of the caption embedding."""
    if not name.startswith(("layers.", "cls_embedding.cap_proj.fc2")):
        return 0
    return 3 if "wqkv" in name else 1


def share_gradients(gpt: torch.nn.Module, done: float, world: int) -> float:
    """Averages the gradients over the processes, in place; returns the mean share of the budget that is spent."""
    if world == 1:
        return done
    gradients = [p.grad for p in gpt.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients] + [torch.tensor([done])])
    dist.all_reduce(flat)
    flat /= world
    for gradient, part in zip(gradients, flat[:-1].split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
    return float(flat[-1])


@torch.no_grad()
def bits_per_token(gpt: LlamaGenGPT | LlamaGenBlockGPT, codes: Codes) -> float:
    """Mean negative log-likelihood of held-out tokens in bits, given captions with some values omitted."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for tokens, slots in zip(codes.tokens.long().split(32), codes.slots.split(32), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            logits = gpt(gpt.steps_of(tokens), caption_features(slots, generator))
        total += float(F.cross_entropy(logits.float().flatten(0, -2), gpt.steps_of(tokens).flatten(), reduction="sum"))
    return total / codes.tokens.numel() / math.log(2)


def train(config: GPTTraining, name: str, out: Path, weights: Path, minutes: float, compiled: bool, look: Look) -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    lead = rank == 0
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = ShapesTokenizer.from_pretrained(weights / "vqvae").float().eval()
    if not (out / "codes.pt").exists():
        write_shard(tokenizer, out, rank, world, look)
        if world > 1:
            dist.barrier()
        if lead:
            merge_shards(out, world)
    if world > 1:
        dist.barrier()
    codes, held_out = load_codes(out), validation(tokenizer, 256, look)

    torch.manual_seed(0)
    gpt = build(config, tokenizer, CONDITION_SLOTS, FEATURE_DIM, config.block)
    average = copy.deepcopy(gpt)
    optimizer = MuonAdamW(gpt, muon_blocks, config)
    generator = torch.Generator().manual_seed(1000 + rank)
    progress = Progress()
    checkpoint = out / f"{name}.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        gpt.load_state_dict(state["gpt"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimisers"])
        progress = Progress(state["step"], state["seconds"])
        generator.manual_seed(1000 + rank + world * progress.step)
    if lead:
        export(ShapesTextEncoder(), weights / "text_encoder")

    def save() -> None:
        state = {"gpt": gpt.state_dict(), "average": average.state_dict(), "step": progress.step}
        state |= {"optimisers": optimizer.state_dict(), "seconds": progress.seconds}
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)
        export(average, weights / FOLDERS[name])
        report = (
            f"step {progress.step} images {progress.step * config.batch * world} minutes {progress.seconds / 60:.1f}"
        )
        print(f"{report} held-out {bits_per_token(average, held_out):.4f} bits/token", file=sys.stderr, flush=True)

    forward = torch.compile(gpt) if compiled else gpt
    order = torch.randperm(len(codes.tokens), generator=torch.Generator().manual_seed(progress.step))[rank::world]
    cursor, recent, last_save, last_time, since = 0, 0.0, time.monotonic(), time.monotonic(), time.monotonic()
    done = progress.seconds / (60 * minutes)
    while done < 1:
        if cursor + config.batch > len(order):
            order = torch.randperm(len(codes.tokens), generator=torch.Generator().manual_seed(progress.step))[
                rank::world
            ]
            cursor = 0
        picks = order[cursor : cursor + config.batch]
        cursor += config.batch
        tokens = gpt.steps_of(codes.tokens[picks].long())
        features = caption_features(codes.slots[picks], generator)
        dropped = torch.rand(config.batch, generator=generator) < config.caption_drop
        features[dropped] = gpt.unconditional(int(dropped.sum()))
        with torch.autocast("cpu", torch.bfloat16):
            logits = forward(tokens, features)
        loss = F.cross_entropy(logits.float().flatten(0, -2), tokens.flatten())
        loss.backward()
        done = share_gradients(gpt, progress.seconds / (60 * minutes), world)
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step(progress.step, done)
        update_average(average, gpt, progress.step, config.ema)
        progress.step += 1
        now = time.monotonic()
        progress.seconds += now - last_time
        last_time = now
        recent = 0.98 * recent + 0.02 * loss.item() if recent else loss.item()
        if lead and progress.step % 50 == 0:
            speed = 50 * config.batch * world / (now - since)
            since = now
            left = minutes - progress.seconds / 60
            line = (
                f"step {progress.step} loss {recent / math.log(2):.4f} bits/token {speed:.1f} img/s {left:.1f} min left"
            )
            print(line, file=sys.stderr, flush=True)
        if lead and now - last_save > 60 * config.checkpoint_minutes:
            save()
            last_save = time.monotonic()
    if lead:
        save()
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(GPT), default="target")
    parser.add_argument("--out", type=Path, default=RUNS, help="work folder: codes, checkpoints")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the tokenizer and to export to")
    parser.add_argument("--minutes", type=float, help="wall-clock budget that the learning rate decays over")
    parser.add_argument("--batch", type=int, help="images per process and step")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile (which needs a C++ compiler)")
    parser.add_argument("--look", choices=sorted(LOOKS), default="clean", help="look of the rendered scenes")
    args = parser.parse_args()
    config = GPT[args.config]
    config = replace(config, batch=args.batch or config.batch, minutes=args.minutes or config.minutes)
    train(config, args.config, args.out, args.weights, config.minutes, not args.no_compile, LOOKS[args.look])


if __name__ == "__main__":
    main()
