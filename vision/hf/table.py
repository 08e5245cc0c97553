"""An n-gram table for the recipe `table` and for start tokens, counted from pictures the model has made."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.drafters.start import NGramTable
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.target import Layout


def count_table(
    pictures: Tensor | None, recipe: Recipe, layout: Layout, first: int, vocab_size: int, device: torch.device
) -> NGramTable | None:
    """The table of a call, over the loop's tokens; None where no pictures are given.

    It holds V * (V + 1) numbers, V being the ids from the lowest to the highest that the call allows.

    **Arguments:**

    - `pictures`: int64 [n, N] of the model's ids, new tokens of calls like this one.
    - `layout`: the sequence to be made; `first`: the model's id of the loop's token 0; `vocab_size`: V; `device`: where
      the loop's tokens are.

    **Raises:** `ArgumentError` when the recipe needs pictures and there are none, or when they are not of this call.
    """
    if pictures is None:
        if recipe.info.drafter == "table" or recipe.knobs.get("start") == "table":
            raise ArgumentError(
                f"recipe '{recipe}' needs a table; pass table=, the new tokens of pictures that a call like this one "
                "made, int64 [n, N]: ids = model.generate(...), then table=ids[:, length of the prompt:]"
            )
        return None
    if pictures.ndim != 2 or pictures.is_floating_point() or not pictures.numel():
        raise ArgumentError(
            f"table has shape {list(pictures.shape)} and dtype {pictures.dtype}; it must be int64 [n, N], the new "
            "tokens of pictures"
        )
    # Without lines, and for a piece of a picture, the token before is all there is.
    width = min(layout.width or pictures.shape[1], pictures.shape[1])
    tokens = pictures[:, : pictures.shape[1] // width * width] - first
    wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(wrong):
        raise ArgumentError(
            f"table has the id {int(wrong[0]) + first}, which this call cannot make; it makes {first} to "
            f"{first + vocab_size - 1}"
        )
    return NGramTable(NGramTable.count(tokens.cpu(), width, vocab_size).best.to(device))
