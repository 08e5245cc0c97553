"""What parallel decoding and caches between steps cost on masked models of the images of `shapes`.

    export PYTHONPATH=../embedded
    python masked_images.py measure -n 24
    python masked_images.py train FOLDER --minutes 1
    python masked_images.py caches FOLDER -n 8

Parallel decoding is measured on a masked model whose joint distribution is known: it is made of 1024 encoded images,
and each result has a likelihood. Caches are measured on diffusers' UVit2DModel, trained on parts of the same images.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch
from diffusers import UVit2DModel
from torch.nn import functional as F
from train_shapes.config import SEED_EVAL, SEED_TRAIN
from train_shapes.data import caption_features, encode_scenes

from mmspec.decoding.to_end import decode_to_end
from mmspec.masked.filter import Watch, train_filter
from mmspec.masked.keeping import Credit, Keeper, NearSure
from mmspec.masked.loop import MaskedBatch
from mmspec.vision.amused.cached import StepCache
from mmspec.vision.amused.process import AmusedProcess, Unmasking
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.domain import FEATURE_DIM, index_features
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

SIDE, CROP, BATCH, STEPS = 16, 8, 16, 16
KNOWN, NOISE = 1024, 0.04
MICRO = torch.tensor([64.0, 64.0, 0.0, 0.0, 6.0])


def conditions(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled features [B, C] and those of the slots [B, T, C], of captions."""
    return features.mean(1), features


def new_model(codes: int) -> UVit2DModel:
    return UVit2DModel(
        hidden_size=64, cond_embed_dim=FEATURE_DIM, micro_cond_encode_dim=2, micro_cond_embed_dim=10,
        encoder_hidden_size=FEATURE_DIM, vocab_size=codes + 1, codebook_size=codes, in_channels=48,
        block_out_channels=48, num_res_blocks=1, block_num_heads=2, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=128, sample_size=CROP,
    )  # fmt: skip


