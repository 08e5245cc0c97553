"""MingTok, the continuous tokenizer of Ming-UniVision (Huang et al. 2025, arXiv 2510.06590): from latents to pixels.

A causal transformer turns latents into semantic features, which a model that generates them reads back; a second
transformer turns the features of all tokens into pixels. Source: `inclusionAI/Ming-UniVision` at 3bbdd2f (MIT). The
encoder is not loaded, and no model that generates such latents is part of mmspec.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import building, check_tensors, listed, read_model_tensors
from mmspec.files.documents import read_object

HEAD_WIDTH, EPSILON, CHANNELS = 64, 1e-6, 3  # the published code has no others
PARTS = ("semantic_decoder", "pixel_decoder")


class MingTok(nn.Module):
    """The decoding side, with the published parameter names.

    Args:
        config: The published configuration.

    Attributes:
        width: Numbers of a latent.
        patch: Pixels of a token's side.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        semantic, pixel = (config[part] for part in PARTS)
        self.width, self.patch = int(semantic["in_dim"]), int(semantic["patch_size"])
        self.scale, self.mean = float(config["scaling_factor"]), float(config["mean"])
        self.fine = int(pixel["patch_size"])
        gated = semantic.get("ffn_layer", "mlp") != "mlp"
        self.semantic_decoder = Decoder(semantic["embed_dim"], semantic["decoder_depth"], gated, causal=True)
        self.semantic_decoder.in_proj = nn.Linear(self.width, semantic["embed_dim"])
        self.pixel_decoder = Decoder(pixel["embed_dim"], pixel["decoder_depth"], False, causal=False)
        self.pixel_decoder.head = nn.Linear(pixel["embed_dim"], self.fine**2 * CHANNELS)
        parts = (self.patch // self.fine) ** 2
        self.sem_to_pix = nn.Linear(semantic["embed_dim"], pixel["embed_dim"] * parts)

    def features(self, latents: Tensor) -> Tensor:
        """Semantic features [B, N, D] of latents [B, N, width], as a model generates them; each reads those before."""
        raw = latents * self.scale + self.mean
        repeated = raw.repeat_interleave(self.sem_to_pix.in_features // self.width, dim=-1)
        found: Tensor = self.semantic_decoder(self.semantic_decoder.in_proj(raw) + repeated)
        return found

    @torch.inference_mode()
    def decode(self, latents: Tensor) -> Tensor:
        """Images float32 [B, 3, S, S] in -1..1 of latents [B, N, width] in raster order, N a square.

        Raises:
            ArgumentError: If they have another shape.
        """
        side = isqrt(latents.shape[1]) if latents.ndim == 3 else 0
        if latents.ndim != 3 or latents.shape[2] != self.width or side**2 != latents.shape[1]:
            raise ArgumentError(f"latents has shape {list(latents.shape)}; it must be [B, N, {self.width}], N a square")
        parts = self.patch // self.fine
        fine = self.sem_to_pix(self.features(latents.to(self.sem_to_pix.weight))).unflatten(2, (parts, parts, -1))
        fine = fine.unflatten(1, (side, side)).transpose(2, 3).flatten(1, 4)  # [B, all small patches, D]
        pixels = self.pixel_decoder.head(self.pixel_decoder(fine)).unflatten(2, (self.fine, self.fine, CHANNELS))
        pixels = pixels.unflatten(1, (side * parts, side * parts)).permute(0, 5, 1, 3, 2, 4)
        return pixels.flatten(4).flatten(2, 3).float().clamp(-1, 1)


class Decoder(nn.Module):
    """A transformer without positions; returns what the last norm gives."""

    in_proj: nn.Linear
    head: nn.Linear

    def __init__(self, width: int, depth: int, gated: bool, causal: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleList(Block(width, gated, causal) for _ in range(depth))])
        self.norm = nn.LayerNorm(width, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        for chunk in self.blocks:
            assert isinstance(chunk, nn.ModuleList)
            for block in chunk:
                x = block(x)
        out: Tensor = self.norm(x)
        return out


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, width: int, gated: bool, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=EPSILON) for _ in range(2))
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        hidden = (4 * width * 2 // 3 + 7) // 8 * 8 if gated else 4 * width
        names = ("w12", 2 * hidden, "w3") if gated else ("fc1", hidden, "fc2")
        self.mlp = nn.ModuleDict({names[0]: nn.Linear(width, names[1]), names[2]: nn.Linear(hidden, width)})
        self.gated = gated

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attn["qkv"](self.norm1(x)).unflatten(2, (3, -1, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.attn["proj"](mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        if self.gated:
            gate, up = self.mlp["w12"](y).chunk(2, dim=-1)
            out: Tensor = x + self.mlp["w3"](F.silu(gate) * up)
            return out
        plain: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](y)))
        return plain


def read_mingtok(folder: Path, device: str = "cpu") -> MingTok:
    """The tokenizer in a folder with the published `config.json` and `model*.safetensors`.

    Raises:
        ModelError: For missing or broken files.
    """
    config, what = read_object(folder / "config.json"), f"tokenizer {str(folder)!r}"
    if missing := [name for name in (*PARTS, "scaling_factor", "mean") if name not in config]:
        raise ModelError(f"{what} is not a MingTok: config.json has no {missing[0]!r}")
    with building(what, "a MingTok as config.json describes"):
        model = MingTok(config)
    state, wanted = read_model_tensors(folder), model.state_dict()
    if missing := [name for name in wanted if name not in state]:
        raise ModelError(f"{what} is incomplete; {listed({'missing': missing})}")
    state = {name: state[name].float() for name in wanted}  # the file has an encoder too
    check_tensors(what, state, model)
    model.load_state_dict(state, assign=True)
    return model.to(device).eval()
