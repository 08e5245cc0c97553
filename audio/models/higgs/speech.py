"""The speech adapter of Higgs Audio: texts by its chat template, its codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.higgs.decoding import HiggsRequest, RepetitionLimit, plan
from mmspec.audio.multi_codebook.decoding import ColumnDecodingJob, check_same_class
from mmspec.audio.multi_codebook.delay_pattern import linear_delays, undelay
from mmspec.audio.pipeline import PreparedText
from mmspec.audio.text import split_text
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_FRAMES = 750  # of a part: half a minute of the published model
MAX_LETTERS = 400  # of a part
SYSTEM_PROMPT = "Generate audio following instruction."


class HiggsAdapter:
    """The `mmspec.audio.pipeline.SpeechAdapter` of Higgs Audio.

    Args:
        model: A `HiggsAudioV2ForConditionalGeneration`.
        processor: Its processor.
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.
        frames: Frames of a part, at most.
    """

    recipe = "scd:window=4"
    guided = False
    voices = ()

    def __init__(
        self, model: Any, processor: Any, codec: Codec, draft_model: Any = None, frames: int = MAX_FRAMES
    ) -> None:
        self.model, self.processor, self.codec, self.frames = model.eval(), processor, codec, frames
        self.draft_model = None if draft_model is None else check_same_class(model, draft_model).eval()
        config = model.generation_config
        self.sampling = SamplingParams(
            float(config.temperature or 1.0) if config.do_sample else 0.0,
            int(config.top_k or 0),
            float(config.top_p or 1.0),
        )
        window, limit = (getattr(config, name, None) for name in ("ras_win_len", "ras_win_max_num_repeat"))
        self.repetition = None if window is None or limit is None else RepetitionLimit(int(window), int(limit))

    def read(self, text: str, voice: str | None) -> PreparedText:
        return PreparedText(split_text(text, MAX_LETTERS))

    def job(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[SamplingParams]) -> ColumnDecodingJob:
        model, config, chats = self.model, self.model.config, []
        for part in parts:
            turns = [("system", SYSTEM_PROMPT), ("user", part)]
            chats.append([{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns])
        words = self.processor.apply_chat_template(
            chats, add_generation_prompt=True, tokenize=True, return_dict=True, padding=True, return_tensors="pt"
        )
        ids, device = words["input_ids"].to(model.device), model.device
        request = HiggsRequest(
            ids,
            words["attention_mask"].bool().to(device),
            torch.empty(len(parts), 0, config.num_codebooks, dtype=torch.int64, device=device),
            torch.empty(len(parts), 0, dtype=torch.bool, device=device),
            self.frames + config.num_codebooks,
            samplings[0],
            self.repetition,
        )
        draft = None if self.draft_model is None else plan(self.draft_model, request)
        return ColumnDecodingJob(model, plan(model, request), draft, self.codec.tables)

    def codes(self, tokens: Tensor) -> Tensor:
        config = self.model.config
        if len(tokens) and bool((tokens[0] == config.audio_stream_bos_id).all()):
            tokens = tokens[1:]  # the column before the first codebook begins
        frames = undelay(tokens[None], linear_delays(config.num_codebooks))[0]
        # transformers keeps the frame in which the first codebook ends, with the end token clipped to a code.
        ends = (frames == config.audio_stream_eos_id).any(1).nonzero()
        frames = frames[: int(ends[0])] if len(ends) else frames
        return frames.clamp(max=self.codec.codebook_size - 1).T


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> HiggsAdapter:
    """The `HiggsAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, and if there is no codec.
    """
    if config:
        raise ArgumentError(f"config has {sorted(config)[0]!r}, which Higgs does not have; it may have 'draft_model'")
    own = getattr(processor, "audio_tokenizer", None)
    if codec is None and own is None:
        raise ArgumentError(
            "Higgs Audio comes without a codec; pass its processor, or the codec's folder or Hub id as tokenizer="
        )
    return HiggsAdapter(model, processor, codec or codec_of(own), draft_model)
