"""Original LlamaGen checkpoints in every published form, read without running code from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers import ModelMixin
from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.files import checkpoint
from mmspec.files.checkpoint import building, check_tensors, count_blocks, sizes_of
from mmspec.files.documents import read_object
from mmspec.media.listing import list_files
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.transformer import MAX_GRID

Config = Mapping[str, Any]
Model = TypeVar("Model", bound=ModelMixin)

# (layers, width) of the published sizes -> heads, which cannot be inferred from shapes.
_HEADS = {(12, 768): 12, (24, 1024): 16, (36, 1280): 20, (48, 1536): 24, (24, 3200): 32}
_NAMES = ("c2i_B", "c2i_L", "c2i_XL", "c2i_XXL", "c2i_3B", "t2i_XL_stage1", "t2i_XL_stage2")
_WRAPPERS = ("model", "module", "state_dict")
# Original argument names -> those of LlamaGenGPT. The others concern training only.
_ARGUMENTS = {
    "dim": "dim",
    "n_layer": "n_layer",
    "n_head": "n_head",
    "rope_base": "rope_base",
    "norm_eps": "norm_eps",
    "num_classes": "num_classes",
    "caption_dim": "caption_dim",
    "model_type": "model_type",
    "vocab_size": "vocab_size",
    "cls_token_num": "cls_token_num",
}
# The converted layout has the names of transformers' Llama, with wqkv split in three.
_LLAMA = {
    "model.embed_tokens.": "tok_embeddings.",
    "model.cls_embedding.": "cls_embedding.",
    "model.norm.": "norm.",
    "lm_head.": "output.",
    "model.layers.": "layers.",
    ".self_attn.o_proj.": ".attention.wo.",
    ".mlp.gate_proj.": ".feed_forward.w1.",
    ".mlp.up_proj.": ".feed_forward.w3.",
    ".mlp.down_proj.": ".feed_forward.w2.",
    ".input_layernorm.": ".attention_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
}


def read_tensors(path: str | Path, wrappers: Sequence[str] = _WRAPPERS) -> dict[str, Tensor]:
    """The tensors of a checkpoint.

    Args:
        path: The file, or a folder that contains no other checkpoint.
        wrappers: Keys under which a pickled file may store its tensors, in order of preference.

    Raises:
        ModelError: If there is no such file, it cannot be read, its pickle would run code, or it contains no tensors.
    """
    path = Path(path)
    file = _only_checkpoint(path) if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"checkpoint {str(path)!r} does not exist")
    return checkpoint.read_tensors(file, "checkpoint", wrappers)


def _only_checkpoint(folder: Path) -> Path:
    files = list_files(folder, (".safetensors", ".pt", ".pth", ".bin", ".ckpt"))
    if len(files) != 1:
        found = ", ".join(f.name for f in files) or "none"
        raise ModelError(
            f"folder {str(folder)!r} must contain one checkpoint file; found {found}. Name one: FOLDER/FILE, or "
            "OWNER/REPOSITORY/FILE on the Hub, and the decoder's file as tokenizer"
        )
    return files[0]


def read_config(path: str | Path, config: Config | None) -> dict[str, Any]:
    """The `config.json` in the folder of a checkpoint, overridden by `config`.

    Raises:
        ModelError: If the file is not a JSON object.
    """
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / "config.json"
    return {**(read_object(file) if file.is_file() else {}), **(config or {})}


def from_llama_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the converted Llama-style layout under the original names; other tensors unchanged."""
    if "model.embed_tokens.weight" not in tensors:
        return dict(tensors)
    renamed: dict[str, Tensor] = {}
    for key, value in tensors.items():
        for old, new in _LLAMA.items():
            key = key.replace(old, new)
        renamed[key] = value
    for key in [k for k in renamed if k.endswith("self_attn.q_proj.weight")]:
        layer = key.removesuffix("self_attn.q_proj.weight")
        parts = [renamed.pop(f"{layer}self_attn.{p}_proj.weight", None) for p in "qkv"]
        if all(part is not None for part in parts):
            renamed[f"{layer}attention.wqkv.weight"] = torch.cat([p for p in parts if p is not None])
    return renamed


