"""Original Infinity checkpoints, such as `infinity_2b_reg.pth`, and features of texts from files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, sizes_of
from mmspec.files.inputs import check_regular
from mmspec.media.listing import natural_order
from mmspec.vision.infinity.transformer import InfinityTransformer
from mmspec.vision.llamagen.checkpoint import read_tensors

_CHUNKED = re.compile(r"block_chunks\.(\d+)\.module\.(\d+)\.")


def rename(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with their names in `InfinityTransformer`: layers are not in chunks, and constants are left out."""
    found = [match for key in tensors if (match := _CHUNKED.match(key))]
    per_chunk = 1 + max((int(match[2]) for match in found), default=0)

    def plain(match: re.Match[str]) -> str:
        return f"blocks.{int(match[1]) * per_chunk + int(match[2])}."

    kept = {key: value for key, value in tensors.items() if not key.endswith("zero_k_bias")}
    return {_CHUNKED.sub(plain, key): value for key, value in kept.items()}


def load_infinity(path: str | Path, bits: int = 32) -> InfinityTransformer:
    """An Infinity from an original file; its sizes are read off the tensors.

    Args:
        path: Such as `infinity_2b_reg.pth`, or a folder with one such file.
        bits: Bits of a code of its tokenizer: 16, 32, 56 or 64 in the published ones.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit an `InfinityTransformer`.
    """
    path = Path(path)
    what, tensors = f"checkpoint {str(path)!r}", rename(read_tensors(path))
    for key in ("cfg_uncond", "word_embed.weight", "blocks.0.sa.scale_mul_1H11", "blocks.0.ffn.fc1.weight"):
        if key not in tensors:
            raise ModelError(f"{what} is not an Infinity: {key} is missing")
    with sizes_of(what, "an Infinity"):
        dim, joined = tensors["word_embed.weight"].shape
        length, text_dim = tensors["cfg_uncond"].shape
        if joined not in (bits, 4 * bits):
            raise ModelError(f"{what} reads {joined} numbers per place, which is neither bits={bits} nor 4 times that")
        arguments = {
            "dim": dim,
            "depth": count_blocks(tensors, "blocks"),
            "heads": tensors["blocks.0.sa.scale_mul_1H11"].shape[1],
            "hidden": len(tensors["blocks.0.ffn.fc1.weight"]),
            "bits": bits,
            "text_dim": text_dim,
            "text_length": length,
            "patch": 1 if joined == bits else 2,
        }
    with building(what, "an Infinity"):
        model = InfinityTransformer(**arguments)
    check_tensors(what, tensors, model)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def read_text_features(path: str | Path) -> list[Tensor]:
    """The features [T, C] of texts from a file of safetensors, in the natural order of their names.

    Raises:
        ModelError: If the file cannot be read, or a tensor is not [T, C].
    """
    try:
        check_regular(Path(path))
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"file {str(path)!r} has no features of texts: {' '.join(str(error).split())[:200]}") from None
    for name, value in tensors.items():
        if value.ndim != 2 or not value.dtype.is_floating_point:
            raise ModelError(f"file {str(path)!r}: {name[:100]!r} has shape {list(value.shape)}; it must be [T, C]")
    return [tensors[name].to(torch.float32) for name in sorted(tensors, key=natural_order)]
