"""The speech adapter of Qwen3-Omni: questions in text, answers spoken by its talker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.adapter import PreparedText
from mmspec.audio.checkpoint_sampling import stage_sampling
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.codecs.code2wav import Code2Wav
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_frames import DepthFrames, left_padded, same_length
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.family_options import check_integers, check_texts, options_of
from mmspec.audio.models.qwen3_omni.decoding import depth_sampling, talker_frames
from mmspec.audio.talker_call import Question, call_talker
from mmspec.batching.request import PreparedBatch
from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.head import Head
from mmspec.hf.arguments import read_processors
from mmspec.hf.causal_target import Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.recipes import Recipe
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

# The defaults of its `generate`.
ORIGINAL = SamplingParams(0.9, 50)
REPETITION_PENALTY = 1.05


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        frames: Frames of an answer, at most; 12.5 per second.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
        answer_tokens: Tokens of the answer's text, at most.
        system: A system prompt, or None.
    """

    frames: int = 1500
    ahead: int = 0
    answer_tokens: int = 1024
    system: str | None = None


@dataclass(frozen=True)
class TalkerPrompt:
    """What the talker speaks an answer from.

    Attributes:
        embeds: The embeddings [T, D] of its prompt.
        text: Those [n, D] of the text that is added to its first n frames, the last of them to all later ones.
        processors: The logits processors of first tokens.
    """

    embeds: Tensor
    text: Tensor
    processors: tuple[LogitsProcessor, ...]


class Qwen3OmniAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Qwen3-Omni.

    The thinker answers a text on its own, with the most likely tokens; what it answers is a note of the output. The
    talker is speculated on.

    Args:
        model: A `Qwen3OmniMoeForConditionalGeneration`.
        processor: Its processor, or its tokenizer with the chat template.
        codec: The codec of its codes.

    Raises:
        ModelError: If the model has no talker, or the codec does not fit.
    """

    recipe = "scd:window=8"
    takes_min_p = True
    guided = False
    draws_voice = False
    answers = True
    sampling = ORIGINAL

    def __init__(self, model: Any, processor: Any, codec: Codec, options: Options) -> None:
        self.model, self.processor, self.options = model.eval(), processor, options
        config = model.config.talker_config
        self.codec = check_codec(codec, int(config.num_code_groups), 1)
        self.ahead, self.heads = options.ahead, dict[str, Head]()
        names = sorted(config.speaker_id, key=lambda name: name != "ethan")
        self.voices: Sequence[str] = tuple(names)
        self._end = int(config.codec_eos_token_id)

    def read(self, text: str, voice: str | None) -> PreparedText:
        question = Question(text, self.options.system, voice or self.voices[0], self.options.answer_tokens)
        call = call_talker(self.model, self.processor, question, talker_repetition_penalty=1.0)
        _, processors = read_processors(call.processors)
        added = torch.cat([call.inputs["trailing_text_hidden"], call.inputs["tts_pad_embed"]], dim=1)[0]
        penalty: LogitsProcessor = RepetitionPenalty(REPETITION_PENALTY)
        prompt = TalkerPrompt(call.inputs["inputs_embeds"][0], added, (penalty, *processors))
        return PreparedText([prompt], notes=[f"answer: {call.answer}"], texts=[call.answer])

    def prepare_rows(
        self, parts: Sequence[TalkerPrompt], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        if recipe.needs_draft_model:
            raise ArgumentError(f"recipe {recipe.name!r} is not possible for Qwen3-Omni, which has no draft model")
        length = self.options.frames + 1  # with the one that ends a row

        def prompted(model: Any, ahead: int) -> DepthFrames:
            embeds, mask = left_padded([part.embeds for part in parts])
            added = same_length([part.text for part in parts])
            prompt = Prompt(embeds, mask, position_ids_of(mask), added=added)
            return talker_frames(model.talker, prompt, length, ahead, parts[0].processors)

        first, books = samplings[0], int(self.model.config.talker_config.num_code_groups)
        rest = stage_sampling(depth_sampling(self.model.talker, first.temperature > 0), self.sampling, first)
        spec = FrameSpec(length, self.ended, self._end, first, rest)
        return prepare_frame_rows(recipe, self.model, len(parts), prompted, spec, books, self.ahead, heads=self.heads)

    def ended(self, frames: Tensor) -> Tensor:
        """Frames int64 [..., K] to bool [...]: True for frames that end their row."""
        return frames[..., 0] == self._end

    def codes(self, tokens: Tensor) -> Tensor:
        ends = self.ended(tokens).nonzero()
        # Without the frame of its end, a row that is cut has room for a frame more.
        frames = tokens[: int(ends[0]) if len(ends) else self.options.frames]
        return frames.clamp(max=self.codec.codebook_size - 1).T


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft: Any) -> Qwen3OmniAdapter:
    """The `Qwen3OmniAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
        ModelError: If the model has no talker, or no speakers.
    """
    if draft is not None:
        raise ArgumentError("draft_model is not possible for Qwen3-Omni, whose talker reads its own thinker's states")
    if not model.has_talker:
        raise ModelError("the model has no talker, and so no voice; load one with enable_audio_output")
    if not model.config.talker_config.speaker_id:
        raise ModelError("the model has no speakers; its talker_config must have them in speaker_id")
    options = options_of(Options, config, "Qwen3-Omni")
    check_integers(options, (("frames", 1, 2**20), ("answer_tokens", 2, 2**20), ("ahead", 0, MAX_AHEAD)))
    check_texts(options, ("system",), optional=True)
    return Qwen3OmniAdapter(model, processor, codec or Code2Wav(model.code2wav), options)
