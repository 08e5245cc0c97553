"""MOSS-TTS-Local v1.5 (OpenMOSS): a Qwen3 over frames, and a small transformer over the codes of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model
from transformers.activations import ACT2FN
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from mmspec.arguments import shown
from mmspec.audio.config_file import integer_in
from mmspec.audio.published_folder import read_published
from mmspec.errors import ModelError
from mmspec.hf.slot_cache import SlotCache


@dataclass(frozen=True)
class LocalConfig:
    """The sizes of the transformer along the depth.

    Attributes:
        width: Its width, which is the Qwen3's too.
        inner: Width of its MLPs.
        layers: Number of layers.
        heads: Attention heads.
        positions: Embeddings of positions; 0 for rotary ones.
        rope_base: Base of rotary embeddings.
        activation: Name of the MLPs' activation.
        epsilon: Of its norms.
    """

    width: int
    inner: int
    layers: int
    heads: int
    positions: int
    rope_base: float
    activation: str
    epsilon: float


@dataclass(frozen=True)
class MossLocalConfig:
    """The part of `config.json` that decoding needs.

    Attributes:
        language: The config of the Qwen3.
        local: The transformer along the depth.
        codebooks: K.
        codes: Codes of a codebook.
        code_pad: The code in place of none.
        binary: Whether "another frame" or "the end" has a head of two outputs; else it is that of the text's ids.
        slot: The text id of a frame that is generated.
        user_slot: The text id of a frame in a user's message.
        start: The text id that begins audio.
        end: The text id that ends audio.
        message_start: The text id that begins a message.
        message_end: The text id that ends a message.
    """

    language: Qwen3Config
    local: LocalConfig
    codebooks: int
    codes: int
    code_pad: int
    binary: bool
    slot: int
    user_slot: int
    start: int
    end: int
    message_start: int
    message_end: int


def read_config(found: Mapping[str, Any], what: str) -> MossLocalConfig:
    """Reads a `config.json`; missing values are those of the original's class.

    Raises:
        ModelError: If a value is missing or not allowed.
    """

    value = partial(integer_in, found, what)
    language = found.get("qwen3_config", found.get("language_config"))
    local = found.get("gpt2_config")
    if not isinstance(language, Mapping) or not isinstance(local, Mapping):
        raise ModelError(f"{what} has no qwen3_config or no gpt2_config in its config.json")
    of_local = partial(integer_in, local, what)
    bases = ("rope_theta", "rope_parameters", "rope_scaling")
    base = {} if any(language.get(name) is not None for name in bases) else {"rope_theta": 1_000_000.0}
    qwen3, books = Qwen3Config(**{**language, **base}), value("n_vq", 12, least=2)
    codes = value("audio_vocab_size", 1024, least=2)
    sizes, place = found.get("audio_codebook_sizes"), local.get("position_embedding_type", "absolute")
    if sizes is not None and sizes != [codes] * books:
        raise ModelError(f"{what} has audio_codebook_sizes={shown(sizes)}; {books} of {codes} are supported")
    if place not in ("absolute", "rope"):
        raise ModelError(f"{what} has position_embedding_type={shown(place)}; it must be 'absolute' or 'rope'")
    mode, width = found.get("local_text_head_mode", "binary"), of_local("n_embd", 768, 1)
    if mode not in ("binary", "full_vocab"):
        raise ModelError(f"{what} has local_text_head_mode={shown(mode)}; it must be 'binary' or 'full_vocab'")
    if local.get("scale_attn_by_inverse_layer_idx") or local.get("scale_attn_weights") is False:
        raise ModelError(f"{what} has another scale of attention in its gpt2_config, which is not supported")
    config = MossLocalConfig(
        language=qwen3,
        local=LocalConfig(
            width=width,
            inner=of_local("n_inner", 4 * width, 1),
            layers=value("local_transformer_layers", of_local("n_layer", 12, 1), least=1),
            heads=of_local("n_head", 12, 1),
            positions=books + 1 if place == "absolute" else 0,
            rope_base=float(local.get("rope_base", 10_000.0)),
            activation=str(local.get("activation_function", "gelu_new")),
            epsilon=float(local.get("layer_norm_epsilon", 1e-5)),
        ),
        codebooks=books,
        codes=codes,
        code_pad=value("audio_pad_code", value("audio_pad_token_id", 1024), least=codes),
        binary=mode == "binary",
        slot=value("audio_assistant_gen_slot_token_id", value("audio_assistant_slot_token_id", 151656)),
        user_slot=value("audio_user_slot_token_id", 151654),
        start=value("audio_start_token_id", 151669),
        end=value("audio_end_token_id", 151670),
        message_start=value("im_start_token_id", 151644),
        message_end=value("im_end_token_id", 151645),
    )
    ids = (config.slot, config.user_slot, config.start, config.end, config.message_start, config.message_end)
    if max(ids) >= qwen3.vocab_size or width != qwen3.hidden_size or width % (2 * config.local.heads):
        raise ModelError(
            f"{what} has a config.json that contradicts itself: {max(ids)} of {qwen3.vocab_size} text ids, widths "
            f"{qwen3.hidden_size} and {width}, {config.local.heads} heads"
        )
    if config.local.activation not in ACT2FN:
        raise ModelError(f"{what} has activation_function={shown(config.local.activation)}, which is unknown")
    return config


class LocalTransformer(nn.Module):
    """The transformer along the depth, with the parameter names of the published files.

    Args:
        config: Its sizes.
    """

    def __init__(self, config: LocalConfig) -> None:
        super().__init__()
        self.wpe = nn.Embedding(config.positions, config.width) if config.positions else None
        self.h = nn.ModuleList(LocalLayer(config, layer) for layer in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=config.epsilon)

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache | None) -> Tensor:
        """Embeddings [R, W, D] at positions int64 [R, W] to hidden states [R, W, D].

        Args:
            x: The embeddings.
            mask: Added to the attention scores, [R or 1, 1, W, end].
            positions: Where they are.
            cache: The KV cache, at the slots of this call; None for a call that attends to itself alone.
        """
        if self.wpe is not None:
            # A window may reach past the last code, where logits are not used.
            x = x + self.wpe(positions.clamp(max=self.wpe.num_embeddings - 1))
        for layer in self.h:
            x = layer(x, mask, positions, cache)
        normed: Tensor = self.ln_f(x)
        return normed


class LocalLayer(nn.Module):
    """A layer of `LocalTransformer`."""

    def __init__(self, config: LocalConfig, number: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(config.width, eps=config.epsilon) for _ in range(2))
        width, inner = config.width, config.inner
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc_in": nn.Linear(width, inner), "fc_out": nn.Linear(inner, width)})
        self._activation, self._heads, self._number = ACT2FN[config.activation], config.heads, number
        self._rope_base = 0.0 if config.positions else config.rope_base

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache | None) -> Tensor:
        parts = self.attn["c_attn"](self.ln_1(x)).chunk(3, dim=-1)
        query, key, value = (each.unflatten(-1, (self._heads, -1)).transpose(1, 2) for each in parts)
        if self._rope_base:
            query, key = (rotated(each, positions, self._rope_base) for each in (query, key))
        if cache is not None:
            key, value = cache.update(key, value, self._number)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.attn["c_proj"](attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp["fc_out"](self._activation(self.mlp["fc_in"](self.ln_2(x))))
        return out


def rotated(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Queries or keys [R, heads, W, d] with rotary embeddings of neighboring pairs at positions int64 [R, W]."""
    size = x.shape[-1]
    speed = base ** (-torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size)
    angle = (positions[..., None] * speed)[:, None]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


