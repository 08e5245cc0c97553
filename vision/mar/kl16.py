"""MAR's KL-16 autoencoder as diffusers' `AutoencoderKL`, by renaming.

The encoder has attention at its lowest resolution, the decoder in its middle block only. `kl16.ckpt` stores the
tensors under `model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, sizes_of
from mmspec.vision.hf.vqgan import rename
from mmspec.vision.llamagen.checkpoint import read_tensors

SCALE = 0.2325
# Discriminator and perceptual loss, which checkpoints of training contain.
TRAINING = "loss."


def kl16_config(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of `AutoencoderKL`, from the shapes of the tensors.

    Raises:
        ModelError: If the tensors are not those of the autoencoder.
    """
    for key in ("encoder.conv_in.weight", "encoder.down.0.block.0.conv1.weight", "post_quant_conv.weight"):
        if key not in tensors:
            raise ModelError(f"checkpoint {str(path)!r} is not MAR's KL autoencoder: {key} is missing")
    levels, blocks = count_blocks(tensors, "encoder.down"), count_blocks(tensors, "encoder.down.0.block")
    widths = [tensors[f"encoder.down.{i}.block.0.conv1.weight"].shape[0] for i in range(levels)]
    down = [f"encoder.down.{i}.attn.0.norm.weight" in tensors for i in range(levels)]
    up = [f"decoder.up.{i}.attn.0.norm.weight" in tensors for i in reversed(range(levels))]
    return {
        "in_channels": tensors["encoder.conv_in.weight"].shape[1],
        "out_channels": tensors["decoder.conv_out.weight"].shape[0],
        "latent_channels": tensors["post_quant_conv.weight"].shape[1],
        "block_out_channels": tuple(widths),
        "layers_per_block": blocks,
        "norm_num_groups": 32,
        "down_block_types": tuple("AttnDownEncoderBlock2D" if a else "DownEncoderBlock2D" for a in down),
        "up_block_types": tuple("AttnUpDecoderBlock2D" if a else "UpDecoderBlock2D" for a in up),
        "scaling_factor": SCALE,
        "sample_size": 256,
    }


def load_kl16(path: str | Path) -> AutoencoderKL:
    """The autoencoder of `kl16.ckpt`, or of its safetensors mirror.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit an `AutoencoderKL`.
    """
    path = Path(path)
    original = {k: v for k, v in read_tensors(path).items() if not k.startswith(TRAINING)}
    what = f"checkpoint {str(path)!r}"
    with sizes_of(what, "MAR's KL autoencoder"):
        arguments = kl16_config(path, original)
    with building(what, "MAR's KL autoencoder"):
        vae = AutoencoderKL(**arguments)
    expected = vae.state_dict()
    tensors: dict[str, Tensor] = {}
    for key, value in original.items():
        name = rename(key, len(arguments["block_out_channels"]))
        if value.ndim == 4 and name in expected and expected[name].ndim == 2:
            value = value[:, :, 0, 0]  # 1x1 convolutions are linear layers in diffusers
        tensors[name] = value
    check_tensors(what, tensors, vae)
    vae.load_state_dict({name: value.float().contiguous() for name, value in tensors.items()}, assign=True)
    return vae.eval()


def pixels(vae: AutoencoderKL, latents: Tensor) -> Tensor:
    """Images [B, 3, H, W], in about -1..1, of latents [B, N, D] in raster order."""
    side = round(latents.shape[1] ** 0.5)
    maps = latents.transpose(1, 2).unflatten(2, (side, side)) / vae.config.scaling_factor
    return vae.decode(maps.to(vae.dtype)).sample.to(torch.float32)
