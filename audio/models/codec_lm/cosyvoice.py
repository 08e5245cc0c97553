"""CosyVoice 2 and 3 as they are published: a folder with `llm.pt` and, in `CosyVoice-BlankEN`, a Qwen2 for texts.

A prompt is: a start mark, the text, a mark that asks for speech, then the codes of a voice to go on from. Text is read
as it stands; what normalises it is another library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model

from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.audio.models.codec_lm.speech import Line, fill, read_state
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.folder import read_processor
from mmspec.sampling.logits_processors import RepetitionAware
from mmspec.sampling.params import SamplingParams

TEXTS = "CosyVoice-BlankEN"
LEAST, MOST = 2, 20  # codes per id of text


@dataclass(frozen=True)
class Voice:
    """A voice to speak with: what it says in a recording, and the codes of that, int64 [n]."""

    text: str
    codes: Tensor


class CosyVoice:
    """A `mmspec.audio.models.codec_lm.speech.TextSide`.

    Args:
        codec_lm: What makes codes.
        texts: The embedding of ids of text.
        marks: The vectors [2, D] of both marks.
        tokenizer: Of texts.
        voice: To speak with, or None.
        codes: How many there are.
        ends: The ids that end a stream.
    """

    start: int | None = None
    sampling = SamplingParams(1.0, 25, 0.8)
    guided = False

    def __init__(
        self,
        codec_lm: CodecLM,
        texts: nn.Embedding,
        marks: Tensor,
        tokenizer: Any,
        voice: Voice | None,
        codes: int,
        ends: Sequence[int],
    ) -> None:
        self.codec_lm, self.codes, self.ends = codec_lm, codes, ends
        self._texts, self._marks, self._tokenizer, self._voice = texts, marks, tokenizer, voice

    def line(self, text: str) -> Line:
        ids = self._ids(text)
        before, after = [], self.codec_lm.embed.weight[:0]
        if self._voice is not None:
            before = self._ids(self._voice.text)
            after = self.codec_lm.embed(self._voice.codes.to(self._marks.device))
        words = self._texts(torch.tensor(before + ids, dtype=torch.int64, device=self._marks.device))
        cond = torch.cat([self._marks[:1], words, self._marks[1:], after])
        return Line(cond, None, LEAST * len(ids), MOST * len(ids))

    def settings(self, sampling: SamplingParams) -> CodecLMSettings:
        if not sampling.temperature:
            return CodecLMSettings((), sampling)
        rule = RepetitionAware(
            sampling.top_p, sampling.top_k or self.codec_lm.head.out_features, temperature=sampling.temperature
        )
        return CodecLMSettings((rule,), SamplingParams())

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])


def is_cosyvoice(folder: Path) -> bool:
    """Whether a folder holds a published CosyVoice 2 or 3."""
    return (folder / "llm.pt").is_file() and (folder / TEXTS / "config.json").is_file()


def read(folder: Path, tokenizer: Any, voice: Any, device: str, dtype: torch.dtype) -> CosyVoice:
    """Reads a model from its published files.

    Raises:
        ModelError: For files that are not what they say they are.
        ArgumentError: For another voice.
    """
    if voice is not None and not isinstance(voice, Voice):
        raise ArgumentError(f"voice={voice!r} is not allowed; give a mmspec.audio.models.codec_lm.cosyvoice.Voice")
    file, state = folder / "llm.pt", read_state(folder / "llm.pt")
    if "llm_decoder.weight" not in state or "speech_embedding.weight" not in state:
        raise ModelError(f"model '{file}' is no CosyVoice 2 or 3; it lacks llm_decoder or speech_embedding")
    ids, width = state["llm_decoder.weight"].shape
    second = "llm_embedding.weight" in state  # later ones have their marks among the codes
    codes = ids - (3 if second else 200)
    head = fill(file, nn.Linear(width, ids, bias="llm_decoder.bias" in state), state, "llm_decoder.")
    table = state["speech_embedding.weight"]
    embed = fill(file, nn.Embedding(*table.shape), state, "speech_embedding.")
    decoder = fill(file, Qwen2Model(Qwen2Config.from_pretrained(folder / TEXTS)), state, "llm.model.model.")
    for part in (head, embed, decoder):
        part.to(device, dtype).eval()
    marks = state["llm_embedding.weight"] if second else table[[codes, codes + 2]]
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        tokenizer = read_processor(tokenizer or folder / TEXTS, "Qwen2ForCausalLM")
    return CosyVoice(
        CodecLM(decoder, embed, head),
        decoder.embed_tokens,
        marks.to(device, dtype),
        tokenizer,
        voice,
        codes,
        # Any of its marks ends a stream.
        range(codes, ids),
    )
