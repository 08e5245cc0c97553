"""MiniCPM-o 4.5: a talker that reads a text with the states of its language model, and writes codes of CosyVoice 2.

The language model is given the text as its own answer, as by `chat(teacher_forcing=True)` of the original. Its towers of
images and audio are not loaded. Source: `MiniCPMO45` of github.com/OpenBMB/MiniCPM-o-Demo at 28b60cf (Apache License
2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
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
from mmspec.audio.family_options import options_of
from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.audio.models.codec_lm.speech import MAX_LETTERS, CodecLMAdapter, TextPrompt
from mmspec.audio.positions import check_positions
from mmspec.audio.published_folder import PublishedFolder, read_published
from mmspec.audio.text import split_text
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import describe
from mmspec.heads.merged_vocabulary import MergedVocabulary
from mmspec.hf.folder import tokenizer_of
from mmspec.sampling.logits_processors import FORBIDDEN, counts
from mmspec.sampling.params import SamplingParams

SYSTEM = "You are a helpful assistant. You can accept audio and text input and output voice and text."
READ_ALOUD = "请朗读以下内容。 "  # "please read the following aloud", as the original's example asks
MIN_CODES, MAX_CODES = 50, 2047  # of a part, 25 per second
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
class Options:
    """The options of a pipeline.

    Attributes:
        system: The system prompt of the language model.
    """

    system: str = SYSTEM


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
        if (value := own.get(name, default)) != needed:
            raise ModelError(
                f"{what} has {name}={shown(value)} in its tts_config; {needed!r} is supported, which MiniCPM-o 4.5 has"
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
    named = {name: each for name, each in found.items() if each is not None and not name.endswith("_config")}
    language = Qwen3Config(**{name: each for name, each in named.items() if name not in ("architectures", "model_type")})
    text_ids = value("num_text_tokens", 21178)
    marks = value("text_eos_token_id", 21133), value("audio_bos_token_id", 21132)
    if max(marks) >= text_ids or (width := value("llm_dim", 2560)) != language.hidden_size:
        raise ModelError(f"{what} has marks {marks} for {text_ids} ids of text, or a talker of another width")
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


@dataclass(frozen=True)
class TalkerRule:
    """How the original samples a code; its truncation keeps three codes at least, and the first code has none.

    Args:
        temperature: 0 leaves the logits as they are, and their order.
        top_k: 0 is off.
        top_p: The nucleus, before `top_k`.
        penalty: Divides and multiplies logits as a repetition penalty does, once for each time that a code occurs.
        last: The number of latest codes that count.
    """

    temperature: float = 0.8
    top_k: int = 25
    top_p: float = 0.85
    penalty: float = 1.05
    last: int = 16

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        factor = self.penalty ** counts(prefix[:, -self.last :], logits.shape[-1])
        logits = torch.where(logits < 0, logits * factor, logits / factor) / (self.temperature or 1.0)
        ranked = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
        kept = ranked.values.cumsum(-1) - ranked.values < self.top_p
        if self.top_k:
            kept[:, self.top_k :] = False
        kept[:, :3] = True
        kept |= (prefix == -1).all(-1, keepdim=True)  # of the first code
        return torch.where(kept.gather(-1, ranked.indices.argsort(-1)), logits, logits - FORBIDDEN)


class MiniCPMOFrontend:
    """The `mmspec.audio.models.codec_lm.speech.TextFrontend` of MiniCPM-o 4.5.

    Args:
        tokenizer: A tokenizer with the model's chat template.
    """

    options: tuple[str, ...] = ("system",)
    start: int | None = None
    sampling = SamplingParams(TalkerRule.temperature, TalkerRule.top_k, TalkerRule.top_p)
    guided = False
    takes_min_p = False

    def __init__(self, model: MiniCPMO, tokenizer: Any, options: Options) -> None:
        self._model, self._tokenizer, self._options = model, tokenizer, options
        self.codec_lm = CodecLM(model.tts.model, model.tts.emb_code[0], model.tts.head_code[0])
        self.codes, self.ends = model.config.codes, (model.config.codes,)
        # The language model reads a text once, though it is asked for when it is read and when it is decoded.
        self.prompt = lru_cache(maxsize=64)(self._prompt)

    def pieces(self, text: str) -> list[str]:
        return split_text(text, MAX_LETTERS)

    def _prompt(self, text: str) -> TextPrompt:
        asked = [{"role": "system", "content": self._options.system}, {"role": "user", "content": READ_ALOUD + text}]
        how = {"add_generation_prompt": True, "enable_thinking": False, "use_tts_template": True}
        try:
            chat = self._tokenizer.apply_chat_template(asked, tokenize=False, **how)
        except ValueError as error:
            raise ArgumentError(f"processor writes no chat, which MiniCPM-o reads: {describe(error)}") from None
        before, ids = (list(self._tokenizer(each)["input_ids"]) for each in (chat, text))
        config = self._model.config
        check_positions(len(ids) + len(config.marks), MAX_CODES + 1, int(config.talker.max_position_embeddings))
        return TextPrompt(self._model.read(before, ids), None, MIN_CODES, MAX_CODES)

    def settings(self, sampling: SamplingParams) -> CodecLMSettings:
        rule = TalkerRule(sampling.temperature, sampling.top_k, sampling.top_p)
        return CodecLMSettings((rule,), SamplingParams(1.0 if sampling.temperature else 0.0))

    def merged_vocabulary(self) -> MergedVocabulary | None:
        return None


def from_folder(source: PublishedFolder) -> CodecLMAdapter:
    """The adapter of a published folder.

    Raises:
        ArgumentError: For unknown options, a draft model, and if there is no codec.
        ModelError: For files that are missing, damaged or of another model.
    """
    options = options_of(Options, source.options, "MiniCPM-o")
    if not isinstance(options.system, str):
        raise ArgumentError(f"system={shown(options.system)} is not allowed; it must be a text")
    if source.draft is not None:
        raise ArgumentError("draft_model is not possible for MiniCPM-o, whose talker reads its own language model")
    codec = source.needed_codec("MiniCPM-o", "the token2wav of its folder")
    tokenizer = tokenizer_of(source.processor, source.folder, "PreTrainedTokenizerFast")
    return CodecLMAdapter(MiniCPMOFrontend(source.model(read_model), tokenizer, options), codec)
