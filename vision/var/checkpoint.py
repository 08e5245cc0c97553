"""Original VAR checkpoints: `var_d16.pth` and its siblings, and the tokenizer `vae_ch160v4096z32.pth`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.arguments import shown
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, sizes_of
from mmspec.vision.llamagen.checkpoint import read_config, read_tensors
from mmspec.vision.var.tokenizer import VARTokenizer
from mmspec.vision.var.transformer import SIDES_256, SIDES_512, VARTransformer

# Constants and masks that the original stores among its weights.
_CONSTANT = re.compile(r"lvl_1L|attn_bias_for_masking|blocks\.\d+\.attn\.zero_k_bias")
_HEAD_DIM = 64  # of all published models
# Of the tokenizer, what encodes images.
_ENCODING = ("encoder.", "quant_conv.", "quantize.ema_vocab_hit_SV")
RESIDUAL = {"nin_shortcut": "conv_shortcut"}
ATTENTION = {"norm": "group_norm", "proj_out": "to_out.0"}


def var_config(path: Path, tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `VARTransformer`.

    Args:
        path: The file, for errors.
        tensors: The tensors, whose shapes determine most arguments.
        given: Original argument names and values: `patch_nums` and `num_heads` for sizes that are not published.

    Raises:
        ModelError: If the tensors are not those of a VAR, or contradict `given`.
        ArgumentError: If the sides of the maps are unknown, or no list of integers.
    """
    for key in ("pos_1LC", "lvl_embed.weight", "word_embed.weight", "head_nm.ada_lin.1.weight", "class_emb.weight"):
        if key not in tensors:
            raise ModelError(f"checkpoint {str(path)!r} is not a VAR: {key} is missing")
    length, dim = tensors["pos_1LC"].shape[1:]
    known: dict[int, tuple[int, ...]] = {sum(n * n for n in each): each for each in (SIDES_256, SIDES_512)}
    sides = given.get("patch_nums", known.get(length, ()))
    if not isinstance(sides, (list, tuple)) or not all(type(side) is int and side > 0 for side in sides):
        raise ArgumentError(f"config patch_nums={shown(sides)} is not allowed; it must be the sides of the maps")
    sides = tuple(sides)
    if not sides:
        raise ArgumentError(
            f"patch_nums of {str(path)!r} cannot be inferred from its tensors; add a config.json with it to its folder "
            "or pass config={...} (published sizes need neither)"
        )
    if sum(side**2 for side in sides) != length or len(sides) != len(tensors["lvl_embed.weight"]):
        raise ModelError(f"config has patch_nums={list(sides)}, the tensors of {str(path)!r} have {length} places")
    scales = tensors.get("blocks.0.attn.scale_mul_1H11")
    return {
        "sides": sides,
        "dim": dim,
        "depth": count_blocks(tensors, "blocks"),
        "heads": given.get("num_heads", max(dim // _HEAD_DIM, 1) if scales is None else scales.shape[1]),
        "vocab_size": tensors["head.weight"].shape[0],
        "code_dim": tensors["word_embed.weight"].shape[1],
        "num_classes": len(tensors["class_emb.weight"]) - 1,
        "mlp_ratio": tensors["blocks.0.ffn.fc1.weight"].shape[0] / dim,
        "l2_norm": scales is not None,
        "shared_aln": "shared_ada_lin.1.weight" in tensors,
    }


def load_var(path: str | Path, config: Mapping[str, Any] | None = None) -> VARTransformer:
    """A VAR from an original file.

    Args:
        path: Such as `var_d16.pth`, or a folder with one such file.
        config: Original argument names; overrides the `config.json` in the folder. Published files need none.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit a `VARTransformer`.
        ArgumentError: If the sides of the maps are unknown, or no list of integers.
    """
    path = Path(path)
    tensors = {k: v for k, v in read_tensors(path).items() if not _CONSTANT.fullmatch(k)}
    what, given = f"checkpoint {str(path)!r}", read_config(path, config)
    with sizes_of(what, "a VAR"):
        arguments = var_config(path, tensors, given)
    with building(what, "a VAR"):
        model = VARTransformer(**arguments)
    check_tensors(what, tensors, model)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def rename(key: str, levels: int) -> str:
    """The name in `VARTokenizer` of an original parameter; `levels` is the number of resolutions."""
    if match := re.fullmatch(r"decoder\.up\.(\d+)\.(block|attn)\.(\d+)\.(\w+)\.(\w+)", key):
        level, kind, index, part, leaf = match.groups()
        group, names = ("resnets", RESIDUAL) if kind == "block" else ("attentions", ATTENTION)
        # The original numbers its levels from the image, diffusers from the latents.
        return f"decoder.up_blocks.{levels - 1 - int(level)}.{group}.{index}.{names.get(part, part)}.{leaf}"
    if match := re.fullmatch(r"decoder\.up\.(\d+)\.upsample\.conv\.(\w+)", key):
        return f"decoder.up_blocks.{levels - 1 - int(match[1])}.upsamplers.0.conv.{match[2]}"
    if match := re.fullmatch(r"decoder\.mid\.(block_1|block_2|attn_1)\.(\w+)\.(\w+)", key):
        which, part, leaf = match.groups()
        if which == "attn_1":
            return f"decoder.mid_block.attentions.0.{ATTENTION.get(part, part)}.{leaf}"
        return f"decoder.mid_block.resnets.{int(which[-1]) - 1}.{RESIDUAL.get(part, part)}.{leaf}"
    key = re.sub(r"quantize\.quant_resi\.(?:qresi_ls\.(\d+)|qresi|(\d+))\.", _convolution, key)
    return key.replace("quantize.embedding.", "embedding.").replace(".norm_out.", ".conv_norm_out.")


def _convolution(match: re.Match[str]) -> str:
    return f"quant_resi.{match[1] or match[2] or 0}."


def load_tokenizer(path: str | Path, sides: tuple[int, ...] = SIDES_256) -> VARTokenizer:
    """The tokenizer from `vae_ch160v4096z32.pth`.

    Args:
        path: The file, or a folder with it alone.
        sides: The sides of the maps, which are those of the model.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit a `VARTokenizer`.
    """
    path = Path(path)
    original = {k: v for k, v in read_tensors(path).items() if not k.startswith(_ENCODING)}
    for key in ("quantize.embedding.weight", "decoder.conv_in.weight", "post_quant_conv.weight"):
        if key not in original:
            raise ModelError(f"checkpoint {str(path)!r} is not VAR's tokenizer: {key} is missing")
    what = f"checkpoint {str(path)!r}"
    with sizes_of(what, "VAR's tokenizer"):
        levels = count_blocks(original, "decoder.up")
        vocab_size, code_dim = original["quantize.embedding.weight"].shape
        arguments = {
            "sides": sides,
            "vocab_size": vocab_size,
            "code_dim": code_dim,
            "channels": [original[f"decoder.up.{i}.block.0.conv1.weight"].shape[0] for i in range(levels)],
            "blocks": count_blocks(original, "decoder.up.0.block") - 1,
            "convolutions": sum(key.startswith("quantize.quant_resi") and key.endswith("weight") for key in original),
        }
    with building(what, "VAR's tokenizer"):
        tokenizer = VARTokenizer(**arguments)
    expected, tensors = tokenizer.state_dict(), dict[str, Tensor]()
    for key, value in original.items():
        name = rename(key, levels)
        if ".qkv." in name:  # the original computes queries, keys and values in one convolution
            for part, each in zip("qkv", value.chunk(3), strict=True):
                tensors[name.replace(".qkv.", f".to_{part}.")] = each
        else:
            tensors[name] = value
    for name, value in tensors.items():
        if value.ndim == 4 and name in expected and expected[name].ndim == 2:
            tensors[name] = value[:, :, 0, 0]  # 1x1 convolutions are linear layers in diffusers
    check_tensors(what, tensors, tokenizer)
    tokenizer.load_state_dict({name: value.float().contiguous() for name, value in tensors.items()}, assign=True)
    return tokenizer.eval()
