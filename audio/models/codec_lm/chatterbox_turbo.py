"""Chatterbox Turbo and Nano as published: a folder with their weights, a GPT-2 tokenizer and a voice in `conds.pt`.

A prompt is: the speaker, the reference codes, the text, and the start token of speech. The decoder is a GPT-2, whose
positions count all of them. There is no guidance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, GPT2Config, GPT2Model, TopKLogitsWarper, TopPLogitsWarper

from mmspec.audio.models.codec_lm import chatterbox
from mmspec.audio.models.codec_lm.chatterbox import (
    CODES,
    HEAD_DIM,
    START_SPEECH,
    STOP_SPEECH,
    embed_voice,
    normalize_punctuation,
    read_voice,
)
from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.audio.models.codec_lm.speech import MAX_LETTERS, TextPrompt, fill, read_state
from mmspec.audio.text import split_text
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.files.checkpoint import count_blocks, describe, sizes_of
from mmspec.hf.folder import LOAD_ERRORS
from mmspec.sampling.logits_processors import FORBIDDEN, RepetitionPenalty
from mmspec.sampling.params import SamplingParams

FILES = ("t3_turbo_v1.safetensors", "t3_nano_v1.safetensors")
MAX_CODES = 1001
PENALTY = 1.2
# Turbo has seen some of the marks that Chatterbox replaces.
PUNCTUATION = tuple((old, new) for old, new in chatterbox.PUNCTUATION if old not in ("...", " - ", ";"))


@dataclass(frozen=True)
class PenaltyAfterTruncation:
    """A repetition penalty that follows temperature, top-k and top-p, and does not change which tokens they keep.

    The first token is penalized for the start token, the later ones for those before them.

    Attributes:
        temperature: Above 0.
        top_k: Keeps the k most likely tokens; 0 is all.
        top_p: Keeps the most likely tokens of this total probability; 1 is all.
        penalty: 1 is off.
    """

    temperature: float
    top_k: int
    top_p: float
    penalty: float = PENALTY

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        known = prefix != -1
        start = known & (known.cumsum(-1) == 1) & (known.sum(-1, keepdim=True) > 1)
        z = logits / self.temperature
        kept = TopKLogitsWarper(self.top_k)(prefix, z) if self.top_k else z
        kept = TopPLogitsWarper(self.top_p)(prefix, kept) if self.top_p < 1 else kept
        penalized = RepetitionPenalty(self.penalty)(prefix.masked_fill(start, -1), z)
        # Not minus infinity: at the limit of a text only the end is allowed.
        return torch.where(kept == -torch.inf, penalized - FORBIDDEN, penalized)


class ChatterboxTurbo:
    """The `mmspec.audio.models.codec_lm.speech.TextFrontend` of Chatterbox Turbo and Nano.

    Args:
        codec_lm: The part that generates codes.
        texts: The embedding of text ids.
        voice: Embeddings [T, D] with which a prompt begins.
        tokenizer: The tokenizer of texts.
    """

    options: tuple[str, ...] = ()
    codes = CODES
    ends: Sequence[int] = (STOP_SPEECH,)
    start: int | None = START_SPEECH
    sampling = SamplingParams(0.8, 1000, 0.95)
    guided = False
    takes_min_p = False

    def __init__(self, codec_lm: CodecLM, texts: nn.Embedding, voice: Tensor, tokenizer: Any) -> None:
        self.codec_lm = codec_lm
        self._texts, self._voice, self._tokenizer = texts, voice, tokenizer

    def prompt(self, text: str) -> TextPrompt:
        ids = torch.tensor(
            self._tokenizer(normalize_punctuation(text, PUNCTUATION))["input_ids"], device=self._voice.device
        )
        start = self.codec_lm.embed.weight[START_SPEECH, None]
        cond = torch.cat([self._voice, self._texts(ids), start])
        positions = int(self.codec_lm.decoder.config.n_positions)
        if len(cond) + MAX_CODES > positions:
            raise PromptError(
                f"text={text[:80]!r} is too long: {len(cond)} positions of the prompt and {MAX_CODES} codes do not fit "
                f"into {positions}"
            )
        return TextPrompt(cond, None, 0, MAX_CODES)

    def pieces(self, text: str) -> list[str]:
        return split_text(text, MAX_LETTERS)

    def settings(self, sampling: SamplingParams) -> CodecLMSettings:
        s = sampling
        if s.temperature == 0:
            return CodecLMSettings((PenaltyAfterTruncation(1.0, 0, 1.0),), SamplingParams(0.0))
        return CodecLMSettings((PenaltyAfterTruncation(s.temperature, s.top_k, s.top_p),), SamplingParams(1.0))

    def merged_vocabulary(self) -> None:
        """None: its texts have an embedding of their own everywhere."""


def is_turbo(folder: Path) -> bool:
    """Whether a folder contains a published Turbo or Nano."""
    return any((folder / file).is_file() for file in FILES)


def read(
    folder: Path, tokenizer: Any, voice: Any, device: str, dtype: torch.dtype, options: dict[str, Any]
) -> ChatterboxTurbo:
    """Reads a Chatterbox Turbo or Nano from its published folder.

    Args:
        tokenizer: A tokenizer, or its path; None is the one in the folder.
        voice: A file like `conds.pt`, or the mapping under its key `t3`; None is the file in the folder.
        device: Where to load the model.
        options: Not used.

    Raises:
        ModelError: For missing, broken or unsupported files.
        ArgumentError: For a missing or incomplete voice, and a tokenizer that cannot be loaded.
    """
    file = next(folder / name for name in FILES if (folder / name).is_file())
    what, state = f"model '{file}'", read_state(file)
    needed = ("speech_emb", "text_emb", "speech_head", "tfmr.wpe", "tfmr.h.0.attn.c_attn")
    if missing := [name for name in needed if getattr(state.get(f"{name}.weight"), "ndim", 0) != 2]:
        raise ModelError(f"{what} is not a Chatterbox with a GPT-2 decoder; missing: {', '.join(missing)}")
    embed, texts = (
        fill(file, nn.Embedding(*state[f"{name}.weight"].shape), state, f"{name}.")
        for name in ("speech_emb", "text_emb")
    )
    head = fill(file, nn.Linear(embed.embedding_dim, embed.num_embeddings), state, "speech_head.")
    with sizes_of(what, "a Chatterbox with a GPT-2 decoder"):
        decoder = GPT2Model(config_of(state))
    decoder.wte = nn.Identity()  # its inputs are embeddings
    fill(file, decoder, {name: value for name, value in state.items() if name != "tfmr.wte.weight"}, "tfmr.")
    if voice is None or isinstance(voice, (str, Path)):
        voice = read_voice(Path(voice or folder / "conds.pt"))
    with sizes_of(what, "a Chatterbox, or the voice is one of another model"):
        codes = embed.weight.float()
        voice_embeds = embed_voice(state, voice, codes, torch.zeros_like(codes))
    for part in (embed, texts, head, decoder):
        part.to(device, dtype).eval()
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        tokenizer = read_tokenizer(Path(tokenizer or folder))
    return ChatterboxTurbo(CodecLM(decoder, embed, head), texts, voice_embeds.to(device, dtype), tokenizer)


def config_of(state: Mapping[str, Tensor]) -> GPT2Config:
    """The config of the GPT-2; its sizes are read off the tensors, the files contain no config."""
    positions, width = state["tfmr.wpe.weight"].shape
    return GPT2Config(
        vocab_size=1,
        n_positions=positions,
        n_embd=width,
        n_layer=count_blocks(state, "tfmr.h"),
        n_head=width // HEAD_DIM,
        bos_token_id=None,
        eos_token_id=None,
    )


def read_tokenizer(where: Path) -> Any:
    """The tokenizer in a folder.

    Raises:
        ArgumentError: If it cannot be loaded.
    """
    try:
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False)  # None asks on stdin
    except LOAD_ERRORS as error:
        raise ArgumentError(f"tokenizer '{where}' cannot be loaded: {describe(error)}") from None
