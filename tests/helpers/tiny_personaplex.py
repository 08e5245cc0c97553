"""A folder of a tiny PersonaPlex in its published form, its voices and its tokenizer."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_chatterbox import MeanLevels
from torch import Tensor

BOOKS, CODES = 8, 2048
# As published, `config.json` has no sizes; here it has those that differ.
SIZES: dict[str, Any] = {
    "n_q": 2 * BOOKS, "card": CODES, "dim": 32, "text_card": 20, "num_heads": 2, "num_layers": 2, "context": 30,
    "depformer_dim": 16, "depformer_dim_feedforward": 48, "depformer_num_heads": 2, "depformer_num_layers": 2,
}  # fmt: skip
# The same with 2 codebooks of 2 codes, and 4 text ids.
SMALL = {**SIZES, "n_q": 4, "dep_q": 2, "card": 2, "text_card": 4, "delays": [0, 0, 1, 0, 1]}
Codec = partial(MeanLevels, BOOKS, CODES)


class Letters:
    """A tokenizer: an id per letter, which has a text of its own."""

    def encode(self, text: str) -> list[int]:
        return [4 + ord(letter) % 16 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + number) for number in ids)


def state(sizes: Mapping[str, Any] = SIZES) -> dict[str, Tensor]:
    """Deterministic weights with the names of the published file, of the steps of all codebooks along the depth."""
    dim, depth, books, ids = sizes["dim"], sizes["depformer_dim"], sizes["n_q"], sizes["card"] + 1
    texts, own = sizes["text_card"], sizes["depformer_dim_feedforward"] * 2 // 3
    shapes: dict[str, tuple[int, ...]] = {
        "text_emb.weight": (texts + 1, dim), "text_linear.weight": (texts, dim), "out_norm.alpha": (1, 1, dim),
        "depformer_text_emb.weight": (texts + 1, depth),
    }  # fmt: skip
    gates = [("transformer.layers.{}.gating", dim, int(4.125 * dim) * 2 // 3)]
    for book in range(books):
        shapes[f"emb.{book}.weight"] = ids, dim
        shapes[f"depformer_in.{book}.weight"] = depth, dim
        shapes[f"linears.{book}.weight"] = ids - 1, depth
        if book:
            shapes[f"depformer_emb.{book - 1}.weight"] = ids, depth
        gates.append((f"depformer.layers.{{}}.gating.{book}", depth, own))
    for layer in range(2):
        for name, width, count in (("transformer", dim, 1), ("depformer", depth, books)):
            stem = f"{name}.layers.{layer}"
            shapes[f"{stem}.norm1.alpha"] = shapes[f"{stem}.norm2.alpha"] = (1, 1, width)
            shapes[f"{stem}.self_attn.in_proj_weight"] = 3 * width * count, width
            shapes[f"{stem}.self_attn.out_proj.weight"] = width * count, width
        for gate, width, inner in gates:
            shapes[f"{gate.format(layer)}.linear_in.weight"] = 2 * inner, width
            shapes[f"{gate.format(layer)}.linear_out.weight"] = width, inner
    generator = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in sorted(shapes.items())}
    return {name: 1 + value / 10 if "alpha" in name else value * 0.4 for name, value in drawn.items()}


def user(frames: int, shift: int = 0) -> Tensor:
    """Codes int64 [frames, 8] of what the user says."""
    return (torch.arange(frames * BOOKS).view(frames, BOOKS) * 37 + shift) % CODES


def personaplex(folder: Path, voice: Any = None, sizes: Mapping[str, Any] = SIZES) -> Path:
    """Writes the folder; `voice` is the content of the file of its one voice, if it has one."""
    folder.mkdir(exist_ok=True)
    # The original's KV cache hides one key of its context.
    config = {"model_type": "personaplex", "version": "tiny", **sizes, "context": sizes["context"] - 1}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state(sizes), folder / "model.safetensors")
    if voice is not None:
        content = io.BytesIO()
        torch.save(voice, content)
        info = tarfile.TarInfo("voices/NATF0.pt")
        info.size = content.tell()
        content.seek(0)
        with tarfile.open(folder / "voices.tgz", "w:gz") as archive:
            archive.addfile(info, content)
    return folder
