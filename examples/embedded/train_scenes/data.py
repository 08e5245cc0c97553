"""The training set of the transformers: scenes are rendered and encoded once, captions vary on the fly."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from train_scenes.config import NUM_CODES, SEED_EVAL, SEED_TRAIN
from train_scenes.render import render_batch

from mmspec.vision.scenes.domain import ANY, NONE, SLOTS, index_features, sample_scene
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

_CHUNK = 16  # images per encoder call: few enough for the activations to stay in the cache


@dataclass
class Codes:
    """Encoded scenes.

    Attributes:
        tokens: int16 [n, N].
        slots: The complete captions, int8 [n, slots] indices into `SLOTS`.
    """

    tokens: torch.Tensor
    slots: torch.Tensor


def encode_scenes(tokenizer: ShapesTokenizer, n: int, seed: int, held_out: bool = False) -> Codes:
    """Renders and encodes `n` random scenes."""
    rng = random.Random(seed)
    tokens, slots = [], []
    for first in range(0, n, _CHUNK):
        scenes = [sample_scene(rng, held_out) for _ in range(min(_CHUNK, n - first))]
        tokens.append(tokenizer.encode(render_batch(scenes)).to(torch.int16))
        slots.append(torch.tensor([scene.caption.indices() for scene in scenes], dtype=torch.int8))
        if (first // _CHUNK) % 512 == 511:
            print(f"encoded {first + _CHUNK} of {n}", file=sys.stderr, flush=True)
    return Codes(torch.cat(tokens), torch.cat(slots))


def training_set(tokenizer: ShapesTokenizer, folder: Path) -> Codes:
    """The encoded training set, from codes.pt in `folder`, which is written if it does not exist."""
    file = folder / "codes.pt"
    if not file.exists():
        codes = encode_scenes(tokenizer, NUM_CODES, SEED_TRAIN + 100)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"tokens": codes.tokens, "slots": codes.slots}, file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)
    saved = torch.load(file)
    return Codes(saved["tokens"], saved["slots"])


def validation(tokenizer: ShapesTokenizer, n: int) -> Codes:
    """Encoded scenes of held-out combinations."""
    return encode_scenes(tokenizer, n, SEED_EVAL + 2, held_out=True)


_OMITTABLE = torch.tensor([ANY in values for _, values in SLOTS])
_ANY_INDEX = torch.tensor([values.index(ANY) if ANY in values else 0 for _, values in SLOTS])
_NONE_INDEX = torch.tensor([values.index(NONE) if NONE in values else -1 for _, values in SLOTS])


def caption_features(slots: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Features [B, T, C] of complete captions int8 [B, slots], with values omitted as in `domain.omit_values`."""
    slots = slots.long()
    drop = torch.rand(slots.shape, generator=generator) < 0.25
    drop &= _OMITTABLE & (slots != _NONE_INDEX)
    return index_features(torch.where(drop, _ANY_INDEX, slots))
