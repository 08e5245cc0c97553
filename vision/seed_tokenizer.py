"""The tokenizer of SEED (Ge et al. 2023, arXiv 2307.08041 and 2310.01218): from 32 codes to an image embedding.

The codes of an image depend on each other from left to right, as words do. They are not pixels: a transformer turns
them into an embedding of CLIP, from which Stable Diffusion unCLIP draws an image, in diffusers
`StableUnCLIPImg2ImgPipeline(image_embeds=..., noise_level=0)`. Source: `AILab-CVC/SEED` at 93b3cf4 (Apache License
2.0). The encoder is not loaded, and no model that generates such codes is part of mmspec.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, listed, read_tensors, sizes_of

FILE = "seed_quantizer.pt"
HEADS, EPSILON, NARROW = 12, 1e-6, (256, 128, 32)  # the published code has no others


class SeedTokenizer(nn.Module):
    """The decoding side, with the published parameter names.

    Args:
        codes: Size V of the codebook.
        code_width: Width of its vectors.
        width: Width of the transformer.
        depth: Its layers.
        count: Codes of an image.
        out_width: Width of the image embedding.
    """

    def __init__(self, codes: int, code_width: int, width: int, depth: int, count: int, out_width: int) -> None:
        super().__init__()
        self.codes, self.count = codes, count
        self.quantize = nn.ModuleDict({"embedding": nn.Embedding(codes, code_width)})
        self.decode_task_layer = nn.Sequential(
            nn.Linear(code_width, code_width), nn.Tanh(), nn.Linear(code_width, width)
        )
        self.pos_embed_image = nn.Parameter(torch.zeros(1, count, width))
        self.blocks_image = nn.ModuleList(Block(width) for _ in range(depth))
        wide, middle, narrow = (nn.Linear(a, b, bias=False) for a, b in zip((width, *NARROW), NARROW, strict=False))
        self.image_down = nn.Sequential(wide, nn.ReLU(), middle, nn.ReLU(), narrow)
        self.distill_image_proj = nn.Linear(count * NARROW[-1], out_width)

    @torch.inference_mode()
    def embed(self, codes: Tensor) -> Tensor:
        """The image embeddings [B, 1024] of codes int64 [B, 32].

        Raises:
            ArgumentError: If there are other codes, or not as many.
        """
        if codes.ndim != 2 or codes.shape[1] != self.count:
            raise ArgumentError(f"codes has shape {list(codes.shape)}; it must be [B, {self.count}]")
        if bool(((codes < 0) | (codes >= self.codes)).any()):
            raise ArgumentError(f"codes must be 0 to {self.codes - 1}")
        x = self.decode_task_layer(self.quantize["embedding"](codes)) + self.pos_embed_image
        for block in self.blocks_image:
            x = block(x)
        found: Tensor = self.distill_image_proj(self.image_down(x).flatten(1))
        return found


class Block(nn.Module):
    """Attention in both directions and an MLP, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=EPSILON) for _ in range(2))
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attn["qkv"](self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.attn["proj"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return out


def read_seed(folder: Path, device: str = "cpu") -> SeedTokenizer:
    """The tokenizer in a folder with the published `seed_quantizer.pt`; sizes are those of its tensors.

    Raises:
        ModelError: For a missing or broken file.
    """
    what, kind = f"tokenizer '{folder / FILE}'", "a tokenizer of SEED"
    state = read_tensors(folder / FILE, "tokenizer")
    with sizes_of(what, kind):
        codes, code_width = state["quantize.embedding.weight"].shape
        _, count, width = state["pos_embed_image"].shape
        out_width, depth = len(state["distill_image_proj.bias"]), count_blocks(state, "blocks_image")
        if width % HEADS:
            raise ModelError(f"{what} is not {kind}: its width {width} is no multiple of {HEADS}")
    with building(what, kind):
        model = SeedTokenizer(codes, code_width, width, depth, count, out_width)
    wanted = model.state_dict()
    if missing := [name for name in wanted if name not in state]:
        raise ModelError(f"{what} is incomplete; {listed({'missing': missing})}")
    state = {name: state[name].float() for name in wanted}  # the file has an encoder too
    check_tensors(what, state, model)
    model.load_state_dict(state, assign=True)
    return model.to(device).eval()
