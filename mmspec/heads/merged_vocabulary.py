"""Draft heads whose vocabulary is that of a verifier which reads text and generates codes, such as CosyVoice in vLLM.

Such a verifier numbers its text tokens first and its codes after them, in one embedding and one LM head. The loop of
mmspec generates codes only, so that a head is cut to them: text tokens are never drafted there, and their weights are
dropped. The tokens that are left follow the head's distribution given that the token is a code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ModelError


@dataclass(frozen=True)
class MergedVocabulary:
    """How a verifier numbers the target's tokens.

    Attributes:
        first: Its id of the target's token 0; those of the next ones follow.
        texts: The embedding of its text tokens [T, D]; T may be less than `first`.
    """

    first: int
    texts: Tensor


def cut_to_codes(
    folder: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], merged: MergedVocabulary, embedding: Tensor
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and tensors of a head of `speculators`, renumbered for a target that generates codes only.

    Args:
        folder: Where it is from, for errors.
        config: The content of `config.json`.
        tensors: The tensors, by the names of `speculators`.
        merged: How the verifier numbers the codes.
        embedding: Embedding [V, D] of the target's tokens.

    Returns:
        Both, with `vocab_size` V. The mask token of a block head, a text token, becomes token V.

    Raises:
        ModelError: If the vocabulary has no place for the codes, no code is drafted, or the mask token is unknown.
    """
    layer_key = "transformer_layer_config" if "transformer_layer_config" in config else None
    layer = dict(config[layer_key]) if layer_key else dict(config)
    count, first, whole = len(embedding), merged.first, layer.get("vocab_size")
    if not isinstance(whole, int) or whole < first + count:
        raise ModelError(
            f"drafter {folder!r} has a vocabulary of {whole} tokens; the model's {count} codes would be those from "
            f"{first} on"
        )
    tensors = dict(tensors)
    d2t = tensors.get("d2t")
    drafted = torch.arange(whole) if d2t is None else d2t.long() + torch.arange(len(d2t))
    kept = ((drafted >= first) & (drafted < first + count)).nonzero()[:, 0]
    if not len(kept):
        raise ModelError(f"drafter {folder!r} drafts no token from {first} on, where the model's codes are")
    tokens = drafted[kept] - first
    # A reduced vocabulary that is left whole is none, unless it has another order.
    reduced = len(kept) < count or not torch.equal(tokens, torch.arange(count))
    if reduced and len(kept) == count:
        raise ModelError(f"drafter {folder!r} drafts all {count} codes in another order than the model's")
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        if name in tensors:
            tensors[name] = tensors[name][kept]
    if "markov_head.markov_w1.weight" in tensors:
        tensors["markov_head.markov_w1.weight"] = tensors["markov_head.markov_w1.weight"][first : first + count]
    tensors.pop("d2t", None)
    tensors.pop("t2d", None)
    if reduced:
        tensors["d2t"] = tokens - torch.arange(len(kept))
        tensors["t2d"] = torch.zeros(count, dtype=torch.bool).scatter_(0, tokens, True)
    own = tensors.get("embed_tokens.weight")
    codes = embedding if own is None else own[first : first + count]
    changed: dict[str, Any] = {**config, "draft_vocab_size": len(kept)}
    mask = config.get("mask_token_id")
    if mask is not None:
        texts = merged.texts if own is None else own
        if not isinstance(mask, int) or not 0 <= mask < (len(texts) if own is not None else min(first, len(texts))):
            raise ModelError(f"drafter {folder!r} has the mask token {mask}, which is no text token of the model")
        codes = torch.cat([codes, texts[mask : mask + 1].to(codes)])
        changed["mask_token_id"] = count
    tensors["embed_tokens.weight"] = codes
    layer["vocab_size"] = count
    return (changed | {layer_key: layer} if layer_key else changed | layer | {"draft_vocab_size": len(kept)}), tensors
