"""HeartMuLa's parts, and its weights in the published layout, whose names are those of torchtune."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from mmspec.errors import ModelError, unknown_name
from mmspec.files.checkpoint import building, load_tensors, read_model_tensors
from mmspec.hf.folder import read_json

LARGEST = 2**20  # of a size in a configuration


@dataclass(frozen=True)
class Flavor:
    """The sizes of a transformer, which the configuration names.

    Attributes:
        layers: Number of layers.
        heads: Number of attention heads.
        kv_heads: Number of heads of keys and values.
        dim: Width.
        intermediate: Width of the MLPs.
        positions: Largest number of positions.
    """

    layers: int
    heads: int
    kv_heads: int
    dim: int
    intermediate: int
    positions: int

    def config(self) -> LlamaConfig:
        """As a configuration of transformers: Llama 3.2, whose rotary embedding is scaled."""
        rope = {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        return LlamaConfig(
            vocab_size=1,
            hidden_size=self.dim,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=max(self.positions, 2 * 8192),  # without effect on this rotary embedding
            rms_norm_eps=1e-5,
            rope_parameters=rope,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )


FLAVORS = {
    "llama-3B": Flavor(28, 24, 8, 3072, 8192, 8192),
    "llama-300M": Flavor(3, 8, 4, 3072, 8192, 2048),
    "llama-7B": Flavor(32, 32, 8, 4096, 14336, 8192),
    "llama-400M": Flavor(4, 8, 4, 3072, 8192, 2048),
}
NAMES = {
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.output_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
    "sa_norm.scale": "input_layernorm.weight",
    "mlp_norm.scale": "post_attention_layernorm.weight",
    "norm.scale": "norm.weight",
}


@dataclass(frozen=True)
class HeartMuLaConfig:
    """The content of `config.json`.

    Attributes:
        backbone: Sizes of the backbone.
        decoder: Sizes of the depth decoder.
        text_vocab_size: Number of text tokens.
        audio_vocab_size: V, tokens of a codebook.
        audio_num_codebooks: K, codes of a frame.
        muq_dim: Width of the embeddings of reference audio.
    """

    backbone: Flavor
    decoder: Flavor
    text_vocab_size: int
    audio_vocab_size: int
    audio_num_codebooks: int
    muq_dim: int


class HeartMuLa(nn.Module):
    """The model; names of weights are the published ones, but for the layers of the two transformers.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: HeartMuLaConfig) -> None:
        super().__init__()
        self.config = config
        dim, books, size = config.backbone.dim, config.audio_num_codebooks, config.audio_vocab_size
        self.backbone, self.decoder = (LlamaModel(each.config()) for each in (config.backbone, config.decoder))
        del self.backbone.embed_tokens, self.decoder.embed_tokens
        self.text_embeddings = nn.Embedding(config.text_vocab_size, dim)
        self.audio_embeddings = nn.Embedding(size * books, dim)
        self.unconditional_text_embedding = nn.Embedding(1, dim)
        self.projection = nn.Linear(dim, config.decoder.dim, bias=False)
        self.codebook0_head = nn.Linear(dim, size, bias=False)
        self.audio_head = nn.Parameter(torch.zeros(books - 1, config.decoder.dim, size))
        self.muq_linear = nn.Linear(config.muq_dim, dim)

    @property
    def device(self) -> torch.device:
        return self.audio_head.device

    def embed_codes(self, codes: Tensor, books: Tensor | int) -> Tensor:
        """Codes int64 [...] of codebooks int64 [...], or one for all, to embeddings [..., D]."""
        embeds: Tensor = self.audio_embeddings(codes + books * self.config.audio_vocab_size)
        return embeds

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Frames int64 [..., K] to embeddings [..., D]: the sum of those of their codes."""
        return self.embed_codes(frames, torch.arange(frames.shape[-1], device=frames.device)).sum(-2)


def read_config(found: Mapping[str, Any], what: str) -> HeartMuLaConfig:
    """The configuration in the content of a `config.json`; defaults are the original's.

    Raises:
        UnknownNameError: For an unknown flavor.
        ModelError: For a size out of range.
    """
    names = {"backbone_flavor": "llama-3B", "decoder_flavor": "llama-300M"}
    flavors = {name: found.get(name, default) for name, default in names.items()}
    for name, flavor in flavors.items():
        if flavor not in FLAVORS:
            raise unknown_name(name, str(flavor), FLAVORS)
    sizes = {"text_vocab_size": 128256, "audio_vocab_size": 8197, "audio_num_codebooks": 8, "muq_dim": 512}
    values = {name: found.get(name, default) for name, default in sizes.items()}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= LARGEST:
            raise ModelError(f"{what}: {name} is {value!r}; it must be an integer, 2 to {LARGEST}")
    return HeartMuLaConfig(FLAVORS[flavors["backbone_flavor"]], FLAVORS[flavors["decoder_flavor"]], **values)


def converted(state: Mapping[str, Tensor], config: HeartMuLaConfig) -> dict[str, Tensor]:
    """Published weights under the names of `HeartMuLa`.

    torchtune rotates pairs of neighboring dimensions of queries and keys, transformers the two halves.
    """
    parts, out = {"backbone": config.backbone, "decoder": config.decoder}, dict[str, Tensor]()
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        if part in parts and rest:
            found = re.fullmatch(r"(layers\.\d+\.)?(.+?)(\.weight)?", rest)
            assert found is not None
            layer, inner, weight = found[1] or "", found[2], found[3] or ""
            heads = {"attn.q_proj": parts[part].heads, "attn.k_proj": parts[part].kv_heads}.get(inner)
            if heads is not None and tensor.ndim == 2 and len(tensor) % (2 * heads) == 0:
                tensor = tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
            name = f"{part}.{layer}{NAMES.get(inner, inner)}{weight}"
        out[name] = tensor
    return out


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> HeartMuLa:
    """The model in a published folder; see `mmspec.audio.published_folder.read_published`."""
    what = f"model {str(folder)!r}"
    config, state = read_config(read_json(folder / "config.json"), what), read_model_tensors(folder)
    with building(what, "a HeartMuLa"), torch.device("meta"):
        model = HeartMuLa(config)
    used = converted(state, config)
    load_tensors(what, used, model, device, dtype)
    for decoder in (model.backbone, model.decoder):
        decoder.rotary_emb = LlamaRotaryEmbedding(decoder.config).to(device)  # it has no weights in the files
    return model.requires_grad_(False).eval()
