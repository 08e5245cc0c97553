"""An n-gram table for the recipe `table` and for start tokens, counted from pictures the model has made."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.drafters.follower_table import FollowerTable
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.target import Layout


def count_table(
    pictures: Tensor | None, recipe: Recipe, layout: Layout, first: int, vocab_size: int, device: torch.device
) -> FollowerTable | None:
    """The table of a call, over the loop's tokens; None where no pictures are given.

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
    width, length = layout.width, pictures.shape[1]
    # Without lines, and for a piece of one, the tokens before are all there is.
    width = None if width is None or length < width else width
    tokens = pictures[:, : length if width is None else length // width * width] - first
    wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(wrong):
        raise ArgumentError(
            f"table has the id {int(wrong[0]) + first}, which this call cannot make; it makes {first} to "
            f"{first + vocab_size - 1}"
        )
    return FollowerTable.count(tokens.cpu(), width, vocab_size).to(device)
