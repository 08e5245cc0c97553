"""A module for multi-token prediction (MTP) that a model ships with, as a drafter.

DeepSeek-V3 (arXiv 2412.19437, section 2.2): from the feature that a token was sampled from and the embedding of the
token, both normalized, one decoder layer predicts the feature after the token. That is an EAGLE head with norms, and it
runs where an EAGLE head does. The module is applied to its own output to draft further ahead; of several modules, which
are trained for one depth each, the first is used.

VITA-Audio's modules for cross-modal tokens (MCTP; Long et al. 2025, arXiv 2505.03739) are the same with other names, as
its code and configurations show: its layers come last among the model's own, and it shares the model's final norm.

What a module computes is what `MtpLayer` of transformers 5.23 computes for a layer of Llama or Qwen3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.arguments import shown
from mmspec.errors import ModelError
from mmspec.heads.attention import Attention, KeysValues, unroll
from mmspec.heads.head import Head
from mmspec.heads.layers import MLP, attention_sizes, check_sizes, norm
from mmspec.heads.rotary import Rotary, rotary_sizes
from mmspec.heads.speculators import FULL, layer_arguments

# The names of a module's parts in published checkpoints, and here.
_DEEPSEEK = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "shared_head.norm": "norm"}
_QWEN = {"pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "fc": "eh_proj", "norm": "norm"}
_VITA = {"mtp_embed_norms.0": "enorm", "mtp_hidden_norms.0": "hnorm", "mtp_projs.0": "eh_proj", "model.norm": "norm"}


class MTPHead(Head):
    """An MTP module. Token i of the sequence has slot `prefix + i`, as in `mmspec.heads.eagle.EagleHead`.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features and of the layer.
        intermediate_size: Width of the MLP.
        num_attention_heads: Number of attention heads.
        num_key_value_heads: Number of heads of keys and values; None for `num_attention_heads`.
        head_dim: Width of a head; None for D divided by the number of heads.
        mtp_qk_norm: Whether queries and keys are normalized, as in Qwen3.
        attention_bias: Whether queries, keys and values have biases.
        rms_norm_eps: Epsilon of the RMS norms.
        rope_theta: Base of the rotary embedding.
        grid_size: Tokens per image side, for a 2-D rotary embedding; None for a 1-D one.
        prefix: Number of prompt slots that the head reads before the one that token 0 was sampled from.
        max_position_embeddings: Number of slots of a 1-D rotary embedding; unused with `grid_size`.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "eagle"

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        mtp_qk_norm: bool = False,
        attention_bias: bool = False,
        rms_norm_eps: float = 1e-6,
        rope_theta: float = 10000.0,
        grid_size: int | None = None,
        prefix: int = 0,
        max_position_embeddings: int = 2048,
    ) -> None:
        super().__init__()
        kv_heads, head_dim = attention_sizes(hidden_size, num_attention_heads, num_key_value_heads, head_dim)
        check_sizes(rotary_sizes(grid_size, prefix, max_position_embeddings))
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.heads = kv_heads
        self.head_dim = head_dim
        self.prefix = prefix
        eps = rms_norm_eps
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.enorm, self.hnorm = nn.RMSNorm(hidden_size, eps=eps), nn.RMSNorm(hidden_size, eps=eps)
        self.eh_proj = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.input_layernorm = nn.RMSNorm(hidden_size, eps=eps)
        heads = num_attention_heads
        self.self_attn = Attention(
            hidden_size, hidden_size, heads, kv_heads, head_dim, eps, attention_bias, False, qk_norm=mtp_qk_norm
        )
        self.post_attention_layernorm = nn.RMSNorm(hidden_size, eps=eps)
        self.mlp = MLP(hidden_size, intermediate_size)
        self.norm = nn.RMSNorm(hidden_size, eps=eps)
        self.rotary = Rotary(self.head_dim, rope_theta, grid_size, prefix, max_position_embeddings, before="identity")

    @property
    def device(self) -> torch.device:
        return self.eh_proj.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.eh_proj.weight.dtype

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training; the module starts by predicting the feature that it reads, normalized."""
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "bias")):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=std)
        with torch.no_grad():
            self.eh_proj.weight[:, self.hidden_size :] += torch.eye(self.hidden_size)

    def project(self, tokens: Tensor, features: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, KeysValues]:
        """Keys and values have `heads` heads."""
        embeds = norm(self.enorm, self.embed_tokens(tokens))
        x = self.eh_proj(torch.cat([embeds, norm(self.hnorm, features)], dim=-1))
        y = norm(self.input_layernorm, x)
        q, (k, v) = self.self_attn.queries(y), self.self_attn.keys_values(y)
        angles = self.rotary.at(slots)
        return x, self.rotary.rotate(q, angles).to(v.dtype), (self.rotary.rotate(k, angles).to(v.dtype), v)

    def finish(self, x: Tensor, q: Tensor, cache: KeysValues, bias: Tensor | None) -> Tensor:
        return self._finish(x, F.scaled_dot_product_attention(q, *cache, attn_mask=bias, enable_gqa=True))

    def unroll(self, tokens: Tensor, features: Tensor, depth: int) -> list[Tensor]:
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        return unroll(lambda features: self.project(tokens, features, slots), self._finish, features, depth)

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return norm(self.norm, x + self.mlp(norm(self.post_attention_layernorm, x)))


def has_mtp(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is that of a whole model with MTP modules."""
    return any(config.get(name) for name in ("num_nextn_predict_layers", "num_mtp_layers"))


