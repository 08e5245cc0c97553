"""Tiny VARs with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from mmspec.vision.var import VARPipeline
from mmspec.vision.var.tokenizer import VARTokenizer
from mmspec.vision.var.transformer import VARTransformer

SIDES = (1, 2, 3, 4)
M = TypeVar("M", bound=torch.nn.Module)


def tiny_var(seed: int = 0, dim: int = 16, depth: int = 2, shared_aln: bool = False) -> VARTransformer:
    """Five classes, codes of 8 numbers from a codebook of 24."""
    model = VARTransformer(SIDES, dim, depth, 2, 24, 8, 5, shared_aln=shared_aln)
    return _randomized(model, seed, 0.3)


def tiny_tokenizer(seed: int = 0, sides: Sequence[int] = SIDES) -> VARTokenizer:
    """Images of 8x8 pixels."""
    return _randomized(VARTokenizer(sides, 24, 8, (8, 8), 1, 4, 4), seed, 0.2)


def tiny_var_pipeline(small: bool = True) -> VARPipeline:
    """A pipeline with a draft transformer of half the width."""
    pipe = VARPipeline(tiny_var(), tiny_tokenizer(), tiny_var(1, 8, 1) if small else None, top_k=0, top_p=1.0)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _randomized(model: M, seed: int, std: float) -> M:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std, generator=generator)
    return model.eval()
