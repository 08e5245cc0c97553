"""The decoder of Emu3's codes from BAAI/Emu3-VisionTokenizer, as transformers' `Emu3VQVAE`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Emu3VQVAE
from transformers.models.emu3.configuration_emu3 import Emu3VQVAEConfig

from mmspec.files.checkpoint import building, check_tensors
from mmspec.hf.folder import read_json
from mmspec.vision.llamagen.checkpoint import read_tensors

# The class in the published config.json.
ORIGINAL = "Emu3VisionVQModel"
# Fields of the published config.json -> those of transformers.
FIELDS = {
    "codebook_size": "codebook_size",
    "embed_dim": "embed_dim",
    "z_channels": "latent_channels",
    "double_z": "double_latent",
    "in_channels": "in_channels",
    "out_channels": "out_channels",
    "temporal_downsample_factor": "temporal_downsample_factor",
    "ch": "base_channels",
    "ch_mult": "channel_multiplier",
    "num_res_blocks": "num_res_blocks",
    "attn_resolutions": "attn_resolutions",
}
# Parts of original names -> those of transformers, where convolutions of attention are linear layers.
RENAMED = (
    (r"^(encoder|decoder)\.mid\.", r"\1.middle_block."),
    (r"^(encoder|decoder)\.(up|down)\.", r"\1.\2_block.\2."),
    (r"\battn\.(\d+)\.norm\.", r"attn_norms.\1."),
    (r"\battn_1\.norm\.", "attn_norm."),
    (r"\b(attn\.\d+|attn_1)\.([qkv])\.", r"\1.\2_proj."),
    (r"\b(attn\.\d+|attn_1)\.proj_out\.", r"\1.out_proj."),
)


def is_emu3_decoder(path: Path) -> bool:
    """Whether a path is a folder with Emu3's vision tokenizer in its published layout."""
    return ORIGINAL in (read_json(path / "config.json").get("architectures") or [])


class Emu3Decoder(nn.Module):
    """Codes to pixels.

    Args:
        vq: The VQ model.

    Attributes:
        vocab_size: The number of codes.
    """

    def __init__(self, vq: Any) -> None:
        super().__init__()
        self.vq = vq
        self.vocab_size = int(vq.config.codebook_size)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.vq.parameters()).device

    def codebook(self) -> Tensor:
        """The codebook, [V, D]."""
        weight: Tensor = self.vq.quantize.embedding.weight
        return weight

    @torch.no_grad()
    def decode_grid(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Pixels [B, 3, H, W] of codes int64 [B, h * w] in raster order."""
        pixels: Tensor = self.vq.decode(tokens.unflatten(1, grid))
        return pixels


def rename(key: str) -> str:
    """The name in `Emu3VQVAE` of an original parameter."""
    for pattern, new in RENAMED:
        key = re.sub(pattern, new, key)
    return key


def load_emu3_decoder(path: Path) -> Emu3Decoder:
    """The decoder in a folder, in float32.

    Raises:
        ModelError: If the weights cannot be read, or do not fit the config.
    """
    what = f"tokenizer {str(path)!r}"
    config = read_json(path / "config.json")
    tensors = {}
    for key, value in read_tensors(path).items():
        name = rename(key)
        value = value.float() if value.is_floating_point() else value
        tensors[name] = value[:, :, 0, 0] if name.endswith("_proj.weight") and value.ndim == 4 else value
    with building(what, "a vision tokenizer of Emu3"):
        own = Emu3VQVAEConfig(**{ours: config[theirs] for theirs, ours in FIELDS.items() if theirs in config})
        own.hidden_size = own.base_channels * own.channel_multiplier[-1]  # of its attention
        vq = Emu3VQVAE(own)
    check_tensors(what, tensors, vq)
    vq.load_state_dict(tensors, assign=True)
    return Emu3Decoder(vq.eval())
