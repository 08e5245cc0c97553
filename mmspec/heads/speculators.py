"""Draft heads in the format of the package `speculators` (0.9.0), which vLLM runs.

A folder has `model.safetensors` and a `config.json` with `speculators_model_type`: the algorithm (`eagle3`, `dflash` or
`dspark`), its options, the configuration of its layers in the terms of transformers, and the verifier, which is the
model that the drafter is for. Weights that are equal to the verifier's may be missing.

EAGLE-3 heads of AngelSlim and of the original EAGLE code have the same tensors, but for the name of the layer, and a
flat configuration of Llama.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.arguments import shown
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.heads.head import Head

VERSION = "0.9.0"  # of the package whose classes define the format
EAGLE3_CLASSES = ("Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3")  # `architectures` of AngelSlim and SpecForge
PROMPT_SLOTS = 512  # of a prompt that a block head reads, the last ones; vLLM's read all of them
_SIZES = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "attention_bias", "max_position_embeddings",
)  # fmt: skip
FULL, SLIDING = "full_attention", "sliding_attention"  # of `layer_types`; the package trains with the second by default
_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# Tensors that only training needs.
_UNUSED = ("verifier_lm_head.", "verifier_norm.", "confidence_head.")


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is that of an EAGLE-3 head, of `speculators` or of AngelSlim."""
    if (algorithm := config.get("speculators_model_type")) is not None:
        return bool(algorithm == "eagle3")
    return any(name in EAGLE3_CLASSES for name in config.get("architectures") or ())


def vocabulary_of(config: Mapping[str, Any]) -> int | None:
    """The size of the vocabulary of a head of `speculators` or AngelSlim; None for other heads."""
    if not is_foreign(config):
        return None
    layer = config.get("transformer_layer_config", config)
    size = layer.get("vocab_size") if isinstance(layer, Mapping) else None
    return size if isinstance(size, int) else None


