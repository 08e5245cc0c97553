"""An n-gram table for the recipe `table` and for start tokens, counted from images the model has made."""

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
    """The table of a call, over the loop's tokens; None where no images are given.

    Args:
        images: int64 [n, N] of the model's ids, new tokens of calls like this one.
        layout: The sequence to be made.
        first: The model's id of the loop's token 0.
        vocab_size: V.
        device: Where the loop's tokens are.

    Raises:
        ArgumentError: When the recipe needs images and there are none, or when they are not of this call.
    """
    if images is None:
        if recipe.needs_table:
            raise ArgumentError(
                f"recipe '{recipe}' needs a table; pass table=, the new tokens of images that a call like this one "
                "made, int64 [n, N]: ids = model.generate(...), then table=ids[:, length of the prompt:]"
            )
        return None
    if images.ndim != 2 or images.is_floating_point() or not images.numel():
        raise ArgumentError(
            f"table has shape {list(images.shape)} and dtype {images.dtype}; it must be int64 [n, N], the new "
            "tokens of images"
        )
    width, length = layout.width, images.shape[1]
    # Without lines, and for a piece of one, the tokens before are all there is.
    width = None if width is None or length < width else width
    tokens = images[:, : length if width is None else length // width * width] - first
    wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(wrong):
        raise ArgumentError(
            f"table has the id {int(wrong[0]) + first}, which this call cannot make; it makes {first} to "
            f"{first + vocab_size - 1}"
        )
    return SparseNGramTable.count(tokens.cpu(), width, vocab_size).to(device)
