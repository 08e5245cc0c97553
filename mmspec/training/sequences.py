"""The target's own sequences, made once and kept on the disk: what drafters are trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.engine import run
from mmspec.files import replacing
from mmspec.recipes import parse
from mmspec.training.prepared import Pipe

RECIPE = "scd"  # exact, and quicker than plain decoding
CHUNK = 16


def write_sequences(
    pipe: Pipe,
    prompts: Sequence[str],
    count: int,
    seed: int,
    folder: Path,
    rank: int = 0,
    ranks: int = 1,
    on_chunk: Callable[[int], None] | None = None,
) -> None:
    """Decodes `count` sequences, those of this rank; chunks that are there already stay.

    Sequence i belongs to prompt i modulo their number, and has seed `seed + i`.

    **Arguments:**

    - `folder`: where the chunks go; each is written whole or not at all.
    - `on_chunk`: called with the number of sequences after each chunk.
    """
    for first in range(rank * CHUNK, count, ranks * CHUNK):
        rows = range(first, min(first + CHUNK, count))
        file = chunk_file(folder, first)
        if readable(file) is None:
            recipe = parse(RECIPE)
            prepared = pipe.prepare([prompts[i % len(prompts)] for i in rows], recipe.window)
            made = run(
                prepared.make(),
                recipe,
                prepared.layout,
                prepared.samplings,
                [seed + i for i in rows],
                prepared.aids,
            )
            with replacing(file) as partial:
                save_file({"tokens": made.tokens.int().cpu().contiguous()}, partial)
        if on_chunk is not None:
            on_chunk(len(rows))


def read_sequences(folder: Path, count: int) -> Tensor:
    """All `count` sequences, int64 [count, N]."""
    chunks = [load_file(chunk_file(folder, first))["tokens"] for first in range(0, count, CHUNK)]
    return torch.cat(chunks)[:count].long()


def chunk_file(folder: Path, first: int) -> Path:
    return folder / f"{first:07d}.safetensors"


def readable(file: Path) -> dict[str, Tensor] | None:
    """What is in a file; None where it is not there, or not whole."""
    try:
        return load_file(file)
    except (OSError, SafetensorError):
        return None
