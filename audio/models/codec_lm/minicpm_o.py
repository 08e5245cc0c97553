"""MiniCPM-o 4.5: a talker that reads a text with the states of its language model, and writes codes of CosyVoice 2.

The language model is given the text as its own answer, as by `chat(teacher_forcing=True)` of the original. Source:
`MiniCPMO45` of github.com/OpenBMB/MiniCPM-o-Demo at 28b60cf (Apache License 2.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.family_options import check_texts, options_of
from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.audio.models.codec_lm.minicpm_o_model import MiniCPMO, read_model
from mmspec.audio.models.codec_lm.speech import MAX_LETTERS, CodecLMAdapter, TextPrompt
from mmspec.audio.positions import check_positions
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.text import refuse_marks, split_text
from mmspec.errors import ArgumentError
from mmspec.files.checkpoint import describe
from mmspec.heads.merged_vocabulary import MergedVocabulary
from mmspec.hf.folder import tokenizer_of
from mmspec.sampling.logits_processors import FORBIDDEN, counts
from mmspec.sampling.params import SamplingParams

SYSTEM = "You are a helpful assistant. You can accept audio and text input and output voice and text."
READ_ALOUD = "请朗读以下内容。 "  # "please read the following aloud", as the original's example asks
MIN_CODES, MAX_CODES = 50, 2047  # of a part, 25 per second


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        system: The system prompt of the language model.
    """

    system: str = SYSTEM


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
        kept = (ranked.values.cumsum(-1) - ranked.values < self.top_p) | (self.top_p >= 1)
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
        talker: Any = model.tts
        self.codec_lm = CodecLM(talker.model, talker.emb_code[0], talker.head_code[0])
        self.codes = model.config.codes
        self.ends: Sequence[int] = (self.codes,)
        # The language model reads a text once, though it is asked for when it is read and when it is decoded.
        self.prompt = lru_cache(maxsize=64)(self._prompt)

    def pieces(self, text: str) -> list[str]:
        refuse_marks("text", text)
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


class MiniCPMOAdapter(CodecLMAdapter):
    """The adapter of a MiniCPM-o, whose language model runs where a text is read."""

    answers = True


def from_folder(source: PublishedFolder) -> MiniCPMOAdapter:
    """The adapter of a published folder.

    Raises:
        ArgumentError: For unknown options, a draft model, and if there is no codec.
        ModelError: For files that are missing, damaged or of another model.
    """
    options = options_of(Options, source.options, "MiniCPM-o")
    check_texts(options, ("system",))
    if source.draft is not None:
        raise ArgumentError("draft_model is not possible for MiniCPM-o, whose talker reads its own language model")
    codec = source.needed_codec("MiniCPM-o", "the token2wav of its folder")
    tokenizer = tokenizer_of(source.processor, source.folder, "PreTrainedTokenizerFast")
    return MiniCPMOAdapter(MiniCPMOFrontend(source.model(read_model), tokenizer, options), codec)
