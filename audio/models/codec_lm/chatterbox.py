"""Chatterbox as published: a folder with `t3_cfg.safetensors`, `tokenizer.json` and a voice in `conds.pt`.

A prompt is: the voice, the text between its start and stop tokens, and the start token of speech, twice. In the
unconditional prompt the text is its learned positions alone. Punctuation is normalized as the package does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings, chatterbox
from mmspec.audio.models.codec_lm.speech import MAX_LETTERS, TextPrompt, fill, read_state
from mmspec.audio.text import split_text
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.files.checkpoint import count_blocks, sizes_of
from mmspec.files.inputs import check_regular
from mmspec.sampling.params import SamplingParams

FILE = "t3_cfg.safetensors"
START_TEXT, STOP_TEXT = 255, 0
CODES, START_SPEECH, STOP_SPEECH = 6561, 6561, 6562
MAX_CODES = 1000
HEAD_DIM, VOICE_HEADS = 64, 4  # width of the decoder's attention heads; number of heads of the voice's perceiver
ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


# Marks that the model has hardly seen -> those that it knows, replaced in this order.
PUNCTUATION = (
    ("...", ", "), ("…", ", "), (":", ","), (" - ", ", "), (";", ", "), ("—", "-"), ("–", "-"), (" ,", ","),
    ("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"),
)  # fmt: skip
ENDS = (".", "!", "?", "-", ",")


def normalize_punctuation(
    text: str, replaced: Sequence[tuple[str, str]] = PUNCTUATION, ends: tuple[str, ...] = ENDS
) -> str:
    """A text as Chatterbox was trained to read: it begins with a capital, has marks that are known, and ends in one."""
    if text[:1].islower():
        text = text[0].upper() + text[1:]
    text = " ".join(text.split())
    for old, new in replaced:
        text = text.replace(old, new)
    text = text.rstrip(" ")
    return text if text.endswith(ends) else f"{text}."


class Chatterbox:
    """The `mmspec.audio.models.codec_lm.speech.TextFrontend` of Chatterbox.

    Args:
        codec_lm: The part that generates codes.
        texts: The embedding of text ids.
        positions: The embedding of their learned positions.
        voice: Embeddings [T, D] with which a prompt begins.
        encode: Maps a text to its ids, without the tokens of its start and end.
        options: The names of the model's own options of `config`.
    """

    codes = CODES
    ends: Sequence[int] = (STOP_SPEECH,)
    start: int | None = START_SPEECH
    sampling = SamplingParams(0.8, guidance_scale=1.5, min_p=0.05)
    guided = True
    takes_min_p = True

    def __init__(
        self,
        codec_lm: CodecLM,
        texts: nn.Embedding,
        positions: nn.Embedding,
        voice: Tensor,
        encode: Callable[[str], list[int]],
        options: tuple[str, ...] = ("exaggeration",),
    ) -> None:
        self.codec_lm, self.options = codec_lm, options
        self._texts, self._positions, self._voice, self._encode = texts, positions, voice, encode

    def prompt(self, text: str) -> TextPrompt:
        ids = [START_TEXT, *self._encode(text), STOP_TEXT]
        if len(ids) > len(self._positions.weight):
            raise PromptError(
                f"text={text!r} has {len(ids)} tokens, and the model positions for {len(self._positions.weight)}; add "
                "full stops, at which it is split"
            )
        device = self._voice.device
        words, positions = self._texts(torch.tensor(ids, device=device)), self._positions.weight[: len(ids)]
        assert self.codec_lm.learned_positions is not None
        start = (self.codec_lm.embed.weight[START_SPEECH] + self.codec_lm.learned_positions[0]).expand(2, -1)
        cond, uncond = (torch.cat([self._voice, embeds, start]) for embeds in (words + positions, positions))
        return TextPrompt(cond, uncond, 0, MAX_CODES)

    def pieces(self, text: str) -> list[str]:
        return split_text(text, MAX_LETTERS)

    def settings(self, sampling: SamplingParams) -> CodecLMSettings:
        s = sampling
        settings = chatterbox(s.temperature, s.min_p, s.top_p, cfg_weight=s.guidance_scale - 1)
        return replace(settings, sampling=replace(settings.sampling, top_k=s.top_k, typical_p=s.typical_p))

    def merged_vocabulary(self) -> None:
        """None: its texts have an embedding of their own everywhere."""


def read(
    folder: Path, tokenizer: Any, voice: Any, device: str, dtype: torch.dtype, options: dict[str, Any]
) -> Chatterbox:
    """Reads a Chatterbox from its published folder.

    Args:
        tokenizer: A tokenizer, or its path; None is the one in the folder.
        voice: A file like `conds.pt`, or the mapping under its key `t3`; None is the file in the folder.
        device: Where to load the model.
        options: `exaggeration` is taken from it: how emotional the voice is, 0.5 is neutral; None is that of the voice.

    Raises:
        ModelError: For missing, broken or unsupported files.
        ArgumentError: For a missing or incomplete voice, and an exaggeration that is not allowed.
    """
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        tokenizer = read_tokenizer(Path(tokenizer or folder))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(normalize_punctuation(text).replace(" ", "[SPACE]")).ids)

    return read_t3(folder / FILE, encode, voice, device, dtype, options)


def read_t3(
    file: Path,
    encode: Callable[[str], list[int]],
    voice: Any,
    device: str,
    dtype: torch.dtype,
    options: dict[str, Any],
    names: tuple[str, ...] = (),
) -> Chatterbox:
    """Reads a Chatterbox from a file of weights.

    Args:
        encode: Maps a text to its ids.
        voice: A file like `conds.pt`, or the mapping under its key `t3`; None is the file in the folder of `file`.
        device: Where to load the model.
        options: `exaggeration` is taken from it, see `read`.
        names: The names of the model's options besides `exaggeration`.

    Raises:
        ModelError: For missing, broken or unsupported files.
        ArgumentError: For a missing or incomplete voice, and an exaggeration that is not allowed.
    """
    exaggeration = options.pop("exaggeration", None)
    if exaggeration is not None and not (isinstance(exaggeration, (int, float)) and 0 <= exaggeration <= 2):
        raise ArgumentError(
            f"exaggeration={exaggeration!r} is not allowed; it must be a number, 0 to 2 (0.5 is neutral)"
        )
    state = read_state(file)
    needed = ("speech_emb", "text_emb", "text_pos_emb.emb", "speech_pos_emb.emb", "tfmr.layers.0.self_attn.q_proj")
    if missing := [name for name in needed if getattr(state.get(f"{name}.weight"), "ndim", 0) != 2]:
        raise ModelError(f"model '{file}' is not a Chatterbox with a Llama decoder; missing: {', '.join(missing)}")
    embed, texts, text_positions, positions = (
        fill(file, nn.Embedding(*state[f"{name}.weight"].shape), state, f"{name}.")
        for name in ("speech_emb", "text_emb", "text_pos_emb.emb", "speech_pos_emb.emb")
    )
    width = embed.embedding_dim
    head = fill(file, nn.Linear(width, embed.num_embeddings, bias=False), state, "speech_head.")
    with sizes_of(f"model '{file}'", "a Chatterbox with a Llama decoder"):
        decoder = LlamaModel(config_of(state))
    fill(file, decoder, state, "tfmr.")
    if voice is None or isinstance(voice, (str, Path)):
        voice = read_voice(Path(voice or file.parent / "conds.pt"))
    if exaggeration is not None:
        if "cond_enc.emotion_adv_fc.weight" not in state:
            raise ArgumentError(f"exaggeration is not possible: '{file}' has no weights for it")
        voice = {**voice, "emotion_adv": float(exaggeration)}
    with sizes_of(f"model '{file}'", "a Chatterbox, or the voice is one of another model"):
        voice_embeds = embed_voice(state, voice, embed.weight.float(), positions.weight.float())
    for part in (embed, texts, text_positions, positions, head, decoder):
        part.to(device, dtype).eval()
    return Chatterbox(
        CodecLM(decoder, embed, head, positions.weight),
        texts,
        text_positions,
        voice_embeds.to(device, dtype),
        encode,
        (*names, "exaggeration"),
    )


def config_of(state: Mapping[str, Tensor]) -> LlamaConfig:
    """The config of the Llama; its sizes are read off the tensors, the files contain no config."""
    first = "tfmr.layers.0."
    return LlamaConfig(
        vocab_size=len(state["tfmr.embed_tokens.weight"]),
        hidden_size=state[f"{first}self_attn.q_proj.weight"].shape[1],
        intermediate_size=len(state[f"{first}mlp.up_proj.weight"]),
        num_hidden_layers=count_blocks(state, "tfmr.layers"),
        num_attention_heads=len(state[f"{first}self_attn.q_proj.weight"]) // HEAD_DIM,
        num_key_value_heads=len(state[f"{first}self_attn.k_proj.weight"]) // HEAD_DIM,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        max_position_embeddings=131072,
        rope_parameters=ROPE,
    )


def read_tokenizer(where: Path) -> Tokenizer:
    """The tokenizer in a folder or a file.

    Raises:
        ModelError: If there is none.
    """
    file = where / "tokenizer.json" if where.is_dir() else where
    try:
        check_regular(file)
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers has no narrower class
        raise ModelError(f"tokenizer '{file}' cannot be loaded: {error}") from None


def read_voice(file: Path) -> Mapping[str, Any]:
    """The part of a voice file that the text frontend uses, under the key `t3`.

    Raises:
        ArgumentError: If the file does not exist.
        ModelError: If it has no such part.
    """
    if not file.is_file():
        raise ArgumentError(f"voice='{file}' does not exist; name a file like conds.pt")
    found = read_state(file).get("t3")
    if not isinstance(found, Mapping):
        raise ModelError(f"voice '{file}' has no part 't3'")
    return found


def embed_voice(state: Mapping[str, Tensor], voice: Mapping[str, Any], codes: Tensor, positions: Tensor) -> Tensor:
    """The embeddings [T, D] of a voice: its speaker, a summary of its reference codes, and its emotion.

    Args:
        state: The state dict of the model.
        voice: `speaker_emb` [1, E], and optionally `cond_prompt_speech_tokens` int64 [1, n] and `emotion_adv`.
        codes: Embeddings of codes.
        positions: Embeddings of their learned positions.

    Raises:
        ArgumentError: For a voice without a speaker embedding.
    """
    if not isinstance(voice, Mapping) or voice.get("speaker_emb") is None:
        raise ArgumentError("voice has no 'speaker_emb'; pass a file that Chatterbox wrote, like conds.pt")
    prefix = "cond_enc."
    own = {name.removeprefix(prefix): value.float() for name, value in state.items() if name.startswith(prefix)}
    parts = [F.linear(voice["speaker_emb"].float().view(1, -1), own["spkr_enc.weight"], own["spkr_enc.bias"])]
    if (reference_codes := voice.get("cond_prompt_speech_tokens")) is not None:
        reference = codes[reference_codes.view(-1).long()] + positions[: reference_codes.numel()]
        if "perceiver.pre_attention_query" in own:
            query = own["perceiver.pre_attention_query"][0]
            reference = attend(own, query, reference)
            reference = attend(own, reference, reference)
        parts.append(reference)
    if "emotion_adv_fc.weight" in own:
        emotion = torch.as_tensor(voice.get("emotion_adv", 0.5)).float().view(1, 1)
        parts.append(F.linear(emotion, own["emotion_adv_fc.weight"]))
    return torch.cat(parts)


def attend(own: Mapping[str, Tensor], query: Tensor, context: Tensor) -> Tensor:
    """The perceiver's attention block: queries [Q, D] attend to `context` [T, D]; returns [Q, D]."""

    def part(name: str, x: Tensor) -> Tensor:
        return F.linear(x, own[f"perceiver.attn.{name}.weight"], own[f"perceiver.attn.{name}.bias"])

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (VOICE_HEADS, -1)).transpose(0, 1)[None]

    norm = own["perceiver.attn.norm.weight"], own["perceiver.attn.norm.bias"]
    a, b = (F.layer_norm(x, x.shape[-1:], *norm) for x in (query, context))
    mixed = F.scaled_dot_product_attention(heads(part("to_q", a)), heads(part("to_k", b)), heads(part("to_v", b)))
    return query + part("proj_out", mixed[0].transpose(0, 1).flatten(1))
