"""Block heads in the format of `speculators`, whose algorithms are `dflash` and `dspark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmspec.arguments import shown
from mmspec.errors import ModelError
from mmspec.heads.speculators import (
    PROMPT_SLOTS,
    layer_arguments,
    sliding_arguments,
)


def block_arguments(folder: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `BlockHead` for a configuration of `speculators`.

    Args:
        folder: Where it is from, for errors.
        config: The content of `config.json`.

    Raises:
        ModelError: If the configuration lacks a size, or asks for something that the head does not do.
    """
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping) or not isinstance(config.get("mask_token_id"), int):
        raise ModelError(f"drafter {folder!r} does not state transformer_layer_config and mask_token_id")
    dspark = config["speculators_model_type"] == "dspark"
    arguments = layer_arguments(folder, layer) | {
        "num_hidden_layers": layer.get("num_hidden_layers", 1),
        "layer_ids": config.get("aux_hidden_state_layer_ids") or (),
        "block_size": config.get("block_size", 8),
        "mask_token_id": config["mask_token_id"],
        "sample_from_anchor": bool(config.get("sample_from_anchor", dspark)),
        "draft_vocab_size": config.get("draft_vocab_size"),
        **sliding_arguments(folder, layer),
        "sliding_window_non_causal": bool(config.get("sliding_window_non_causal", False)),
    }
    positions = arguments.get("max_position_embeddings", 4 * PROMPT_SLOTS)
    if not isinstance(positions, int) or positions < 4:
        raise ModelError(
            f"drafter {folder!r} has max_position_embeddings={shown(positions)}; it must be an integer of at least 4"
        )
    arguments["prefix"] = min(PROMPT_SLOTS, positions // 4)  # the other positions are those of tokens
    if dspark:
        arguments["markov_rank"] = config.get("markov_rank", 256)
        arguments["markov_head_type"] = config.get("markov_head_type", "vanilla")
    return arguments
