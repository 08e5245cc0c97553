"""The original VQ tokenizers as diffusers' `VQModel`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from diffusers import VQModel
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, sizes_of
from mmspec.vision.llamagen.checkpoint import Config, read_config, read_tensors

# Parts of a residual or attention block: original names -> those of diffusers.
RESIDUAL = {"nin_shortcut": "conv_shortcut"}
ATTENTION = {"norm": "group_norm", "q": "to_q", "k": "to_k", "v": "to_v", "proj_out": "to_out.0"}


def rename(key: str) -> str:
    """The name in `VQModel` of an original parameter."""
    side = {"encoder": ("down", "downsample"), "decoder": ("up", "upsample")}
    if match := re.fullmatch(r"(encoder|decoder)\.conv_blocks\.(\d+)\.(res|attn)\.(\d+)\.(\w+)\.(\w+)", key):
        half, block, kind, index, part, leaf = match.groups()
        group, names = ("resnets", RESIDUAL) if kind == "res" else ("attentions", ATTENTION)
        return f"{half}.{side[half][0]}_blocks.{block}.{group}.{index}.{names.get(part, part)}.{leaf}"
    if match := re.fullmatch(r"(encoder|decoder)\.conv_blocks\.(\d+)\.(?:down|up)sample\.conv\.(\w+)", key):
        half, block, leaf = match.groups()
        return f"{half}.{side[half][0]}_blocks.{block}.{side[half][1]}rs.0.conv.{leaf}"
    if match := re.fullmatch(r"(encoder|decoder)\.mid\.([012])\.(\w+)\.(\w+)", key):
        half, index, part, leaf = match.groups()
        if index == "1":
            return f"{half}.mid_block.attentions.0.{ATTENTION.get(part, part)}.{leaf}"
        return f"{half}.mid_block.resnets.{int(index) // 2}.{RESIDUAL.get(part, part)}.{leaf}"
    return key.replace(".norm_out.", ".conv_norm_out.")


def vq_config(tensors: Mapping[str, Tensor], given: Config) -> dict[str, Any]:
    """The arguments of `VQModel`, from the shapes of the tensors; `given` may set `norm_num_groups`."""
    levels = count_blocks(tensors, "encoder.conv_blocks")
    widths = [tensors[f"encoder.conv_blocks.{i}.res.0.conv1.weight"].shape[0] for i in range(levels)]
    blocks = count_blocks(tensors, "encoder.conv_blocks.0.res")
    codes, code_dim = tensors["quantize.embedding.weight"].shape
    attention = [f"encoder.conv_blocks.{i}.attn.0.norm.weight" in tensors for i in range(levels)]
    return {
        "block_out_channels": tuple(widths),
        "down_block_types": tuple("AttnDownEncoderBlock2D" if a else "DownEncoderBlock2D" for a in attention),
        "up_block_types": tuple("AttnUpDecoderBlock2D" if a else "UpDecoderBlock2D" for a in reversed(attention)),
        "layers_per_block": blocks,
        "latent_channels": tensors["quant_conv.weight"].shape[1],
        "num_vq_embeddings": codes,
        "vq_embed_dim": code_dim,
        "lookup_from_codebook": True,
        "norm_num_groups": given.get("norm_num_groups", 32),
    }


def load_tokenizer(path: str | Path, config: Config | None = None) -> VQModel:
    """The published VQ-16 or VQ-8 tokenizer, or one of another size, as a `VQModel`.

    The rows of the codebook are normalised, as the original does when it uses them.

    Args:
        path: The checkpoint file, or a folder with one.
        config: Original `ModelArgs` names, checked against the tensors; overrides the `config.json` in the folder.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit a `VQModel` or the config.
    """
    path = Path(path)
    original = read_tensors(path)
    for key in ("quantize.embedding.weight", "encoder.conv_blocks.0.res.0.conv1.weight", "quant_conv.weight"):
        if key not in original:
            raise ModelError(f"checkpoint {str(path)!r} is not a LlamaGen tokenizer: {key} is missing")
    given, what = read_config(path, config), f"checkpoint {str(path)!r}"
    with sizes_of(what, "a LlamaGen tokenizer"):
        arguments = vq_config(original, given)
    for theirs, ours in (("codebook_size", "num_vq_embeddings"), ("codebook_embed_dim", "vq_embed_dim")):
        if given.get(theirs, arguments[ours]) != arguments[ours]:
            raise ModelError(
                f"config has {theirs}={given[theirs]}, the tensors of {str(path)!r} have {arguments[ours]}"
            )
    with building(what, "a LlamaGen tokenizer"):
        vq = VQModel(**arguments)
    tensors = {rename(k): v for k, v in original.items() if k != "quantize.codebook_used"}
    if given.get("codebook_l2_norm", True):
        tensors["quantize.embedding.weight"] = F.normalize(tensors["quantize.embedding.weight"], dim=-1)
    return fill(vq, tensors, what)


def fill(vq: VQModel, tensors: dict[str, Tensor], what: str) -> VQModel:
    """Loads tensors into a model.

    Args:
        vq: The model, on the device "meta".
        tensors: Under the names of the model.
        what: The checkpoint, for the error.

    Raises:
        ModelError: If names or shapes do not fit.
    """
    expected = vq.state_dict()
    for key, value in tensors.items():
        # The original's attention has 1x1 convolutions where diffusers has linear layers.
        if value.ndim == 4 and key in expected and expected[key].ndim == 2:
            tensors[key] = value[:, :, 0, 0]
    check_tensors(what, tensors, vq)
    vq.load_state_dict({name: value.float().contiguous() for name, value in tensors.items()}, assign=True)
    return vq.eval()