def gpt_config(path: Path, tensors: Mapping[str, Tensor], given: Config) -> dict[str, Any]:
    """The arguments of `LlamaGenGPT`.

    Args:
        path: The file. Names of published checkpoints determine the grid.
        tensors: The tensors, whose shapes determine most arguments.
        given: Original argument names and values.

    Raises:
        ModelError: If the tensors are not those of a LlamaGen transformer, or contradict `given`.
        ArgumentError: If the number of heads or the grid is unknown.
    """
    for key in ("tok_embeddings.weight", "layers.0.feed_forward.w1.weight", "output.weight"):
        if key not in tensors:
            raise ModelError(f"checkpoint {str(path)!r} is not a LlamaGen transformer: {key} is missing")
        if tensors[key].ndim != 2:
            raise ModelError(f"checkpoint {str(path)!r}: {key} has shape {list(tensors[key].shape)}, not a matrix's")
    vocab_size, dim = tensors["tok_embeddings.weight"].shape
    n_layer = count_blocks(tensors, "layers")
    found: dict[str, Any] = {
        "vocab_size": vocab_size,
        "dim": dim,
        "n_layer": n_layer,
        "ffn_dim": tensors["layers.0.feed_forward.w1.weight"].shape[0],
    }
    if getattr(tensors.get("cls_embedding.embedding_table.weight"), "ndim", 0) == 2:
        classes = tensors["cls_embedding.embedding_table.weight"].shape[0] - 1
        found |= {"model_type": "c2i", "num_classes": classes, "cls_token_num": 1}
    elif getattr(tensors.get("cls_embedding.uncond_embedding"), "ndim", 0) == 2:
        slots, features = tensors["cls_embedding.uncond_embedding"].shape
        found |= {"model_type": "t2i", "cls_token_num": slots, "caption_dim": features}
    else:
        raise ModelError(f"checkpoint {str(path)!r} has no condition embedding (cls_embedding.*)")
    for name in ("block_size", "n_head"):
        if isinstance(given.get(name), bool) or not isinstance(given.get(name), int | None) or given.get(name) == 0:
            raise ArgumentError(f"config has {name}={given[name]!r}; it must be an integer, 1 or more")
    stated = {ours: given[theirs] for theirs, ours in _ARGUMENTS.items() if given.get(theirs) is not None}
    for key, value in found.items():
        if stated.get(key, value) != value and not (key == "num_classes" and found["model_type"] == "t2i"):
            raise ModelError(f"config has {key}={stated[key]}, the tensors of {str(path)!r} have {value}")
    if given.get("n_kv_head") not in (None, given.get("n_head")):
        raise ModelError(f"config n_kv_head={given['n_kv_head']} is not supported; it must equal n_head")
    stated.setdefault("n_head", _HEADS.get((n_layer, dim)))
    block = given.get("block_size") or _published_block(path)
    if stated["n_head"] is None or block is None:
        lacking = " and ".join(n for n, v in (("n_head", stated["n_head"]), ("block_size", block)) if v is None)
        raise ArgumentError(
            f"{lacking} of {str(path)!r} cannot be inferred from its tensors; add a config.json with the original "
            f"argument names to its folder or pass config={{...}} (published files such as {_NAMES[0]}_256.pt need "
            "neither)"
        )
    grid = isqrt(max(block, 0))
    if not 1 <= grid <= MAX_GRID or grid * grid != block:
        raise ArgumentError(
            f"block_size={block} is not allowed; it must be a square number of image tokens, 1 to {MAX_GRID**2}"
        )
    return {**stated, **found, "grid_size": grid}


def _published_block(path: Path) -> int | None:
    """Image tokens of a published file, whose name ends with the side of the image; a token covers 16 x 16 pixels."""
    name = re.fullmatch(r"([ct]2i_\w+?)_(256|384|512)", path.stem)
    return (int(name[2]) // 16) ** 2 if name and name[1] in _NAMES else None


def cast(model: Model, dtype: torch.dtype | str) -> Model:
    """The model in another dtype; unchanged for "auto".

    Raises:
        ArgumentError: If there is no such dtype.
    """
    if not isinstance(dtype, torch.dtype) and dtype != "auto":
        raise ArgumentError(f"dtype={dtype!r} is not allowed; use a torch.dtype, or 'auto' for that of the file")
    # A cast of a model that has the dtype prints a warning of diffusers.
    return model if dtype in ("auto", model.dtype) else model.to(dtype)


def load_gpt(path: str | Path, config: Config | None = None) -> LlamaGenGPT:
    """A LlamaGen transformer from an original checkpoint, or from the converted Llama-style layout.

    Args:
        path: A `.pt`, `.pth`, `.bin` or `.safetensors` file, or a folder with one.
        config: Original `ModelArgs` names; overrides the `config.json` in the folder. Published files need none.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit a `LlamaGenGPT`.
        ArgumentError: If the number of heads or the grid is unknown.
    """
    path = Path(path)
    tensors = read_tensors(path)
    with sizes_of(f"checkpoint {str(path)!r}", "a LlamaGen transformer"):
        tensors = from_llama_names(tensors)
    tensors.pop("freqs_cis", None)
    arguments = gpt_config(path, tensors, read_config(path, config))
    with building(f"checkpoint {str(path)!r}", "a LlamaGen transformer"):
        gpt = LlamaGenGPT(**arguments)
    check_tensors(f"checkpoint {str(path)!r}", tensors, gpt)
    gpt.load_state_dict(tensors, assign=True)
    return gpt.eval()
