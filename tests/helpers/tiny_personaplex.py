"""A folder of a tiny PersonaPlex in its published form, its voices and its tokenizer."""

from __future__ import annotations

import io
import json
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_chatterbox import MeanLevels
from torch import Tensor

BOOKS, CODES, TEXTS, DIM, DEPTH = 8, 2048, 20, 32, 16
# As published, `config.json` has no sizes; here it has those that differ.
SIZES: dict[str, Any] = {
    "dim": DIM, "text_card": TEXTS, "num_heads": 2, "num_layers": 2, "context": 29, "depformer_dim": DEPTH,
    "depformer_dim_feedforward": 48, "depformer_num_heads": 2, "depformer_num_layers": 2,
}  # fmt: skip
Codec = partial(MeanLevels, BOOKS, CODES)


class Letters:
    """A tokenizer: an id per letter, which has a text of its own."""

    def encode(self, text: str) -> list[int]:
        return [4 + ord(letter) % 16 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + number) for number in ids)


def state() -> dict[str, Tensor]:
    """Deterministic weights with the names of the published file, of all 16 steps along the depth."""
    main, depth, books = int(4.125 * DIM) * 2 // 3, 48 * 2 // 3, 2 * BOOKS
    shapes: dict[str, tuple[int, ...]] = {
        "text_emb.weight": (TEXTS + 1, DIM), "text_linear.weight": (TEXTS, DIM), "out_norm.alpha": (1, 1, DIM),
        "depformer_text_emb.weight": (TEXTS + 1, DEPTH),
    }  # fmt: skip
    for book in range(books):
        shapes[f"emb.{book}.weight"] = CODES + 1, DIM
        shapes[f"depformer_in.{book}.weight"] = DEPTH, DIM
        shapes[f"linears.{book}.weight"] = CODES, DEPTH
        if book:
            shapes[f"depformer_emb.{book - 1}.weight"] = CODES + 1, DEPTH
    for layer in range(2):
        for name, width, count in (("transformer", DIM, 1), ("depformer", DEPTH, books)):
            stem = f"{name}.layers.{layer}"
            shapes[f"{stem}.norm1.alpha"] = shapes[f"{stem}.norm2.alpha"] = (1, 1, width)
            shapes[f"{stem}.self_attn.in_proj_weight"] = 3 * width * count, width
            shapes[f"{stem}.self_attn.out_proj.weight"] = width * count, width
        for step in ("", *(f".{number}" for number in range(books))):
            stem, width, inner = (
                (f"depformer.layers.{layer}.gating{step}", DEPTH, depth)
                if step
                else (f"transformer.layers.{layer}.gating", DIM, main)
            )
            shapes[f"{stem}.linear_in.weight"] = 2 * inner, width
            shapes[f"{stem}.linear_out.weight"] = width, inner
    generator = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in sorted(shapes.items())}
    return {name: 1 + value / 10 if "alpha" in name else value * 0.4 for name, value in drawn.items()}


def user(frames: int, shift: int = 0) -> Tensor:
    """Codes int64 [frames, 8] of what the user says."""
    return (torch.arange(frames * BOOKS).view(frames, BOOKS) * 37 + shift) % CODES


def personaplex(folder: Path, voice: Any = None) -> Path:
    """Writes the folder; `voice` is the content of the file of its one voice, if it has one."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "personaplex", "version": "tiny", **SIZES}))
    save_file(state(), folder / "model.safetensors")
    if voice is not None:
        content = io.BytesIO()
        torch.save(voice, content)
        info = tarfile.TarInfo("voices/NATF0.pt")
        info.size = content.tell()
        content.seek(0)
        with tarfile.open(folder / "voices.tgz", "w:gz") as archive:
            archive.addfile(info, content)
    return folder
