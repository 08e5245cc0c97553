"""The model of MiniCPM-o 4.5 from its published folder, without its towers of images and audio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations
from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from mmspec.arguments import shown
from mmspec.audio.config_file import integer_in
from mmspec.audio.published_folder import read_published
from mmspec.errors import ModelError

# What supported models have in their tts_config, and the values of the original's class where a file leaves them open.
SUPPORTED: Mapping[str, tuple[Any, Any]] = {
    "num_vq": (1, 1),
    "backbone_model": ("llama", "llama"),
    "condition_type": ("hidden_text_merge", "llm_hidden"),
    "projector_type": ("mlp", "mlp"),
    "interleaved": (False, False),
}
UNREAD = (
    "vpm.", "resampler.", "apm.", "audio_projection_layer.", "llm.lm_head.", "tts.projector_spk.",
    "tts.model.embed_tokens.",
)  # fmt: skip


@dataclass(frozen=True)
class MiniCPMOConfig:
    """The part of `config.json` that decoding needs.

    Attributes:
        language: The config of the Qwen3.
        talker: That of the Llama that writes codes.
        text_ids: Ids of text that the talker embeds.
        codes: Number of codes; the next id is the end.
        marks: The ids of text after which codes begin.
        normalized: Whether projected states have length 1.
    """

    language: Qwen3Config
    talker: LlamaConfig
    text_ids: int
    codes: int
    marks: tuple[int, int]
    normalized: bool


def read_minicpm_o_config(found: Mapping[str, Any], what: str) -> MiniCPMOConfig:
    """Reads a `config.json`.

    Raises:
        ModelError: If a value is missing or not allowed, such as those of MiniCPM-o 2.6.
    """
    own = found.get("tts_config")
    if not isinstance(own, Mapping):
        raise ModelError(f"{what} has no tts_config in its config.json")
    for name, (needed, default) in SUPPORTED.items():
        if (given := own.get(name, default)) != needed:
            raise ModelError(
                f"{what} has {name}={shown(given)} in its tts_config; {needed!r} is supported, which MiniCPM-o 4.5 has"
            )
    value = partial(integer_in, own, what, least=1)
    talker = LlamaConfig(
        hidden_size=value("hidden_size", 768),
        intermediate_size=value("intermediate_size", 3072),
        num_attention_heads=value("num_attention_heads", 12),
        num_hidden_layers=value("num_hidden_layers", 20),
        num_key_value_heads=value("num_key_value_heads", 12),
        max_position_embeddings=value("max_position_embeddings", 4096),
    )
    parts = ("architectures", "model_type", "slice_config", "vision_config", "audio_config", "tts_config")
    language = Qwen3Config(**{name: each for name, each in found.items() if each is not None and name not in parts})
    text_ids = value("num_text_tokens", 21178)
    marks = value("text_eos_token_id", 21133), value("audio_bos_token_id", 21132)
    if max(marks) >= text_ids:
        raise ModelError(f"{what} has text_eos_token_id and audio_bos_token_id of {marks}, and {text_ids} ids of text")
    if (width := value("llm_dim", 2560)) != language.hidden_size:
        raise ModelError(f"{what} has llm_dim={width} in its tts_config, and a width of {language.hidden_size}")
    normalized = bool(own.get("normalize_projected_hidden", False))
    return MiniCPMOConfig(language, talker, text_ids, value("num_audio_tokens", 4097, least=2) - 1, marks, normalized)


class Projector(nn.Module):
    """Maps states of the language model to the talker's width."""

    def __init__(self, width: int, talker_width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(width, talker_width)
        self.linear2 = nn.Linear(talker_width, talker_width)

    def forward(self, states: Tensor) -> Tensor:
        projected: Tensor = self.linear2(F.relu(self.linear1(states)))
        return projected


class Talker(nn.Module):
    """The part of a MiniCPM-o that writes codes."""

    def __init__(self, config: MiniCPMOConfig) -> None:
        super().__init__()
        width, ids = config.talker.hidden_size, config.codes + 1
        self.emb_text = nn.Embedding(config.text_ids, width)
        self.projector_semantic = Projector(config.language.hidden_size, width)
        self.model = LlamaModel(config.talker)
        del self.model.embed_tokens
        self.emb_code = nn.ModuleList([nn.Embedding(ids, width)])
        self.head_code = nn.ModuleList([weight_norm(nn.Linear(width, ids, bias=False))])


class MiniCPMO(nn.Module):
    """A MiniCPM-o without its towers of images and audio, and without the head of its language model.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: MiniCPMOConfig) -> None:
        super().__init__()
        self.config = config
        self.llm = nn.ModuleDict({"model": Qwen3Model(config.language)})
        self.tts = Talker(config)

    def read(self, prompt: list[int], text: list[int]) -> Tensor:
        """The talker's embeddings [T, D] of a text that the language model says after a prompt."""
        talker, device = self.tts, self.tts.emb_text.weight.device
        states = self.llm["model"](torch.tensor([prompt + text], device=device)).last_hidden_state[0, len(prompt) :]
        projected = talker.projector_semantic(states)
        if self.config.normalized:
            projected = F.normalize(projected, dim=-1)
        ids = torch.tensor([*text, *self.config.marks], device=device)
        embeds: Tensor = talker.emb_text(ids) + F.pad(projected, (0, 0, 0, len(self.config.marks)))
        return embeds


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> MiniCPMO:
    """The model in a published folder; see `mmspec.audio.published_folder.read_published`."""
    model = read_published(
        folder,
        device,
        dtype,
        "a MiniCPM-o",
        lambda found, what: MiniCPMO(read_minicpm_o_config(found, what)),
        unread=UNREAD,
    )
    # They are not in the files.
    model.llm["model"].rotary_emb = Qwen3RotaryEmbedding(model.config.language).to(device)
    model.tts.model.rotary_emb = LlamaRotaryEmbedding(model.config.talker).to(device)
    remove_parametrizations(model.tts.head_code[0], "weight")
    return model.requires_grad_(False)
