"""Chatterbox as it is published: a folder with `t3_cfg.safetensors`, `tokenizer.json` and a voice in `conds.pt`.

A prompt is: the voice, the text between two marks, and the start mark of speech, twice. On the unconditional side the
text is nothing but its places. Text is read as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings, chatterbox
from mmspec.audio.models.codec_lm.speech import Line, fill, read_state
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.params import SamplingParams

FILE = "t3_cfg.safetensors"
START_TEXT, STOP_TEXT = 255, 0
CODES, INIT, END = 6561, 6561, 6562
LONGEST = 1000  # codes
HEAD, VOICE_HEADS = 64, 4  # width of an attention head; heads of what reads the voice
ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


class Chatterbox:
    """A `mmspec.audio.models.codec_lm.speech.TextSide`.

    Args:
        codec_lm: What makes codes.
        texts: The embedding of ids of text.
        places: The embedding of their places.
        voice: Vectors [T, D] that a prompt begins with.
        tokenizer: Of texts.
    """

    codes = CODES
    ends: Sequence[int] = (END,)
    start: int | None = INIT
    sampling = SamplingParams(0.8, guidance_scale=1.5)
    guided = True

    def __init__(
        self, codec_lm: CodecLM, texts: nn.Embedding, places: nn.Embedding, voice: Tensor, tokenizer: Tokenizer
    ) -> None:
        self.codec_lm = codec_lm
        self._texts, self._places, self._voice, self._tokenizer = texts, places, voice, tokenizer

    def line(self, text: str) -> Line:
        ids = [START_TEXT, *self._tokenizer.encode(text.replace(" ", "[SPACE]")).ids, STOP_TEXT]
        device = self._voice.device
        words, places = self._texts(torch.tensor(ids, device=device)), self._places.weight[: len(ids)]
        assert self.codec_lm.places is not None
        begin = (self.codec_lm.embed.weight[INIT] + self.codec_lm.places[0]).expand(2, -1)
        sides = [torch.cat([self._voice, side, begin]) for side in (words + places, places)]
        return Line(sides[0], sides[1], 0, LONGEST)

    def settings(self, sampling: SamplingParams) -> CodecLMSettings:
        s = sampling
        settings = chatterbox(s.temperature, top_p=s.top_p, cfg_weight=s.guidance_scale - 1)
        return replace(settings, sampling=replace(settings.sampling, top_k=s.top_k))


def read(folder: Path, tokenizer: Any, voice: Any, device: str, dtype: torch.dtype) -> Chatterbox:
    """`voice` is a file like `conds.pt`, or its part `t3`; None takes the one in the folder.

    Raises:
        ModelError: For files that are not what they claim to be.
        ArgumentError: For a voice that is none.
    """
    file, state = folder / FILE, read_state(folder / FILE)
    needed = ("speech_emb", "text_emb", "text_pos_emb.emb", "speech_pos_emb.emb", "tfmr.layers.0.self_attn.q_proj")
    if missing := [name for name in needed if f"{name}.weight" not in state]:
        raise ModelError(f"model '{file}' is no Chatterbox on a Llama; missing: {', '.join(missing)}")
    embed, texts, text_places, places = (
        fill(file, nn.Embedding(*state[f"{name}.weight"].shape), state, f"{name}.")
        for name in ("speech_emb", "text_emb", "text_pos_emb.emb", "speech_pos_emb.emb")
    )
    width = embed.embedding_dim
    head = fill(file, nn.Linear(width, embed.num_embeddings, bias=False), state, "speech_head.")
    decoder = fill(file, LlamaModel(config_of(state)), state, "tfmr.")
    if voice is None or isinstance(voice, (str, Path)):
        voice = read_voice(Path(voice or folder / "conds.pt"))
    began = voice_of(state, voice, embed.weight.float(), places.weight.float())
    for part in (embed, texts, text_places, places, head, decoder):
        part.to(device, dtype).eval()
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        tokenizer = read_tokenizer(Path(tokenizer or folder))
    return Chatterbox(
        CodecLM(decoder, embed, head, places.weight), texts, text_places, began.to(device, dtype), tokenizer
    )


def config_of(state: Mapping[str, Tensor]) -> LlamaConfig:
    """The Llama's, of which the files tell sizes only."""
    first = "tfmr.layers.0."
    return LlamaConfig(
        vocab_size=len(state["tfmr.embed_tokens.weight"]),
        hidden_size=state[f"{first}self_attn.q_proj.weight"].shape[1],
        intermediate_size=len(state[f"{first}mlp.up_proj.weight"]),
        num_hidden_layers=1 + max(int(name.split(".")[2]) for name in state if name.startswith("tfmr.layers.")),
        num_attention_heads=len(state[f"{first}self_attn.q_proj.weight"]) // HEAD,
        num_key_value_heads=len(state[f"{first}self_attn.k_proj.weight"]) // HEAD,
        head_dim=HEAD,
        rms_norm_eps=1e-5,
        max_position_embeddings=131072,
        rope_parameters=ROPE,
    )


