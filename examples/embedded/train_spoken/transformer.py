"""Trains the transformer of the voice, or its draft model, and saves the averaged weights at every checkpoint.

Command: python -m train_spoken.transformer --config target        (about 22 core-minutes, after prepare_data)
Draft:   the same with --config draft                               (about 4 core-minutes)

A restarted command resumes from the checkpoint in the work folder. The schedule is a budget of CPU time on one core.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from muon import MuonAdamW, update_average
from torch import Tensor
from torch.nn import functional as F
from train_spoken.config import RUNS, TRANSFORMERS, TransformerTraining
from train_spoken.prepare_data import Row, load_encoded
from train_spoken.save import save_module

from mmspec.audio.spoken.config import WEIGHTS
from mmspec.audio.spoken.script import Alphabet
from mmspec.audio.spoken.text import alphabet
from mmspec.audio.spoken.transformer import PHONE_END, STOP, SpokenTransformer

HELD_OUT = 128  # the first encoded sentences are not trained on


@dataclass
class Example:
    """A training sentence.

    Attributes:
        tokens: int64 [T].
        phone_at: Index of the phone at each token, int64 [T].
        age: Number of tokens of the phone before each token, int64 [T].
        features: Features of the script, int64 [J, columns].
    """

    tokens: Tensor
    phone_at: Tensor
    age: Tensor
    features: Tensor


def make_example(row: Row, letters: Alphabet) -> Example:
    """The training sentence of an encoded one."""
    codes, phone_at, script = row[0].long(), row[1].long(), row[2]
    changes = phone_at.diff() > 0
    ends = F.pad(changes, (0, 1), value=True)
    tokens = codes + PHONE_END * ends
    tokens[-1] = STOP
    index = torch.arange(len(codes))
    first = torch.where(F.pad(changes, (1, 0), value=True), index, 0).cummax(0).values
    return Example(tokens, phone_at, index - first, torch.from_numpy(letters.features(script)))


def collate(examples: list[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Padded tokens [B, T] (-100 in the padding), features [B, T, columns] and ages [B, T]."""
    length = max(len(e.tokens) for e in examples)

    def stack(rows: list[Tensor], value: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)[:, :length]

    return (
        stack([e.tokens for e in examples], -100),
        stack([e.features[e.phone_at] for e in examples], 0),
        stack([e.age for e in examples], 0),
    )


def batches(examples: list[Example], size: int, seed: int) -> list[list[Example]]:
    """All examples in random batches of similar length."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(examples))
    result = []
    for first in range(0, len(order), size * 32):
        part = sorted(order[first : first + size * 32], key=lambda i: len(examples[i].tokens))
        result += [[examples[i] for i in part[k : k + size]] for k in range(0, len(part), size)]
    return [result[i] for i in rng.permutation(len(result))]


def batch_loss(net: SpokenTransformer, group: list[Example], reduction: str = "mean") -> Tensor:
    """Cross-entropy of the tokens of a batch."""
    tokens, features, age = collate(group)
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(tokens.clamp(min=0), features, age)
    return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction=reduction)


@torch.no_grad()
def bits_per_token(net: SpokenTransformer, examples: list[Example]) -> float:
    """Mean negative log-likelihood of held-out tokens in bits."""
    total = sum(float(batch_loss(net, group, "sum")) for group in batches(examples, 16, 0))
    return total / sum(len(e.tokens) for e in examples) / math.log(2)


def muon_blocks(name: str) -> int:
    """Row blocks of the matrices that Muon trains, those of the blocks: `qkv` and `up` are fused."""
    if not name.startswith("blocks."):
        return 0
    return 3 if "qkv" in name else 2 if "up" in name else 1


def train(config: TransformerTraining, name: str, out: Path, weights: Path) -> None:
    """Trains a transformer until its budget is spent.

    Args:
        config: Architecture and optimization.
        name: "target" or "draft", the folder of the result in `weights`.
        out: Work folder, with the encoded sentences.
        weights: Folder of the weights.
    """
    torch.manual_seed(0)
    letters = alphabet()
    examples = [make_example(row, letters) for row in load_encoded(out)]
    net = SpokenTransformer(config.dim, config.layers, config.heads, config.hidden, list(letters.sizes))
    net.init_weights()
    average = copy.deepcopy(net)
    optimizer = MuonAdamW(net, muon_blocks, config)
    step, epoch, spent = 0, 0, 0.0
    checkpoint = out / f"{name}.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        net.load_state_dict(state["net"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["updaters"])
        step, epoch, spent = state["step"], state["epoch"] + 1, state["spent"]

    def save() -> None:
        state = {"net": net.state_dict(), "average": average.state_dict(), "step": step, "epoch": epoch, "spent": spent}
        torch.save(state | {"updaters": optimizer.state_dict()}, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)
        save_module(average, weights / name)
        bits = bits_per_token(average, examples[:HELD_OUT])
        print(f"step {step}, {spent / 60:.1f} min: held out {bits:.4f} bits/token", file=sys.stderr, flush=True)

    last, last_save, recent = time.process_time(), spent, 0.0
    while (done := spent / (60 * config.minutes)) < 1:
        for group in batches(examples[HELD_OUT:], config.batch, epoch):
            loss = batch_loss(net, group)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step(step, done)
            update_average(average, net, step, config.ema)
            recent = 0.98 * recent + 0.02 * loss.item() if recent else loss.item()
            step += 1
            now = time.process_time()
            spent, last = spent + now - last, now
            done = spent / (60 * config.minutes)
            if step % 50 == 0:
                left = config.minutes - spent / 60
                line = f"step {step} epoch {epoch} loss {recent / math.log(2):.4f} bits/token, {left:.1f} min left"
                print(line, file=sys.stderr, flush=True)
            if spent - last_save > 60 * config.checkpoint_minutes:
                save()
                last_save = spent
            if done >= 1:
                break
        epoch += 1
    save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(TRANSFORMERS), default="target")
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--minutes", type=float, help="budget in minutes of CPU time on one core")
    args = parser.parse_args()
    config = TRANSFORMERS[args.config]
    train(replace(config, minutes=args.minutes or config.minutes), args.config, args.out, args.weights)


if __name__ == "__main__":
    main()
