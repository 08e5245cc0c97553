"""A tiny ImageReward: weights by name, a vocabulary, images and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "dog", "cat", "on", "the", "moon", ",", "##s"]
PROMPTS = ["a red dog", "The cats on the moon, unknown", " ".join(["a dog"] * 30)]
SIDE, PATCH, VISION, TEXT = 32, 16, 64, 128
MED: Mapping[str, Any] = {
    "vocab_size": len(WORDS) + 2, "hidden_size": TEXT, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": TEXT // 64, "max_position_embeddings": 40, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    "pad_token_id": 0, "type_vocab_size": 2, "add_cross_attention": True, "encoder_width": VISION,
    "attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "add_type_embeddings": False,
}  # fmt: skip


def values(name: str, shape: torch.Size) -> torch.Tensor:
    """The parameter of a name, alike in all versions of torch."""
    draws = torch.Generator().manual_seed(sum(map(ord, name)))
    found = torch.randn(shape, generator=draws) * (0.2 if len(shape) > 1 else 0.1)
    return found + 1 if "norm" in name.lower() and name.endswith("weight") else found


def images() -> list[Any]:
    """uint8 [H, W, 3] of three sizes: square, wide and tall, with edges that a wrong crop moves."""
    rng = np.random.default_rng(5)
    return [
        (np.kron(rng.integers(0, 256, (h, w, 3)), np.ones((7, 5, 1)))).astype(np.uint8)
        for h, w in ((10, 14), (6, 21), (13, 8))
    ]


def write_vocabulary(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
