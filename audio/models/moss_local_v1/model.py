"""The first MOSS-TTS-Local (OpenMOSS): a Qwen3 over frames, and layers of Qwen3 without positions along the depth."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from mmspec.arguments import shown
from mmspec.audio.config_file import integer_in
from mmspec.audio.published_folder import read_published
from mmspec.errors import ModelError
from mmspec.hf.cache_name import cache_input
from mmspec.hf.slot_cache import SlotCache


@dataclass(frozen=True)
class LocalV1Config:
    """The part of `config.json` that decoding needs.

    Attributes:
        language: The config of the Qwen3.
        local: That of the layers along the depth.
        adapter: Width of the MLPs between the two.
        codebooks: K.
        codes: Codes of a codebook; the next id is padding.
        slot: The text id of a frame that is generated.
        user_slot: The text id of a frame in a user's message.
        start: The text id that begins audio.
        end: The text id that ends audio.
    """

    language: Qwen3Config
    local: Qwen3Config
    adapter: int
    codebooks: int
    codes: int
    slot: int
    user_slot: int
    start: int
    end: int


def is_local_v1(found: Mapping[str, Any]) -> bool:
    """Whether the content of a `config.json` is that of this model; it names the class of MOSS-TTS with delays."""
    return "local_num_layers" in found


def read_config(found: Mapping[str, Any], what: str) -> LocalV1Config:
    """Reads a `config.json`; missing values are those of the original's class.

    Raises:
        ModelError: If a value is missing or not allowed.
    """

    value = partial(integer_in, found, what)
    language = found.get("language_config")
    if not isinstance(language, Mapping):
        raise ModelError(f"{what} has no language_config in its config.json")
    local = deepcopy(dict(language))
    local.pop("layer_types", None)
    local |= {
        "num_hidden_layers": value("local_num_layers", 4, 1),
        "hidden_size": value("local_hidden_size", 1536, 1),
        "intermediate_size": value("local_ffn_hidden_size", 8960, 1),
    }
    local["max_window_layers"] = local["num_hidden_layers"]
    config = LocalV1Config(
        language=Qwen3Config(**language),
        local=Qwen3Config(**local),
        adapter=value("additional_mlp_ffn_hidden_size", 2048, 1),
        codebooks=value("n_vq", 32, 1),
        codes=value("audio_vocab_size", 1024, 2),
        slot=value("audio_assistant_gen_slot_token_id", 151656),
        user_slot=value("audio_user_slot_token_id", 151654),
        start=value("audio_start_token_id", 151652),
        end=value("audio_end_token_id", 151653),
    )
    largest = max(config.slot, config.user_slot, config.start, config.end)
    if largest >= config.language.vocab_size or found.get("audio_pad_code", config.codes) != config.codes:
        raise ModelError(
            f"{what} has a config.json that contradicts itself: {largest} of {config.language.vocab_size} text ids, "
            f"audio_pad_code={shown(found.get('audio_pad_code'))} after {config.codes} codes"
        )
    return config


class GatedMLP(nn.Module):
    """A gated MLP between two widths."""

    def __init__(self, width: int, inner: int, out: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] to [..., out]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class LocalLayers(nn.Module):
    """The layers along the depth, which have no positions.

    Args:
        config: Their sizes.
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        config._attn_implementation = "sdpa"
        self.layers = nn.ModuleList(Qwen3DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._head_dim = int(config.head_dim)

    def forward(self, x: Tensor, mask: Tensor, cache: SlotCache | None) -> Tensor:
        """Embeddings [R, W, D] to hidden states [R, W, D].

        Args:
            x: The embeddings.
            mask: Added to the attention scores, [R or 1, 1, W, end].
            cache: The KV cache, at the slots of this call; None for a call that attends to itself alone.
        """
        cos = x.new_ones(1, 1, self._head_dim)
        rotary = cos, torch.zeros_like(cos)
        for layer in self.layers:
            x = layer(x, attention_mask=mask, position_embeddings=rotary, **cache_input(layer, cache))
        normed: Tensor = self.norm(x)
        return normed


class Embeddings(nn.Module):
    """The Qwen3 and the tables of texts and codes, with the parameter names of the published files.

    Args:
        config: The configuration.
    """

    def __init__(self, config: LocalV1Config) -> None:
        super().__init__()
        width, ids = config.language.hidden_size, config.codes + 1
        sizes = [config.language.vocab_size] + [ids] * config.codebooks
        self.embedding_list = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.language_model = Qwen3Model(config.language)


class MossLocalV1(nn.Module):
    """The first MOSS-TTS-Local, with the parameter names of the published files.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: LocalV1Config) -> None:
        super().__init__()
        self.config = config
        width, own, count = config.language.hidden_size, config.local.hidden_size, 1 + config.codebooks
        self.model = Embeddings(config)
        self.local_transformer = LocalLayers(config.local)
        self.speech_embedding_to_local_mlp = GatedMLP(width, config.adapter, own)
        self.local_to_speech_embedding_mlps = nn.ModuleList(GatedMLP(own, config.adapter, width) for _ in range(count))
        self.layer_norm_before_lm_heads = nn.ModuleList(Qwen3RMSNorm(width, eps=1e-6) for _ in range(count))
        sizes = [config.language.vocab_size] + [config.codes + 1] * config.codebooks
        self.lm_heads = nn.ModuleList(nn.Linear(width, size, bias=False) for size in sizes)

    @property
    def device(self) -> torch.device:
        return self.table(0).device

    def table(self, channel: int) -> Tensor:
        """The embeddings of text ids, which are channel 0, or of codebook `channel - 1`."""
        table = self.model.embedding_list[channel]
        assert isinstance(table, nn.Embedding)
        return table.weight

    def decision_ids(self, decisions: Tensor) -> Tensor:
        """Decisions int64 [...], 0 for "a frame", as text ids; others are "the end"."""
        return torch.where(decisions == 0, self.config.slot, self.config.end)

    def embed(self, text: Tensor, codes: Tensor) -> Tensor:
        """Embeddings [..., D] of text ids int64 [...] and codes int64 [..., k] of the first k codebooks."""
        embeds = self.table(0)[text]
        for book, column in enumerate(codes.unbind(-1)):
            embeds = embeds + self.table(1 + book)[column]
        return embeds

    def logits(self, hidden: Tensor, channel: int) -> Tensor:
        """Logits of a channel, of hidden states [..., H] along the depth: [..., 2] of "a frame" and "the end" for
        channel 0, else [..., codes]."""
        config, head = self.config, self.lm_heads[channel]
        assert isinstance(head, nn.Linear)
        weight = head.weight
        rows = weight[: config.codes] if channel else torch.stack([weight[config.slot], weight[config.end]])
        normed = self.layer_norm_before_lm_heads[channel](self.local_to_speech_embedding_mlps[channel](hidden))
        return F.linear(normed, rows)

    def decision(self, hidden: Tensor) -> Tensor:
        """Logits [..., 2] of "a frame" and "the end", of hidden states [..., D] of the Qwen3."""
        alone = self.speech_embedding_to_local_mlp(hidden).reshape(-1, 1, self.config.local.hidden_size)
        return self.logits(self.local_transformer(alone, alone.new_zeros(1, 1, 1, 1), None), 0).view(
            *hidden.shape[:-1], 2
        )


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> MossLocalV1:
    """The model in a published folder; see `mmspec.audio.published_folder.read_published`."""
    model = read_published(
        folder, device, dtype, "a MOSS-TTS-Local", lambda found, what: MossLocalV1(read_config(found, what))
    )
    rotary = Qwen3RotaryEmbedding(model.config.language).to(device)  # not in the files
    model.model.language_model.rotary_emb = rotary
    return model
