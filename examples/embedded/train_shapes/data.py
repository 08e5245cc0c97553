"""The training set of the transformers: scenes are rendered and encoded once, captions vary on the fly."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from train_shapes.config import NUM_CODES, SEED_EVAL, SEED_TRAIN
from train_shapes.render import render_batch

from mmspec.vision.shapes.domain import ANY, CLEAN, SLOTS, Look, index_features, sample_scene
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

_CHUNK = 16  # images per encoder call: few enough for the activations to stay in the cache


@dataclass
class Codes:
    """Encoded scenes.

    Attributes:
        tokens: int16 [n, N].
        slots: The canonical captions, int8 [n, slots] indices into `SLOTS`.
    """

    tokens: torch.Tensor
    slots: torch.Tensor


def encode_scenes(tokenizer: ShapesTokenizer, n: int, seed: int, held_out: bool = False, look: Look = CLEAN) -> Codes:
    """Renders and encodes `n` random scenes."""
    rng = random.Random(seed)
    tokens, slots = [], []
    for first in range(0, n, _CHUNK):
        scenes = [sample_scene(rng, held_out, look) for _ in range(min(_CHUNK, n - first))]
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            tokens.append(tokenizer.encode(render_batch(scenes)).to(torch.int16))
        slots.append(torch.tensor([scene.caption.canonical().indices() for scene in scenes], dtype=torch.int8))
        if (first // _CHUNK) % 512 == 511:
            print(f"encoded {first + _CHUNK} of {n}", file=sys.stderr, flush=True)
    return Codes(torch.cat(tokens), torch.cat(slots))


def write_shard(tokenizer: ShapesTokenizer, folder: Path, rank: int, world: int, look: Look = CLEAN) -> None:
    """Encodes the part of the training set that belongs to process `rank` of `world`, and writes it to `folder`."""
    codes = encode_scenes(tokenizer, NUM_CODES // world, SEED_TRAIN + 100 + rank, look=look)
    torch.save({"tokens": codes.tokens, "slots": codes.slots}, folder / f"shard{rank}.pt")


def merge_shards(folder: Path, world: int) -> None:
    """Joins the parts of all processes to codes.pt (int16 [n, N]) and slots.pt (int8 [n, slots])."""
    shards = [torch.load(folder / f"shard{rank}.pt") for rank in range(world)]
    torch.save(torch.cat([shard["slots"] for shard in shards]), folder / "slots.pt")
    torch.save(torch.cat([shard["tokens"] for shard in shards]), folder / "codes.pt")
    for rank in range(world):
        (folder / f"shard{rank}.pt").unlink()


def load_codes(folder: Path) -> Codes:
    return Codes(torch.load(folder / "codes.pt"), torch.load(folder / "slots.pt"))


def validation(tokenizer: ShapesTokenizer, n: int, look: Look = CLEAN) -> Codes:
    """Encoded scenes of held-out object tuples."""
    return encode_scenes(tokenizer, n, SEED_EVAL + 2, held_out=True, look=look)


_OMITTABLE = torch.tensor([ANY in values for _, values in SLOTS])
_ANY_INDEX = torch.tensor([values.index(ANY) if ANY in values else 0 for _, values in SLOTS])
_NONE_INDEX = 0  # of the slots of the second object


def caption_features(slots: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Features [B, T, C] of complete captions int8 [B, slots], with values omitted as in `domain.omit_values`."""
    slots = slots.long()
    everything = torch.rand(len(slots), 1, generator=generator) < 0.15
    drop = (torch.rand(slots.shape, generator=generator) < 0.3) | everything
    second = torch.tensor([name == "size2" for name, _ in SLOTS])
    drop &= _OMITTABLE & ~(second & (slots == _NONE_INDEX))
    return index_features(torch.where(drop, _ANY_INDEX, slots))