def read_tokenizer(where: Path) -> Tokenizer:
    """The tokenizer in a folder, or in a file.

    Raises:
        ModelError: When there is none.
    """
    file = where / "tokenizer.json" if where.is_dir() else where
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"tokenizer '{file}' cannot be loaded: {error}") from None


def read_voice(file: Path) -> Mapping[str, Any]:
    """The part of a voice's file that text is read with.

    Raises:
        ArgumentError: When it is not there.
    """
    if not file.is_file():
        raise ArgumentError(f"voice='{file}' does not exist; name a file like conds.pt")
    found = read_state(file).get("t3")
    if not isinstance(found, Mapping):
        raise ModelError(f"voice '{file}' has no part 't3'")
    return found


def voice_of(state: Mapping[str, Tensor], voice: Mapping[str, Any], codes: Tensor, places: Tensor) -> Tensor:
    """A voice as vectors [T, D]: who speaks, a summary of how, and how moved.

    Args:
        voice: `speaker_emb` [1, E], `cond_prompt_speech_tokens` int64 [1, n] and `emotion_adv`.
        codes: The vectors of codes.
        places: The vectors of their places.

    Raises:
        ArgumentError: For a voice without a speaker.
    """
    if voice.get("speaker_emb") is None:
        raise ArgumentError("voice has no 'speaker_emb'; give what Chatterbox writes as conds.pt")
    prefix = "cond_enc."
    own = {name.removeprefix(prefix): value.float() for name, value in state.items() if name.startswith(prefix)}
    parts = [F.linear(voice["speaker_emb"].float().view(1, -1), own["spkr_enc.weight"], own["spkr_enc.bias"])]
    if (said := voice.get("cond_prompt_speech_tokens")) is not None:
        heard = codes[said.view(-1).long()] + places[: said.numel()]
        if "perceiver.pre_attention_query" in own:
            query = own["perceiver.pre_attention_query"][0]
            heard = attend(own, query, heard)
            heard = attend(own, heard, heard)
        parts.append(heard)
    if "emotion_adv_fc.weight" in own:
        moved = torch.as_tensor(voice.get("emotion_adv", 0.5)).float().view(1, 1)
        parts.append(F.linear(moved, own["emotion_adv_fc.weight"]))
    return torch.cat(parts)


def attend(own: Mapping[str, Tensor], query: Tensor, seen: Tensor) -> Tensor:
    """The attention block [Q, D] that reads a voice [T, D]."""

    def part(name: str, x: Tensor) -> Tensor:
        return F.linear(x, own[f"perceiver.attn.{name}.weight"], own[f"perceiver.attn.{name}.bias"])

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (VOICE_HEADS, -1)).transpose(0, 1)[None]

    norm = own["perceiver.attn.norm.weight"], own["perceiver.attn.norm.bias"]
    a, b = (F.layer_norm(x, x.shape[-1:], *norm) for x in (query, seen))
    mixed = F.scaled_dot_product_attention(heads(part("to_q", a)), heads(part("to_k", b)), heads(part("to_v", b)))
    return query + part("proj_out", mixed[0].transpose(0, 1).flatten(1))