class MossLocal(nn.Module):
    """A MOSS-TTS-Local, with the parameter names of the published files; heads share the tables of embeddings.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: MossLocalConfig) -> None:
        super().__init__()
        self.config = config
        width = config.local.width
        self.transformer = Qwen3Model(config.language)
        self.local_transformer = LocalTransformer(config.local)
        self.audio_embeddings = nn.ModuleList(nn.Embedding(config.codes, width) for _ in range(config.codebooks))
        self.local_text_lm_head = nn.Linear(width, 2, bias=False) if config.binary else None

    @property
    def device(self) -> torch.device:
        return self.transformer.embed_tokens.weight.device

    def table(self, book: int) -> Tensor:
        """The vectors of a codebook, [codes, D], which are its head too."""
        table = self.audio_embeddings[book]
        assert isinstance(table, nn.Embedding)
        return table.weight

    def embed(self, text: Tensor, codes: Tensor) -> Tensor:
        """Embeddings [..., D] of text ids int64 [...] and codes int64 [..., K]; codes beyond the last add nothing."""
        embeds: Tensor = self.transformer.embed_tokens(text)
        for table, column in zip(self.audio_embeddings, codes.unbind(-1), strict=True):
            absent = (column >= self.config.codes)[..., None]
            embeds = embeds + table(column.clamp(max=self.config.codes - 1)).masked_fill(absent, 0)
        return embeds

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Embeddings [..., D] of generated frames int64 [..., K]."""
        return self.embed(torch.full_like(frames[..., 0], self.config.slot), frames)

    def first_logits(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of "another frame" and "the end", [..., 2], and of the first code, [..., codes].

        Args:
            hidden: The hidden states of the Qwen3, [..., D].
        """
        alone = hidden.reshape(-1, 1, hidden.shape[-1])
        mask, start = alone.new_zeros(1, 1, 1, 1), torch.zeros_like(alone[..., 0], dtype=torch.int64)
        local = self.local_transformer(alone, mask, start, None).view(hidden.shape)
        if self.local_text_lm_head is not None:
            text = self.local_text_lm_head(local)
        else:
            text = F.linear(local, self.transformer.embed_tokens.weight[[self.config.slot, self.config.end]])
        return text, F.linear(local, self.table(0))


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> MossLocal:
    """The model in a published folder; see `mmspec.audio.published_folder.read_published`."""
    model = read_published(
        folder, device, dtype, "a MOSS-TTS-Local", lambda found, what: MossLocal(read_config(found, what)), untied
    )
    model.transformer.rotary_emb = Qwen3RotaryEmbedding(model.config.language).to(device)  # not in the files
    return model


def untied(name: str) -> str:
    """The name of a published tensor; heads that share a table, of which a file may have either, have the table's."""
    if name == "text_lm_head.weight":
        return "transformer.embed_tokens.weight"
    return name.replace("audio_lm_heads.", "audio_embeddings.")
