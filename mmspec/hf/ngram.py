"""An n-gram table for the recipe `table` and for initial draft tokens, counted from images of the model."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.drafters.sparse_ngram import SparseNGramTable
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe


def count_table(
    images: Tensor | None, recipe: Recipe, layout: Layout, first: int, vocab_size: int, device: torch.device
) -> SparseNGramTable | None:
    """The n-gram table of a call, over the loop's tokens; None without images.

    Args:
        images: int64 [n, N], the new ids of earlier calls with the same arguments.
        layout: The sequence to generate.
        first: The model's id of the loop's token 0.
        vocab_size: V.
        device: The device of the loop's tokens.

    Raises:
        ArgumentError: If the recipe needs a table and no images are given, or the images have another shape, or ids
            that this call cannot generate.
    """
    if images is None:
        if recipe.needs_table:
            raise ArgumentError(
                f"recipe '{recipe}' needs a table; pass table=, the new ids of images from earlier calls, "
                "int64 [n, N]: ids = model.generate(...), then table=ids[:, length of the prompt:]"
            )
        return None
    if images.ndim != 2 or images.is_floating_point() or not images.numel():
        raise ArgumentError(
            f"table has shape {list(images.shape)} and dtype {images.dtype}; it must be int64 [n, N], the new "
            "ids of images"
        )
    width, length = layout.width, images.shape[1]
    # Without lines, and for less than a line, only the tokens before count as neighbours.
    width = None if width is None or length < width else width
    tokens = images[:, : length if width is None else length // width * width] - first
    wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(wrong):
        raise ArgumentError(
            f"table has the id {int(wrong[0]) + first}, which this call cannot generate; its ids are {first} to "
            f"{first + vocab_size - 1}"
        )
    return SparseNGramTable.count(tokens.cpu(), width, vocab_size).to(device)
