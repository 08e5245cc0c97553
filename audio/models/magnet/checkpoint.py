"""Published MAGNeT folders: `state_dict.bin`, with the settings of its training, and `compression_state_dict.bin`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.models.magnet.model import MagnetConfig, MagnetTransformer
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, read_weights, sizes_of
from mmspec.files.documents import parse_yaml

FILE, CODEC_FILE = "state_dict.bin", "compression_state_dict.bin"
# What the transformer implements; settings that are absent have these values.
_IMPLEMENTED: dict[str, Any] = {
    "transformer_lm.norm_first": True,
    "transformer_lm.activation": "gelu",
    "transformer_lm.positional_embedding": "sin",
    "transformer_lm.norm": "layer_norm",
    "transformer_lm.causal": False,
    "transformer_lm.layer_scale": None,
    "transformer_lm.qk_layer_norm": False,
    "transformer_lm.qk_layer_norm_cross": False,
    "transformer_lm.kv_repeat": 1,
    "codebooks_pattern.modeling": "parallel",
    "fuser.cross_attention_pos_emb": False,
    "fuser.cross": ["description"],
    "fuser.prepend": [],
    "fuser.sum": [],
    "conditioners.description.model": "t5",
    "lm_model": "transformer_lm_magnet",
}


def is_magnet(folder: Path) -> bool:
    """Whether a folder holds a model of audiocraft that transformers has not converted."""
    return (folder / FILE).is_file() and not (folder / "config.json").is_file()


def read_package(file: Path, what: str) -> tuple[dict[str, Any], dict[str, Tensor] | None]:
    """The settings and the weights in a file of audiocraft; a codec's may name a pretrained one instead of weights.

    Raises:
        ModelError: If it cannot be read, or contains neither.
    """
    named, content = f"{what} {str(file)!r}", read_weights(file, what)
    if isinstance(content, dict) and isinstance(content.get("pretrained"), str):
        return {"pretrained": content["pretrained"]}, None
    settings = content.get("xp.cfg") if isinstance(content, dict) else None
    weights = content.get("best_state") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not isinstance(settings, (str, dict)):
        raise ModelError(f"{named} is not a file of audiocraft: it has no 'best_state' and 'xp.cfg'")
    if isinstance(settings, str):
        try:
            settings = parse_yaml(settings, f"xp.cfg of {named}", f"xp.cfg of {named} cannot be read")
        except ArgumentError as error:
            raise ModelError(str(error)) from None
    if not isinstance(settings, dict):
        raise ModelError(f"xp.cfg of {named} contains a {type(settings).__name__} instead of a mapping")
    return settings, {str(name): value for name, value in weights.items() if isinstance(value, Tensor)}


def setting(settings: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A setting by its path, such as "transformer_lm.num_heads"."""
    found: Any = settings
    for key in name.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return default
        found = found[key]
    return found


def number(settings: Mapping[str, Any], name: str, named: str, low: float, high: float) -> float:
    """A number among the settings.

    Raises:
        ModelError: If it is missing or out of range.
    """
    found = setting(settings, name)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not low <= found <= high:
        raise ModelError(f"{named} has {name}={str(found)[:40]!r}; it must be a number from {low:g} to {high:g}")
    return found


def magnet_config(named: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> MagnetConfig:
    """The sizes of a model, most of them by its tensors.

    Raises:
        ModelError: If it is another model, or one with settings that no published MAGNeT has.
    """
    for name, value in _IMPLEMENTED.items():
        if (found := setting(settings, name, value)) != value:
            raise ModelError(f"{named} is not a MAGNeT that mmspec reads: {name} is {str(found)[:40]!r}, not {value!r}")
    with sizes_of(named, "a MAGNeT"):
        codes, dim = tensors["emb.0.weight"].shape
        first = "transformer.layers.0."
        heads = int(number(settings, "transformer_lm.num_heads", named, 1, 1024))
        if dim % heads or dim % 2:
            raise ModelError(f"{named} has num_heads={heads}, which does not divide its width {dim}")
        return MagnetConfig(
            codebooks=count_blocks(tensors, "emb"),
            codes=codes - 1,
            dim=dim,
            heads=heads,
            layers=count_blocks(tensors, "transformer.layers"),
            hidden=len(tensors[f"{first}linear1.weight"]),
            text_dim=tensors["condition_provider.conditioners.description.output_proj.weight"].shape[1],
            seconds=number(settings, "dataset.segment_duration", named, 0.01, 600),
            span=int(number(settings, "masking.span_len", named, 1, 64)),
            context=int(number(settings, "transformer_lm.subcodes_context", named, -1, 10**6)),
            attention_bias=f"{first}self_attn.in_proj_bias" in tensors,
            hidden_bias=f"{first}linear1.bias" in tensors,
            head_bias="linears.0.bias" in tensors,
        )


def read_magnet(folder: Path, device: str, dtype: torch.dtype) -> tuple[MagnetTransformer, str]:
    """The model in a published folder, and the name of its text encoder, such as "t5-base".

    Raises:
        ModelError: If the file cannot be read, or holds another model.
    """
    file = folder / FILE
    named, (settings, tensors) = f"model {str(file)!r}", read_package(file, "model")
    if tensors is None:
        raise ModelError(f"{named} is not a file of audiocraft: it has no weights")
    # Attention that is not fused stores its weights under one more name.
    tensors = {re.sub(r"\.mha\.(in_proj|out_proj)", r".\1", name): value for name, value in tensors.items()}
    config = magnet_config(named, settings, tensors)
    with building(named, "a MAGNeT"):
        model = MagnetTransformer(config)
    check_tensors(named, tensors, model)
    model.load_state_dict(tensors, assign=True)
    encoder = setting(settings, "conditioners.description.t5.name", "t5-base")
    return model.to(device, dtype).eval().requires_grad_(False), str(encoder)