def mtp_arguments(folder: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of `MTPHead` for the configuration of a whole model.

    Args:
        folder: Where it is from, for errors.
        config: The content of `config.json`.
        tensors: From `mtp_tensors`.

    Raises:
        ModelError: If there is no module, or its layer is not one of Llama or Qwen3, such as a mixture of experts.
    """
    if not {"eh_proj.weight", "embed_tokens.weight"} <= tensors.keys():
        raise ModelError(
            f"drafter {folder!r} has no MTP module with names of DeepSeek (model.layers.N.eh_proj), Qwen (mtp.fc) or "
            "VITA-Audio (mtp_projs)"
        )
    foreign = sorted(name for name in tensors if "experts" in name or "kv_a" in name or ".gate." in name)
    if foreign:
        raise ModelError(
            f"drafter {folder!r} has an MTP module with {shown(foreign[0])}; mmspec reads layers of llama and qwen3"
        )
    types = config.get("layer_types") or ()
    if any(kind != FULL for kind in types):
        raise ModelError(f"drafter {folder!r} has layer_types={shown(types)}; with an MTP module all must be {FULL}")
    return layer_arguments(folder, config) | {
        "vocab_size": len(tensors["embed_tokens.weight"]),
        "mtp_qk_norm": "self_attn.q_norm.weight" in tensors,
        "attention_bias": "self_attn.q_proj.bias" in tensors,
    }


def mtp_tensors(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], embedding: Tensor | None = None
) -> dict[str, Tensor]:
    """The tensors of the first module of a whole model, by the names of `MTPHead`.

    Args:
        config: The content of `config.json`.
        tensors: Of the whole model.
        embedding: Embedding [V, D] of the target's tokens, which the module shares; None for that in `tensors`.
    """
    found: dict[str, Tensor] = {}
    layers, modules = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if "mtp_projs.0.weight" in tensors and isinstance(layers, int) and isinstance(modules, int):
        layers -= modules  # which it counts among the layers
        found = {f"{new}.weight": tensors[f"{old}.weight"] for old, new in _VITA.items() if f"{old}.weight" in tensors}
    first = f"model.layers.{layers}."
    for prefix, names in ((first, _DEEPSEEK), ("mtp.", _QWEN)):
        for name, tensor in tensors.items():
            if not name.startswith(prefix) or name.startswith((f"{prefix}embed_tokens.", f"{prefix}shared_head.head.")):
                continue
            part, _, last = name.removeprefix(prefix).rpartition(".")
            found[f"{names.get(part, part.removeprefix('layers.0.'))}.{last}"] = tensor
    own = (f"{first}embed_tokens.weight", "mtp.embed_tokens.weight", "model.embed_tokens.weight")
    if embedding is None:
        embedding = next((tensors[name] for name in own if name in tensors), None)
    return found if embedding is None else {**found, "embed_tokens.weight": embedding}
