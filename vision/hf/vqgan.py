"""VQGANs in their original layout, as diffusers' `VQModel`: Chameleon's, which transformers does not decode; MoVQ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffusers import VQModel
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, count_blocks, sizes_of
from mmspec.vision.llamagen.checkpoint import read_tensors
from mmspec.vision.llamagen.tokenizer import ATTENTION, RESIDUAL, fill

NEEDED = ("quantize.embedding.weight", "decoder.conv_in.weight", "encoder.down.0.block.0.conv1.weight")
# Checkpoints of training also contain a discriminator, a perceptual loss, and averages of the weights.
PARTS = ("encoder.", "decoder.", "quantize.", "quant_conv.", "post_quant_conv.")
# A layer of the decoder of MoVQ, whose norms depend on the codes.
SPATIAL = "decoder.norm_out.conv_y.weight"


def rename(key: str, levels: int) -> str:
    """The name in `VQModel` or `AutoencoderKL` of an original parameter.

    Args:
        key: The original name.
        levels: The number of resolutions. The original numbers them from the image in encoder and decoder, diffusers in
            the order of computation.
    """
    if match := re.fullmatch(r"(encoder|decoder)\.(?:down|up)\.(\d+)\.(\w+)\.(\w+)\.(.+)", key):
        half, level, kind, index, part = match.groups()
        blocks = f"down_blocks.{level}" if half == "encoder" else f"up_blocks.{levels - 1 - int(level)}"
        if kind in ("downsample", "upsample"):
            return f"{half}.{blocks}.{kind}rs.0.{index}.{part}"
        group, names = ("resnets", RESIDUAL) if kind == "block" else ("attentions", ATTENTION)
        return f"{half}.{blocks}.{group}.{index}.{rename_inner(part, names)}"
    if match := re.fullmatch(r"(encoder|decoder)\.mid\.(block|attn)_([12])\.(.+)", key):
        half, kind, index, part = match.groups()
        if kind == "attn":
            return f"{half}.mid_block.attentions.0.{rename_inner(part, ATTENTION)}"
        return f"{half}.mid_block.resnets.{int(index) - 1}.{rename_inner(part, RESIDUAL)}"
    return key.replace(".norm_out.", ".conv_norm_out.")


def rename_inner(part: str, names: Mapping[str, str]) -> str:
    """Renames the layer in `layer.weight` or `layer.bias`."""
    layer, _, leaf = part.rpartition(".")
    if names is ATTENTION and layer.startswith("norm."):  # of MoVQ
        return f"spatial_{part}"
    return f"{names.get(layer, layer)}.{leaf}"


def vqgan_config(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of `VQModel`, from the names and shapes of the tensors."""
    levels, blocks = count_blocks(tensors, "encoder.down"), count_blocks(tensors, "encoder.down.0.block")
    widths = [tensors[f"encoder.down.{i}.block.0.conv1.weight"].shape[0] for i in range(levels)]
    attention = [f"encoder.down.{i}.attn.0.norm.weight" in tensors for i in range(levels)]
    codes, code_dim = tensors["quantize.embedding.weight"].shape
    return {
        "block_out_channels": tuple(widths),
        "down_block_types": tuple("AttnDownEncoderBlock2D" if a else "DownEncoderBlock2D" for a in attention),
        "up_block_types": tuple("AttnUpDecoderBlock2D" if a else "UpDecoderBlock2D" for a in reversed(attention)),
        "layers_per_block": blocks,
        "latent_channels": tensors["decoder.conv_in.weight"].shape[1],
        "num_vq_embeddings": codes,
        "vq_embed_dim": code_dim,
        "lookup_from_codebook": True,
        "norm_num_groups": 32,
        "norm_type": "spatial" if SPATIAL in tensors else "group",
    }


def load_vqgan(path: str | Path) -> VQModel:
    """The decoder of Chameleon, Anole and Lumina-mGPT, from Meta's `tokenizer/vqgan.ckpt`, or that of Lumina-mGPT 2.0.

    Args:
        path: The file, or a folder that contains no other checkpoint. Every checkpoint with the parameter names of
            taming-transformers' `VQModel` can be loaded.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit a `VQModel`.
    """
    original = {k: v for k, v in read_tensors(path).items() if k.startswith(PARTS)}
    for key in NEEDED:
        if key not in original:
            raise ModelError(f"checkpoint {str(path)!r} is not a VQGAN: {key} is missing")
    what = f"checkpoint {str(path)!r}"
    with sizes_of(what, "a VQGAN"):
        config = vqgan_config(original)
    with building(what, "a VQGAN"):
        vq = VQModel(**config)
    levels = len(config["block_out_channels"])
    renamed = {rename(key, levels): value for key, value in original.items()}
    return fill(vq, renamed, what)
