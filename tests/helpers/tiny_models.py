"""Tiny random models of the image classes of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Emu3Config,
    Emu3ForConditionalGeneration,
    GenerationConfig,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    ImageGPTConfig,
    ImageGPTForCausalImageModeling,
    JanusConfig,
    JanusForConditionalGeneration,
)
from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE

from mmspec.vision.hf.decoding.chameleon import ChameleonIds

CHAMELEON_IDS = ChameleonIds(begin=25, end=24, stop=26, newline=27, size=28)
TEXT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
VQ = {
    "embed_dim": 8, "latent_channels": 32, "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1,
}  # fmt: skip


def scatter(model: nn.Module, seed: int, spread: float) -> Any:
    """Sets random weights with a standard deviation at which tokens matter, so that mistakes show."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if p.ndim == 2:
            p.data = torch.randn(p.shape, generator=generator) * spread
        elif p.ndim == 1 and "norm" not in name and "ln_" not in name:
            p.data = torch.randn(p.shape, generator=generator) * 0.1
    return model.eval()


def janus(seed: int = 0, side: int = 4, codes: int = 20, spread: float = 0.3, **text: Any) -> Any:
    """A Janus with images of `side` x `side` tokens. Ids: 0 padding, 1 begin of text, 2 end, 3 begin of image."""
    config = JanusConfig(
        text_config={"model_type": "llama", "vocab_size": 30, "pad_token_id": 0, **TEXT, **text},
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": side * 4,
            "patch_size": 4,
            "projection_dim": TEXT["hidden_size"],
            "num_image_tokens": side * side,
        },
        vq_config=VQ
        | {
            "num_embeddings": codes,
            "projection_dim": TEXT["hidden_size"],
            "image_token_embed_dim": TEXT["hidden_size"],
        },
        image_token_id=4,
    )
    model = scatter(JanusForConditionalGeneration(config), seed, spread)
    model.generation_config = GenerationConfig(
        pad_token_id=0, bos_token_id=1, eos_token_id=2, generation_kwargs={"boi_token_id": 3}
    )
    return model


def emu3(seed: int = 0, codes: int = 20, spread: float = 0.3, **text: Any) -> Any:
    """An Emu3.

    Ids: 0 padding, 1 begin, 2 end, 3 image wrapper, 4 to 6 the ends of line, frame and image, up to 20 codes from 10
    on, words from 30 to 39.
    """
    names = {"<image>": 7, "<|extra_200|>": 4, "<|extra_201|>": 5}
    names |= {f"<|visual token {i:06d}|>": 10 + i for i in range(codes)}
    config = Emu3Config(
        text_config={"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **TEXT, **text},
        vq_config={
            "codebook_size": codes,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "hidden_size": 32,
            "attn_resolutions": [1],
        },
        vocabulary_map=names,
    )
    return scatter(Emu3ForConditionalGeneration(config), seed, spread)


def chameleon(seed: int = 0, codes: int = 20, spread: float = 0.3, kind: Any = None, **text: Any) -> Any:
    """A Chameleon, or a `kind` derived from it, whose encoder takes images of 8 x 8 pixels for 4 x 4 codes.

    Ids: 0 begin, 1 padding, 2 end, up to 20 codes from 4 on; `CHAMELEON_IDS` and words from 24 to 39.
    """
    letters = "ABCDEFGHIJ"
    names = {"<image>": 3, "<racm3:break>": 25, "<eoss>": 24}
    names |= {"<reserved08706>": 26, "<reserved08799>": 27, "<reserved08800>": 28}
    names |= {"IMGIMG" + "".join(letters[int(d)] for d in str(i)) + "Z": 4 + i for i in range(codes)}
    config = ChameleonConfig(
        vocab_size=40,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        vocabulary_map=names,
        vq_config=VQ | {"num_embeddings": codes, "resolution": 8},
        **(TEXT | text),
    )
    return scatter((kind or ChameleonForConditionalGeneration)(config), seed, spread)


def vqgan(seed: int = 0, **config: Any) -> tuple[Any, dict[str, Tensor]]:
    """The VQ model of transformers, and the tensors of an original file: the same encoder, and a random decoder.

    The defaults fit `chameleon`; `config` changes them.
    """
    torch.manual_seed(seed)
    own = VQ | {"num_embeddings": 20, "resolution": 8}
    vq = ChameleonVQVAE(ChameleonConfig(vq_config=own | config).vq_config)
    tensors = dict(vq.state_dict())
    c = vq.config

    def conv(name: str, into: int, out: int, size: int) -> None:
        tensors[f"{name}.weight"] = torch.randn(out, into, size, size) / (into * size * size) ** 0.5
        tensors[f"{name}.bias"] = torch.randn(out) * 0.1

    def norm(name: str, width: int) -> None:
        tensors[f"{name}.weight"] = 1 + torch.randn(width) * 0.1
        tensors[f"{name}.bias"] = torch.randn(width) * 0.1

    def block(name: str, into: int, out: int) -> None:
        norm(f"{name}.norm1", into)
        conv(f"{name}.conv1", into, out, 3)
        norm(f"{name}.norm2", out)
        conv(f"{name}.conv2", out, out, 3)
        if into != out:
            conv(f"{name}.nin_shortcut", into, out, 1)

    def attention(name: str, width: int) -> None:
        norm(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    width = c.base_channels * c.channel_multiplier[-1]
    conv("decoder.conv_in", c.latent_channels, width, 3)
    block("decoder.mid.block_1", width, width)
    attention("decoder.mid.attn_1", width)
    block("decoder.mid.block_2", width, width)
    for level in reversed(range(len(c.channel_multiplier))):
        out = c.base_channels * c.channel_multiplier[level]
        for i in range(c.num_res_blocks + 1):
            block(f"decoder.up.{level}.block.{i}", width, out)
            width = out
            if c.resolution >> level in (c.attn_resolutions or ()):
                attention(f"decoder.up.{level}.attn.{i}", out)
        if level:
            conv(f"decoder.up.{level}.upsample.conv", out, out, 3)
    norm("decoder.norm_out", width)
    conv("decoder.conv_out", width, 3, 3)
    return vq, tensors


def imagegpt(seed: int = 0, side: int = 4, colours: int = 20, spread: float = 0.3, **config: Any) -> Any:
    """An ImageGPT with images of `side` x `side` tokens; id `colours` is the start token."""
    made = ImageGPTConfig(
        **{"vocab_size": colours + 1, "n_positions": side * side, "n_embd": 32, "n_layer": 2, "n_head": 4, **config}
    )
    return scatter(ImageGPTForCausalImageModeling(made), seed, spread)


def glm(seed: int = 0, codes: int = 20, spread: float = 0.3, **text: Any) -> Any:
    """The first stage of a GLM-Image.

    Ids: image codes below `codes`, begin of image `codes`, end of image `codes + 1`, words up to 44, padding 45.
    """
    config = GlmImageConfig(
        text_config={
            "vocab_size": 48,
            "pad_token_id": 45,
            "vision_vocab_size": codes + 4,
            "eos_token_id": codes + 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [1, 1, 2],
                "partial_rotary_factor": 1.0,
            },
            **TEXT,
            **text,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "num_heads": 2,
            "image_size": 32,
            "patch_size": 4,
            "intermediate_size": 32,
        },
        vq_config={"embed_dim": 8, "num_embeddings": codes, "latent_channels": 16},
        image_token_id=46,
        image_start_token_id=codes,
        image_end_token_id=codes + 1,
    )
    return scatter(GlmImageForConditionalGeneration(config), seed, spread)