def eagle3_arguments(folder: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Eagle3Head` for a configuration of `speculators` or AngelSlim.

    Args:
        folder: Where it is from, for errors.
        config: The content of `config.json`.

    Raises:
        ModelError: If the configuration lacks a size, or asks for something that the head does not do.
    """
    layer = config.get("transformer_layer_config", config)
    if not isinstance(layer, Mapping):
        raise ModelError(f"drafter {folder!r} has no readable transformer_layer_config")
    arguments = layer_arguments(folder, layer)
    if (family := layer.get("model_type")) not in ("llama", "qwen3"):
        raise ModelError(
            f"drafter {folder!r} has layers of {shown(family)}; EAGLE-3 heads have those of llama or qwen3"
        )
    if (layers := layer.get("num_hidden_layers", 1)) != 1:
        raise ModelError(f"drafter {folder!r} has num_hidden_layers={layers}; an EAGLE-3 head has one layer here")
    if (width := config.get("target_hidden_size")) not in (None, arguments["hidden_size"]):
        raise ModelError(f"drafter {folder!r} has target_hidden_size={width}; it must equal hidden_size")
    arguments |= {name: bool(config.get(name, False)) for name in _OPTIONS}
    if sliding := sliding_arguments(folder, layer):
        arguments["sliding_window"] = sliding["sliding_window"]
    layer_ids = config.get("eagle_aux_hidden_state_layer_ids")
    named = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if layer_ids is None and named is not None:  # of SpecForge, which counts the layers from 0 and means their outputs
        layer_ids = [number + 1 for number in named]
    return arguments | {
        "layer_ids": layer_ids,
        "draft_vocab_size": config.get("draft_vocab_size"),
        "qk_norm": family == "qwen3",
    }


def is_foreign(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is that of a head of `speculators` or of AngelSlim."""
    return config.get("speculators_model_type") is not None or is_eagle3(config)


def layer_arguments(folder: str, layer: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that all heads share, of a configuration of layers.

    Raises:
        ModelError: If a size is missing, or the layers do what those of a head do not.
    """
    if missing := [name for name in ("vocab_size", *_SIZES[:3]) if not isinstance(layer.get(name), int)]:
        raise ModelError(f"drafter {folder!r} does not state {', '.join(missing)}")
    rope = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else rope
    for name, value, allowed in (
        ("hidden_act", layer.get("hidden_act", "silu"), "silu"),
        ("rope_type", kind, "default"),
        ("mlp_bias", bool(layer.get("mlp_bias", False)), False),
    ):
        if value != allowed:
            raise ModelError(f"drafter {folder!r} has {name}={shown(value)}, which is not supported; only {allowed} is")
    arguments = {name: layer[name] for name in _SIZES if layer.get(name) is not None}
    theta = rope.get("rope_theta", layer.get("rope_theta", 10000.0))
    return arguments | {"vocab_size": layer["vocab_size"], "rope_theta": float(theta)}


def sliding_arguments(folder: str, layer: Mapping[str, Any]) -> dict[str, Any]:
    """The layers with a sliding window, `sliding_layers`, and its width, `sliding_window`; nothing if there are none.

    Raises:
        ModelError: If the kind of a layer or the width is not known.
    """
    count, types = layer.get("num_hidden_layers", 1), layer.get("layer_types")
    if types is None:
        return {}
    if len(types) != count or any(kind not in (FULL, SLIDING) for kind in types):
        raise ModelError(
            f"drafter {folder!r} has layer_types={shown(types)}; each of the {count} must be {FULL} or {SLIDING}"
        )
    if SLIDING not in types:
        return {}
    if not isinstance(width := layer.get("sliding_window"), int) or width < 1:
        raise ModelError(
            f"drafter {folder!r} has {SLIDING} with sliding_window={shown(width)}; it must be a positive integer"
        )
    return {"sliding_layers": [i for i, kind in enumerate(types) if kind == SLIDING], "sliding_window": width}


def head_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a head, by the names of `speculators`, without those that only training needs."""
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in renamed.items() if not name.startswith(_UNUSED)}


def check_vocabulary(folder: str, tensors: Mapping[str, Tensor], vocab_size: int) -> None:
    """Checks the map of the draft vocabulary: `d2t` and `t2d` agree.

    Raises:
        ModelError: If a draft token is no token of the target, or the maps differ.
    """
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None or t2d is None or d2t.ndim != 1 or t2d.shape != (vocab_size,):
        raise ModelError(f"drafter {folder!r} has a reduced vocabulary, but no maps d2t and t2d of fitting sizes")
    tokens = d2t.long() + torch.arange(len(d2t))
    inside = bool(((tokens >= 0) & (tokens < vocab_size)).all())
    if not inside or not torch.equal(tokens.sort().values, t2d.nonzero()[:, 0]):
        raise ModelError(f"drafter {folder!r} has maps d2t and t2d that disagree about its vocabulary")


class SpeculatorsHead(Head):
    """A head other than EAGLE-3 that the format knows; it shares the verifier's embedding."""

    head_dim: int
    grid_size: int | None
    max_position_embeddings: int
    rope_theta: float
    norm: Any

    @property
    def count(self) -> int:
        """Tokens that it drafts."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        raise NotImplementedError

    def speculators_config(self) -> dict[str, Any]:
        """The part of `config.json` that depends on the head.

        Raises:
            ArgumentError: If the head does something that the format does not state.
        """
        raise NotImplementedError


def write_speculators(
    head: Eagle3Head | SpeculatorsHead,
    folder: Path,
    verifier: str | None,
    architectures: Sequence[str],
    layers: int,
    speculative_tokens: int | None = None,
) -> None:
    """Writes a head in the format of `speculators`.

    Args:
        folder: An existing folder.
        verifier: Path or Hub id of the model that the drafter is for.
        architectures: `architectures` of that model's configuration.
        layers: Its number of layers.
        speculative_tokens: Tokens that vLLM drafts by default; None for 4, or a block.

    Raises:
        ArgumentError: If the head does something that vLLM does not, such as a 2-D rotary embedding.
    """
    if head.grid_size is not None:
        raise ArgumentError(
            f"the drafter has a 2-D rotary embedding (grid_size={head.grid_size}), which vLLM does not have; train one "
            "with --rotary 1d"
        )
    own = isinstance(head, Eagle3Head)
    config = eagle3_config(head, layers) if isinstance(head, Eagle3Head) else head.speculators_config()
    config |= {
        "dtype": str(head.dtype).removeprefix("torch."),
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": config["speculators_model_type"],
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": speculative_tokens or (4 if isinstance(head, Eagle3Head) else head.count),
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": list(architectures)},
        },
        "target_hidden_size": None,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # Other heads share the verifier's embedding, and its LM head unless the vocabulary is reduced.
    tensors = {name: x.contiguous() for name, x in head.state_dict().items() if own or not name.startswith("embed")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def eagle3_config(head: Eagle3Head, layers: int) -> dict[str, Any]:
    """The part of `config.json` that depends on an EAGLE-3 head."""
    layer = head.layer
    attention = layer.self_attn
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": head.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(head.layers_of(layers)),
        "embed_requires_grad": False,
        "fc_norm": head.fc_norm is not None,
        "norm_before_fc": head.input_norm is not None,
        "norm_before_residual": layer.norm_before_residual,
        "norm_output": head.norm_output,
        "transformer_layer_config": {
            "model_type": "llama" if attention.q_norm is None else "qwen3",
            "num_hidden_layers": 1,
            "num_key_value_heads": head.heads,
            **layer_config(head, layer.mlp.gate_proj.out_features, attention.q_proj),
            **attention_config([head.sliding_window is not None], head.sliding_window),
        },
    }


def layer_config(head: Eagle3Head | SpeculatorsHead, intermediate_size: int, queries: nn.Linear) -> dict[str, Any]:
    """The part of `transformer_layer_config` that all heads share."""
    return {
        "vocab_size": head.vocab_size,
        "hidden_size": head.hidden_size,
        "intermediate_size": intermediate_size,
        "num_attention_heads": queries.out_features // head.head_dim,
        "head_dim": head.head_dim,
        "hidden_act": "silu",
        "attention_bias": queries.bias is not None,
        "max_position_embeddings": head.max_position_embeddings,
        "rms_norm_eps": head.norm.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": head.rope_theta},
        "tie_word_embeddings": False,
    }


def attention_config(sliding: Sequence[bool], width: int | None) -> dict[str, Any]:
    """The part of `transformer_layer_config` that says which layers have a sliding window, and its width."""
    return {
        "layer_types": [SLIDING if one else FULL for one in sliding],
        "sliding_window": width if any(sliding) else None,
        "use_sliding_window": any(sliding),
    }
