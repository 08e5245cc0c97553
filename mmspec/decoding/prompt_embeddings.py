"""Embeddings of windows with prompt tokens; see `mmspec.decoding.target.PromptTarget`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.errors import ModelError


def check_prompts(prompts: Tensor, width: int) -> Tensor:
    """Returns the embeddings of prompt tokens, [m, D].

    Raises:
        ModelError: If D is not the width of the model's embeddings.
    """
    if prompts.shape[1] != width:
        raise ModelError(
            f"drafter has prompt tokens of width {prompts.shape[1]}, the model embeddings of {width}; they must match"
        )
    return prompts


def embed_with_prompts(
    embed: Callable[[Tensor], Tensor], prompts: Tensor | None, tokens: Tensor, vocab_size: int
) -> Tensor:
    """Embeddings [R, W, D] of ids int64 [R, W], where an id V + i is prompt token i.

    Args:
        embed: Embeds tokens.
        prompts: The embeddings of the prompt tokens, [m, D]; None if there are none.
        tokens: The ids.
        vocab_size: V.
    """
    if prompts is None:
        return embed(tokens)
    embeds, index = embed(tokens.clamp(max=vocab_size - 1)), (tokens - vocab_size).clamp(min=0)
    return torch.where((tokens >= vocab_size)[..., None], prompts.to(embeds)[index], embeds)
