"""Fish Audio S2 Pro: a Qwen3 over frames and text, and a small transformer over the codes of each frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model

from mmspec.arguments import shown
from mmspec.audio.config_file import integer_in
from mmspec.audio.rounded_rotary import RoundedRotary
from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_depths, load_tensors, read_model_tensors
from mmspec.hf.folder import BUFFERS, read_json

SLOW, FAST = "text_model.model.", "audio_decoder."
NAMES = {
    "attention.wo.": "self_attn.o_proj.",
    "attention.q_norm.": "self_attn.q_norm.",
    "attention.k_norm.": "self_attn.k_norm.",
    "attention_norm.": "input_layernorm.",
    "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w3.": "mlp.up_proj.",
    "feed_forward.w2.": "mlp.down_proj.",
    "ffn_norm.": "post_attention_layernorm.",
}


@dataclass(frozen=True)
class FishConfig:
    """The part of `config.json` that decoding needs.

    Attributes:
        slow: The config of the transformer over frames; a Qwen3 if queries and keys are normalized, else a Llama.
        fast: The same of the transformer over the codes of a frame.
        codebooks: K.
        codes: Codes of a codebook.
        first: The text id of code 0 of the first codebook; those of its other codes follow.
        end: The text id that ends the audio.
        tied: Whether the head of the text ids is their embedding.
    """

    slow: LlamaConfig | Qwen3Config
    fast: LlamaConfig | Qwen3Config
    codebooks: int
    codes: int
    first: int
    end: int
    tied: bool


def read_config(found: Mapping[str, Any], what: str) -> FishConfig:
    """Reads a `config.json`.

    Raises:
        ModelError: If a value is missing or not allowed.
    """
    slow, fast = found.get("text_config"), found.get("audio_decoder_config")
    if not isinstance(slow, Mapping) or not isinstance(fast, Mapping):
        raise ModelError(f"{what} has no text_config or no audio_decoder_config in its config.json")
    config = FishConfig(
        slow=transformer(slow, what),
        fast=transformer(fast, what),
        codebooks=integer_in(fast, what, "num_codebooks", least=2),
        codes=integer_in(fast, what, "vocab_size", least=2),
        first=integer_in(found, what, "semantic_start_token_id"),
        end=integer_in(found, what, "eos_token_id"),
        tied=bool(slow.get("tie_word_embeddings", True)),
    )
    last, texts = integer_in(found, what, "semantic_end_token_id"), integer_in(slow, what, "vocab_size", least=1)
    widths = {config.slow.hidden_size, config.fast.hidden_size, fast.get("text_dim", config.slow.hidden_size)}
    if last - config.first + 1 != config.codes or max(last, config.end) >= texts or len(widths) > 1:
        raise ModelError(
            f"{what} has a config.json that contradicts itself: ids {config.first} to {last} and {config.end} of "
            f"{texts} for {config.codes} codes, and widths {sorted(map(str, widths))}"
        )
    return config


def transformer(found: Mapping[str, Any], what: str) -> LlamaConfig | Qwen3Config:
    """One of the two transformers as a config of transformers.

    Raises:
        ModelError: If a value is missing or not allowed.
    """
    for name in ("attention_qkv_bias", "attention_o_bias", "use_moe"):
        if found.get(name):
            raise ModelError(f"{what} has {name}={shown(found[name])} in its config.json, which is not supported")
    numbers = {name: found.get(name, default) for name, default in (("rope_base", 1e6), ("norm_eps", 1e-6))}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ModelError(f"{what} has {name}={shown(value)} in its config.json, which is not allowed")
    kind = Qwen3Config if found.get("attention_qk_norm") else LlamaConfig
    return kind(
        vocab_size=1,
        hidden_size=integer_in(found, what, "dim", least=1),
        intermediate_size=integer_in(found, what, "intermediate_size", least=1),
        num_hidden_layers=integer_in(found, what, "n_layer", least=1),
        num_attention_heads=integer_in(found, what, "n_head", least=1),
        num_key_value_heads=integer_in(found, what, "n_local_heads", least=1),
        head_dim=integer_in(found, what, "head_dim", least=1),
        max_position_embeddings=found.get("max_seq_len", 32768),
        rms_norm_eps=float(numbers["norm_eps"]),
        rope_parameters={"rope_type": "default", "rope_theta": float(numbers["rope_base"])},
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def layers_of(config: LlamaConfig | Qwen3Config) -> Any:
    """The layers of a transformer and their norm, without an embedding."""
    made: Any = Qwen3Model(config) if isinstance(config, Qwen3Config) else LlamaModel(config)
    del made.embed_tokens
    return made


class FishS2(nn.Module):
    """An S2 Pro without its codec.

    Args:
        config: Its configuration.
        texts: Number of text ids.
    """

    def __init__(self, config: FishConfig, texts: int) -> None:
        super().__init__()
        self.config = config
        width, codes = config.slow.hidden_size, config.codes
        self.slow, self.fast = layers_of(config.slow), layers_of(config.fast)
        self.text_embeddings = nn.Embedding(texts, width)
        self.text_head = None if config.tied else nn.Linear(width, texts, bias=False)
        self.codebook_embeddings = nn.Embedding(codes * config.codebooks, width)  # of frames that were generated
        self.fast_embeddings = nn.Embedding(codes, width)  # of the codes of the frame that is being generated
        self.fast_head = nn.Linear(width, codes, bias=False)

    @property
    def device(self) -> torch.device:
        return self.text_embeddings.weight.device

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Frames int64 [..., K] to embeddings [..., D]: those of the first code's text id and of all codes."""
        config = self.config
        frames = frames.clamp(0, config.codes - 1)
        offsets = config.codes * torch.arange(config.codebooks, device=frames.device)
        text: Tensor = self.text_embeddings(frames[..., 0] + config.first)
        codes: Tensor = self.codebook_embeddings(frames + offsets)
        return (text + codes.sum(-2)) / (config.codebooks + 1) ** 0.5

    def first_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to logits [..., codes + 1] of the first code, and of the end after them."""
        config = self.config
        weight = self.text_embeddings.weight if self.text_head is None else self.text_head.weight
        ids = torch.cat([weight[config.first : config.first + config.codes], weight[config.end : config.end + 1]])
        return F.linear(hidden, ids)


def renamed(state: Mapping[str, Tensor], config: FishConfig) -> dict[str, Tensor]:
    """Published weights under the names of `FishS2`.

    The original rotates pairs of neighboring dimensions of queries and keys, transformers the two halves.
    """
    whole = {
        SLOW + "embeddings.": "text_embeddings.",
        SLOW + "norm.": "slow.norm.",
        "text_model.lm_head.": "text_head.",
        FAST + "norm.": "fast.norm.",
        FAST + "embeddings.": "fast_embeddings.",
        FAST + "codebook_embeddings.": "codebook_embeddings.",
        FAST + "output.": "fast_head.",
    }
    parts = {SLOW + "layers.": ("slow.layers.", config.slow), FAST + "layers.": ("fast.layers.", config.fast)}
    out = dict[str, Tensor]()
    for name, tensor in state.items():
        if BUFFERS.search(name) or name.startswith("audio_encoder.") or (config.tied and "lm_head." in name):
            continue
        layers = next((prefix for prefix in parts if name.startswith(prefix)), None)
        if layers is None:
            prefix = next((prefix for prefix in whole if name.startswith(prefix)), None)
            out[name if prefix is None else whole[prefix] + name.removeprefix(prefix)] = tensor
            continue
        (target, sizes), rest = parts[layers], name.removeprefix(layers)
        if rest.endswith(".attention.wqkv.weight") and tensor.ndim == 2:
            heads = (sizes.num_attention_heads, sizes.num_key_value_heads, sizes.num_key_value_heads)
            place = target + rest.removesuffix("attention.wqkv.weight") + "self_attn."
            rows = [count * sizes.head_dim for count in heads]
            if sum(rows) == len(tensor):
                q, k, v = tensor.split(rows)
                out[place + "q_proj.weight"], out[place + "k_proj.weight"] = halves(q, heads[0]), halves(k, heads[1])
                out[place + "v_proj.weight"] = v
                continue
        if rest.endswith(("_norm.weight",)) and ".attention." in rest and tensor.ndim == 1 and len(tensor) % 2 == 0:
            tensor = halves(tensor, 1)
        for old, new in NAMES.items():
            rest = rest.replace(old, new)
        out[target + rest] = tensor
    return out


def halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of `heads` heads, in each of which pairs of neighbors become two halves."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> FishS2:
    """The model in a published folder; see `mmspec.audio.published_folder.read_published`."""
    what, found, state = f"model {str(folder)!r}", read_json(folder / "config.json"), read_model_tensors(folder)
    check_depths(what, {name: each for name, each in found.items() if name != "audio_encoder_config"}, len(state))
    with building(what, "a Fish S2"):
        model = FishS2(read_config(found, what), integer_in(found["text_config"], what, "vocab_size", least=1))
    used = renamed(state, model.config)
    load_tensors(what, used, model, device, dtype)
    for part in (model.slow, model.fast):
        part.rotary_emb = RoundedRotary(part.config).to(device)  # it has no weights in the files
    return model.requires_grad_(False).eval()
