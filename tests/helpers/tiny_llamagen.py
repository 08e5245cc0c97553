"""A tiny random LlamaGen transformer."""

from __future__ import annotations

from typing import Any

import torch

from mmspec.vision.llamagen.gpt import LlamaGenGPT

# Slots of a prompt, features of each, size of the vocabulary, side of an image in tokens.
T, C, V, GRID = 5, 7, 12, 3
N = GRID**2


def tiny(seed: int = 0, vocab_size: int = V, grid_size: int = GRID, spread: float = 0.4, **config: Any) -> LlamaGenGPT:
    """A text-to-image transformer with random weights of standard deviation `spread`; `config` changes its sizes."""
    gpt = LlamaGenGPT(
        **{"vocab_size": vocab_size, "dim": 32, "n_layer": 2, "n_head": 2, "ffn_dim": 64, "model_type": "t2i"}
        | {"cls_token_num": T, "caption_dim": C, "grid_size": grid_size}
        | config
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    for p in gpt.parameters():
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=generator) * spread
    return gpt
