"""The components of a LlamaGen pipeline: an n-gram table, whether all belong together, a draft transformer to train."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.vision.component import Component, stores_arguments
from mmspec.vision.llamagen.codes import codebook_size
from mmspec.vision.llamagen.transformer import CaptionEmbedder, LlamaGenTransformer


class NGramTokens(Component):
    """A saved n-gram table.

    Args:
        vocab_size: V.

    Attributes:
        best: int16 [V + 1, V], the most likely token for each upper and left neighbor; see
            `mmspec.drafters.ngram.NGramTable`.
    """

    saved_as = "NGramTokenTable"
    best: Tensor

    @stores_arguments
    def __init__(self, vocab_size: int = 1000) -> None:
        super().__init__()
        self.register_buffer("best", torch.zeros(vocab_size + 1, vocab_size, dtype=torch.int16))


def check_codes(
    transformer: LlamaGenTransformer,
    vqvae: nn.Module | None,
    draft_transformer: LlamaGenTransformer | None,
    table: NGramTokens | None,
) -> None:
    """Checks that components have the transformer's codes.

    Raises:
        ArgumentError: If one has another number of codes.
    """
    codes = transformer.config.vocab_size
    for name, count in (
        ("vqvae", None if vqvae is None else codebook_size(vqvae)),
        ("draft_transformer", None if draft_transformer is None else draft_transformer.config.vocab_size),
        ("table", None if table is None else table.config.vocab_size),
    ):
        if count is not None and count != codes:
            raise ArgumentError(f"{name} has {count} codes, the transformer {codes}; they do not belong together")
    if draft_transformer is not None and draft_transformer.grid != transformer.grid:
        raise ArgumentError(
            f"draft_transformer draws {draft_transformer.grid} tokens, the transformer {transformer.grid}; they do not "
            "belong together"
        )
    if draft_transformer is not None and draft_transformer.cell != transformer.cell:
        raise ArgumentError("draft_transformer yields other blocks than the transformer; they do not belong together")
    if table is not None and transformer.cell:
        raise ArgumentError("table is not allowed for a transformer that yields blocks: it follows single tokens")


def smaller(transformer: LlamaGenTransformer, draft_transformer: LlamaGenTransformer | None) -> LlamaGenTransformer:
    """A copy of the draft transformer, or a new one with one layer and half the width of the transformer.

    Raises:
        ArgumentError: If the transformer yields blocks, whose draft models are not trained by mmspec's commands.
    """
    if transformer.cell:
        raise ArgumentError("no small model can be trained here: this model generates several tokens at once")
    if draft_transformer is not None:
        return copy.deepcopy(draft_transformer)
    c = {name: value for name, value in transformer.config.items() if not name.startswith("_")}
    heads = max(c["n_head"] // 2, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small = type(transformer)(
            **c | {"dim": c["dim"] // c["n_head"] * heads, "n_head": heads, "n_layer": 1, "ffn_dim": None}
        )
        small.init_weights()
    if isinstance(small.cls_embedding, CaptionEmbedder):
        embedder: Any = transformer.cls_embedding
        small.cls_embedding.uncond_embedding.copy_(embedder.uncond_embedding)
    return small.to(transformer.device)
