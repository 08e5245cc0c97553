"""The target's own sequences, made once and kept on the disk: what drafters are trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.engine import run
from mmspec.files import replacing
from mmspec.recipes import parse
from mmspec.training.objectives import feature_target, teacher_features
from mmspec.training.prepared import Pipe

RECIPE = "scd"  # exact, and quicker than plain decoding
CHUNK = 16


@dataclass(frozen=True)
class Sequences:
    """Sequences of the target's own.

    Attributes:
        tokens: int64 [n, N].
        features: What they were drawn from, float16 [n, sides, N, D]; None where they are to be read when needed.
    """

    tokens: Tensor
    features: Tensor | None

    def features_of(self, picks: list[int]) -> Tensor | None:
        """Those of some sequences as a target gives them, float32 [R, N, D]."""
        return None if self.features is None else self.features[picks].transpose(0, 1).flatten(0, 1).float()


def write_sequences(
    pipe: Pipe,
    prompts: Sequence[str],
    count: int,
    seed: int,
    folder: Path,
    features: bool = True,
    rank: int = 0,
    ranks: int = 1,
    on_chunk: Callable[[int], None] | None = None,
) -> None:
    """Decodes `count` sequences, those of this rank; chunks that are there already stay.

    Sequence i belongs to prompt i modulo their number, and has seed `seed + i`.

    Args:
        folder: Where the chunks go; each is written whole or not at all.
        features: Keep the target's features too, which are large, so that it need not read the sequences again.
        on_chunk: Called with the number of sequences after each chunk.
    """
    for first in range(rank * CHUNK, count, ranks * CHUNK):
        rows = range(first, min(first + CHUNK, count))
        file, mine = chunk_file(folder, first), [prompts[i % len(prompts)] for i in rows]
        chunk = readable(file)
        if "tokens" not in chunk:
            chunk["tokens"] = decode(pipe, mine, [seed + i for i in rows]).int().cpu()
        elif not features or "features" in chunk:
            chunk = {}
        if features and chunk:
            found = teacher_features(feature_target(pipe.prepare(mine, 1)), chunk["tokens"].long())
            sides = found.unflatten(0, (-1, len(rows))).transpose(0, 1)
            chunk["features"] = sides.half().cpu().contiguous()
        if chunk:
            with replacing(file) as partial:
                save_file(chunk, partial)
        if on_chunk is not None:
            on_chunk(len(rows))


def decode(pipe: Pipe, prompts: Sequence[str], seeds: Sequence[int]) -> Tensor:
    """The tokens of prompts with the pipeline's default settings, int64 [B, N]."""
    recipe = parse(RECIPE)
    ready = pipe.prepare(prompts, recipe.window)
    return run(ready.make(), recipe, ready.layout, ready.samplings, seeds, ready.resources).tokens


def read_sequences(folder: Path, count: int, features: bool = True) -> Sequences:
    """All `count` sequences."""
    chunks = [load_file(chunk_file(folder, first)) for first in range(0, count, CHUNK)]
    tokens = torch.cat([chunk["tokens"] for chunk in chunks])[:count].long()
    return Sequences(tokens, torch.cat([chunk["features"] for chunk in chunks])[:count] if features else None)


def chunk_file(folder: Path, first: int) -> Path:
    return folder / f"{first:07d}.safetensors"


def readable(file: Path) -> dict[str, Tensor]:
    """What is in a file; nothing where it is not there, or not whole."""
    try:
        return load_file(file)
    except (OSError, SafetensorError):
        return {}