def crops(tokens: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A part of each image, int64 [B, CROP, CROP] of tokens [B, N]."""
    grid = tokens.long().unflatten(1, (SIDE, SIDE))
    corners = torch.randint(SIDE - CROP + 1, (len(grid), 2), generator=generator).tolist()
    return torch.stack([image[y : y + CROP, x : x + CROP] for image, (y, x) in zip(grid, corners, strict=True)])


def train(folder: Path, minutes: float) -> None:
    """Trains on parts of 8 x 8 tokens for some minutes of one core, from the beginning."""
    tokenizer = ShapesTokenizer.from_pretrained(WEIGHTS / "vqvae").float().eval()
    data = encode_scenes(tokenizer, KNOWN, SEED_TRAIN + 100)
    torch.manual_seed(0)
    model, mask, generator = new_model(tokenizer.vocab_size).train(), tokenizer.vocab_size, torch.default_generator
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    start, step, recent = time.process_time(), 0, 0.0
    while (done := (time.process_time() - start) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1, (step + 1) / 20) * (0.02 + 0.98 * math.cos(done * math.pi / 2) ** 2)
        picks = torch.randint(KNOWN, (BATCH,))
        tokens, features = crops(data.tokens[picks], generator), caption_features(data.slots[picks], generator)
        share = torch.cos(torch.rand(BATCH, 1) * math.pi / 2)
        hidden = torch.rand(BATCH, CROP**2).argsort(1).argsort(1) < (share * CROP**2).clamp(min=1)
        states = tokens.flatten(1).masked_fill(hidden, mask).unflatten(1, (CROP, CROP))
        pooled, text = conditions(features)
        logits = model(states, text, pooled, MICRO.expand(BATCH, -1)).flatten(2).transpose(1, 2)
        loss = F.cross_entropy(logits[hidden], tokens.flatten(1)[hidden])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        recent = 0.95 * recent + 0.05 * loss.item() if recent else loss.item()
        if step % 25 == 0:
            print(f"step {step} loss {recent / math.log(2):.3f} bits per hidden token {done:.0%}", file=sys.stderr)
    model.eval().save_pretrained(folder)


class Memory:
    """A masked model whose joint distribution is known: encoded images, each token replaced with probability 4 %.

    Called as a `UVit2DModel`. The image that tokens come from is a hidden variable; its posterior gives the exact
    conditional distributions, so that with one token per step the samples follow the joint distribution.
    """

    device = torch.device("cpu")

    def __init__(self, tokens: torch.Tensor, codes: int) -> None:
        self.tokens, self.codes = tokens, codes
        self.off = NOISE / codes
        self.hit = math.log((1 - NOISE + self.off) / self.off)
        self._index = (torch.arange(tokens.shape[1]) * codes + tokens).flatten()

    def posterior(self, state: torch.Tensor) -> torch.Tensor:
        """The probability of each image, given the known tokens [N]."""
        return ((self.tokens == state).sum(1) * self.hit).softmax(0)

    def __call__(self, states: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
        places, rows = self.tokens.shape[1], []
        for state in states.flatten(1):
            share = self.posterior(state)[:, None].expand(-1, places).flatten()
            rows.append(torch.zeros(places * self.codes).index_add_(0, self._index, share).view(places, -1))
        p = torch.stack(rows) * (1 - NOISE) + self.off
        return p.log().transpose(1, 2).unflatten(2, (SIDE, SIDE))

    def bits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Bits per token of whole images [B, N] under the joint distribution, [B]."""
        matches = (tokens[:, None] == self.tokens).sum(2)
        joint = (matches * self.hit + tokens.shape[1] * math.log(self.off)).logsumexp(1) - math.log(len(self.tokens))
        return -joint / math.log(2) / tokens.shape[1]


@torch.no_grad()
def measure(count: int) -> None:
    tokenizer = ShapesTokenizer.from_pretrained(WEIGHTS / "vqvae").float().eval()
    model = Memory(encode_scenes(tokenizer, KNOWN, SEED_TRAIN + 100).tokens.long(), tokenizer.vocab_size)
    pooled, text = torch.zeros(count, 1), torch.zeros(count, 1, 1)

    def decode(
        first: int, steps: int = STEPS, confidence: float = 1.0, keep: Keeper | None = None, ahead: int = 1
    ) -> tuple[torch.Tensor, float]:
        """Tokens, and calls per image."""
        unmasking = Unmasking(model.codes, steps, True, 2.0, 0.0, confidence)
        seeds = range(first, first + count)
        process = AmusedProcess(model, pooled, text, MICRO, 1.0, (SIDE, SIDE), unmasking, seeds, keep)
        batch = MaskedBatch(process, ahead, seeds)
        return decode_to_end(batch).tokens, float(batch.meter.calls.mean())

    watch = Watch()
    final, _ = decode(10**6, keep=watch)
    features, right = watch.pairs(final)
    print(f"{len(right)} pairs, {right.mean():.0%} final")
    strict, loose = (train_filter(features, right) for _ in range(2))
    strict.sure, loose.sure = 0.9, 0.6
    plain, _ = decode(0)
    own = model.bits(plain)
    exact = model.bits(sample_joint(model, count))
    print(f"{count} images, {STEPS} steps; samples of the joint distribution {exact.mean():.2f} bits per token")
    print("| decoding | calls | bits per token | more than plain |")
    print("| --- | ---: | ---: | ---: |")
    for name, settings in (
        ("plain", {}), ("ahead=3", {"ahead": 3}), ("steps=8", {"steps": 8}), ("steps=4", {"steps": 4}),
        ("confidence=0.9", {"confidence": 0.9}), ("confidence=0.6", {"confidence": 0.6}),
        ("NearSure(0.9, 0.6)", {"keep": NearSure(0.9, 0.6)}), ("Credit(0.9)", {"keep": Credit(0.9)}),
        ("filter, sure=0.9", {"keep": strict}), ("filter, sure=0.6", {"keep": loose}),
    ):  # fmt: skip
        tokens, calls = decode(0, **settings)  # type: ignore[arg-type]
        bits = model.bits(tokens)
        low, high = interval(bits - own)
        change = float((bits - own).mean())
        print(f"| `{name}` | {calls:.1f} | {bits.mean():.2f} | {change:+.2f} [{low:+.2f}, {high:+.2f}] |", flush=True)


def sample_joint(model: Memory, count: int) -> torch.Tensor:
    """Images [count, N] from the joint distribution."""
    tokens = model.tokens[torch.randint(len(model.tokens), (count,), generator=torch.Generator().manual_seed(1))]
    generator = torch.Generator().manual_seed(2)
    noise = torch.rand(tokens.shape, generator=generator) < NOISE
    return torch.where(noise, torch.randint(model.codes, tokens.shape, generator=generator), tokens)


@torch.no_grad()
def caches(folder: Path, count: int) -> None:
    """What reuse between steps changes: distributions of all sampled tokens, on one trajectory of plain decoding."""
    model = UVit2DModel.from_pretrained(folder, low_cpu_mem_usage=False).eval()
    tokenizer = ShapesTokenizer.from_pretrained(WEIGHTS / "vqvae").float().eval()
    data = encode_scenes(tokenizer, count, SEED_EVAL + 2)
    pooled, text = conditions(index_features(data.slots.long()))
    mask, places, micro = model.config.codebook_size, CROP**2, MICRO.expand(count, -1)
    tokens = crops(data.tokens, torch.Generator().manual_seed(1)).flatten(1)
    order = torch.rand(count, places, generator=torch.Generator().manual_seed(0)).argsort(1).argsort(1)
    found = {refresh: StepCache(model, count, refresh) for refresh in (2, 4, STEPS)}
    distances: dict[int, list[torch.Tensor]] = {refresh: [] for refresh in found}
    for step in range(STEPS):
        missing = order < places * math.cos(step / STEPS * math.pi / 2)
        states = tokens.masked_fill(missing, mask).unflatten(1, (CROP, CROP))
        p = model(states, text, pooled, micro).flatten(2).softmax(1)
        for refresh, cache in found.items():
            z = cache.logits(torch.arange(count), step, states, missing, text, pooled, micro)
            distance = (z.flatten(2).softmax(1) - p).abs().sum(1) / 2
            distances[refresh].append(distance[missing])
    print(f"{count} images, {STEPS} steps")
    print("| refresh | places computed | total variation per token | largest |")
    print("| --- | ---: | ---: | ---: |")
    for refresh, cache in found.items():
        tv = torch.cat(distances[refresh])
        print(f"| {refresh} | {cache.computed / cache.places:.0%} | {tv.mean():.4f} | {tv.max():.2f} |")


def interval(values: torch.Tensor) -> tuple[float, float]:
    """The 95 % interval of the mean."""
    generator = torch.Generator().manual_seed(0)
    means = values[torch.randint(len(values), (2000, len(values)), generator=generator)].mean(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "train", "caches"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("masked"))
    parser.add_argument("--minutes", type=float, default=1, help="of training, on one core")
    parser.add_argument("-n", type=int, default=24, help="images")
    args = parser.parse_args()
    if args.command == "train":
        train(args.folder, args.minutes)
    elif args.command == "measure":
        measure(args.n)
    else:
        caches(args.folder, args.n)


if __name__ == "__main__":
    main()
