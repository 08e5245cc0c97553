"""The speech adapter of Qwen3-TTS: published folders, texts, speakers, instructions, cloned voices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Tokenizer

from mmspec.arguments import check_flag, shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.checkpoint_sampling import stage_sampling
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.codecs.after_reference import AfterReference
from mmspec.audio.codecs.qwen3_tts import Qwen3TTSCodec, read_codec
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.draft_model import check_draft
from mmspec.audio.family_options import check_integers, check_texts, options_of
from mmspec.audio.models.qwen3_tts.decoding import Qwen3TTSFrames, frame_ends
from mmspec.audio.models.qwen3_tts.model import Qwen3TTS, read_model
from mmspec.audio.models.qwen3_tts.prompt import (
    Continuation,
    Qwen3TTSPrompt,
    embed_prompt,
    instruction_text,
    joined,
    reference_text,
    spoken_text,
)
from mmspec.audio.models.qwen3_tts.speaker import embed_voice
from mmspec.audio.positions import check_positions, check_voice
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes
from mmspec.audio.text import split_text
from mmspec.batching.request import PreparedBatch
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import describe
from mmspec.heads.head import Head
from mmspec.hf.folder import LOAD_ERRORS, read_json
from mmspec.hub import current_access
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

DRAFT_SETTINGS = ("kind", "codebooks", "codes", "eos", "text_vocab_size")
"""What a draft model's configuration must have in common with the model's."""

MAX_FRAMES = 750  # of a part: one minute
MAX_LETTERS = 600  # of a part: about 40 seconds
MIN_LETTERS = 50
# Of the original, for values that generation_config.json leaves out.
DEFAULTS = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "do_sample": True}
REPETITION_PENALTY = 1.05


@dataclass(frozen=True)
class Options:
    """How a pipeline speaks.

    Attributes:
        frames: Frames of a part, at most, with the one that ends it.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
        language: The language of the texts, by name, or "auto".
        instruct: How to speak, or for voice_design models the voice; or None.
        non_streaming_mode: Whether a prompt has all of its text, instead of one token per frame; None is the original's
            choice: only cloned voices have not.
    """

    frames: int = MAX_FRAMES
    ahead: int = 0
    language: str = "auto"
    instruct: str | None = None
    non_streaming_mode: bool | None = None


@dataclass(frozen=True)
class Voice:
    """A voice from reference audio.

    Attributes:
        vectors: The vectors of the target's and of the draft model's speaker encoder, [D] each.
        continuation: The audio and its transcript; None if only the vectors are used.
    """

    vectors: Sequence[Tensor]
    continuation: Continuation | None


class Qwen3TTSAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Qwen3-TTS.

    The sampling parameters of a call apply to all codebooks. For those that a call leaves at their defaults, the code
    predictor has its own, in the generation config. Long texts are split at sentences. A voice_design model draws a new
    voice for every part; so the later parts of a text continue from its first, like reference audio with a transcript.

    Args:
        tokenizer: A `Qwen2Tokenizer`.
        codec: The codec of its codes.
        generation: The content of `generation_config.json`.
        options: How it speaks.
        draft_model: A smaller model of the same kind, or None.
        voice: The voice of reference audio, or None.

    Raises:
        ArgumentError: For a language or an instruction that the model does not have.
        ModelError: For a codec that does not fit.
    """

    recipe = "scd:window=8"
    takes_min_p = True
    guided = False

    def __init__(
        self,
        model: Qwen3TTS,
        tokenizer: Any,
        codec: Codec,
        generation: Mapping[str, Any],
        options: Options,
        draft_model: Qwen3TTS | None = None,
        voice: Voice | None = None,
    ) -> None:
        self.model, self.tokenizer, self._codec = model, tokenizer, codec
        continuation = None if voice is None else voice.continuation
        self.codec = codec if continuation is None else AfterReference(codec, continuation.codes.T)
        self.generation, self.options, self.voice, self.ahead = generation, options, voice, options.ahead
        self.heads: dict[str, Head] = {}
        self.draft_model = None if draft_model is None else check_draft(draft_model, model, DRAFT_SETTINGS)
        config = model.config
        check_codec(codec, config.codebooks, config.codes)
        self.voices: Sequence[str] = tuple(config.speakers) if config.kind == "custom_voice" else ()
        self.sampling = sampling_of(generation, "")
        config.language(options.language, None)
        if options.instruct is not None and not config.instructs:
            raise ArgumentError(
                f"instruct={options.instruct[:80]!r} is not possible: this model follows no instructions"
            )

    def read(self, text: str, voice: str | None) -> PreparedText:
        config, options = self.model.config, self.options
        if config.kind == "base" and self.voice is None:
            raise ArgumentError(
                "reference audio is missing; this model clones voices: call pipe.with_reference_audio, or pass "
                "--voice-file on the command line"
            )
        speaker = (voice or self.voices[0]) if self.voices else None
        instruction = None if not options.instruct else self._ids(instruction_text(options.instruct))
        whole = options.non_streaming_mode
        base = Qwen3TTSPrompt(
            ids=torch.empty(0, dtype=torch.int64),
            instruction=instruction,
            language=config.language(options.language, speaker),
            speaker=None if speaker is None else config.speakers[speaker],
            continuation=None if self.voice is None else self.voice.continuation,
            whole_text=config.kind != "base" if whole is None else whole,
        )
        letters = max(min(MAX_LETTERS, MAX_LETTERS * options.frames // MAX_FRAMES), MIN_LETTERS)
        pieces = split_text(text, letters)
        parts = [replace(base, ids=self._ids(spoken_text(piece))) for piece in pieces]
        vector = None if self.voice is None else self.voice.vectors[0]
        with torch.inference_mode():
            for part in parts:
                check_positions(len(embed_prompt(self.model, part, vector)[0]), options.frames, self._positions)
        return PreparedText(parts, texts=pieces)

    @property
    def draws_voice(self) -> bool:
        return self.model.config.kind == "voice_design"

    def continue_voice(self, part: Qwen3TTSPrompt, first: Qwen3TTSPrompt, tokens: Tensor) -> Qwen3TTSPrompt:
        codes = self.codes(tokens).T
        # The text of the first part as a transcript: without the role that follows it.
        transcript = first.ids[: len(first.ids) - len(self._ids("<|im_start|>assistant\n"))]
        return (self._after(part, Continuation(transcript, codes)) if len(codes) else None) or part

    @property
    def continues_parts(self) -> bool:
        return self.model.config.kind != "custom_voice"

    def continue_from(self, part: Qwen3TTSPrompt, context: Sequence[ReferenceCodes]) -> Qwen3TTSPrompt | None:
        before = [] if part.continuation is None else [part.continuation]
        for each in context:
            text = f" {each.transcript}" if before else each.transcript
            before.append(Continuation(self._ids(reference_text(text)), each.codes))
        return self._after(part, joined(before))

    def _after(self, part: Qwen3TTSPrompt, before: Continuation) -> Qwen3TTSPrompt | None:
        """A part that continues audio; None if that does not fit into the positions."""
        length = len(before.codes) + len(before.ids) + len(part.ids) + self.options.frames
        return replace(part, continuation=before) if length <= self._positions else None

    def with_reference_audio(self, reference: ReferenceAudio) -> Qwen3TTSAdapter:
        models = [self.model] if self.draft_model is None else [self.model, self.draft_model]
        vectors, continuation, codec = [embed_voice(model, reference) for model in models], None, self._codec
        if reference.transcript is not None and reference.transcript.strip():
            if not isinstance(codec, Qwen3TTSCodec):
                raise ArgumentError(
                    "the codec cannot encode reference audio; leave out its transcript to use the speaker alone"
                )
            wave = reference.mono(codec.sampling_rate)
            check_voice(len(wave), codec.hop, self.options.frames, self._positions)
            codes = codec.encode(wave)[:, : self.model.config.codebooks]
            continuation = Continuation(self._ids(reference_text(reference.transcript)), codes)
        voice = Voice(vectors, continuation)
        other = Qwen3TTSAdapter(
            self.model, self.tokenizer, codec, self.generation, self.options, self.draft_model, voice
        )
        other.heads = self.heads
        return other

    def prepare_rows(
        self, parts: Sequence[Qwen3TTSPrompt], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        def prompted(model: Qwen3TTS, ahead: int) -> Qwen3TTSFrames:
            return self.prompted(model, parts, ahead)

        first, config = samplings[0], self.model.config
        rest = stage_sampling(sampling_of(self.generation, "subtalker_"), self.sampling, first)
        spec = FrameSpec(self.options.frames, frame_ends(self.model), config.codes, first, rest)
        return prepare_frame_rows(
            recipe, self.model, len(parts), prompted, spec, config.codebooks, self.ahead, self.draft_model, self.heads
        )

    def codes(self, tokens: Tensor) -> Tensor:
        ends = frame_ends(self.model)(tokens).nonzero()
        return (tokens[: int(ends[0])] if len(ends) else tokens).T

    def prompted(self, model: Qwen3TTS, parts: Sequence[Qwen3TTSPrompt], ahead: int) -> Qwen3TTSFrames:
        """A model, which is the target or the draft model, with the prompts of parts, for windows of `ahead` frames."""
        vector = None if self.voice is None else self.voice.vectors[0 if model is self.model else -1]
        prompts = [embed_prompt(model, part, vector) for part in parts]
        penalty = float(self.generation.get("repetition_penalty", REPETITION_PENALTY))
        return Qwen3TTSFrames(model, prompts, self.options.frames, ahead, penalty)

    @property
    def _positions(self) -> int:
        return int(self.model.config.talker.max_position_embeddings)

    def _ids(self, text: str) -> Tensor:
        return torch.tensor(self.tokenizer(text)["input_ids"], dtype=torch.int64)


def sampling_of(generation: Mapping[str, Any], stage: str) -> SamplingParams:
    """The sampling parameters of a stage in `generation_config.json`: of the talker "", or "subtalker_"."""

    def value(name: str) -> Any:
        key = "subtalker_dosample" if stage and name == "do_sample" else stage + name
        found = generation.get(key)
        return DEFAULTS[name] if found is None else found

    temperature = float(value("temperature")) if value("do_sample") else 0.0
    return SamplingParams(temperature, int(value("top_k")), float(value("top_p")))


def read_tokenizer(where: str | Path) -> Any:
    """The tokenizer in a folder or of a Hub id.

    Raises:
        ArgumentError: If it cannot be loaded.
    """
    try:
        access = current_access()
        return Qwen2Tokenizer.from_pretrained(where, cache_dir=access.cache_dir, token=access.token)
    except LOAD_ERRORS as error:
        raise ArgumentError(f"processor={str(where)!r} cannot be loaded: {describe(error)}") from None


def from_folder(source: PublishedFolder) -> Qwen3TTSAdapter:
    """The adapter of a published folder; see `PublishedFolder`."""
    options = read_options(source.options)
    codec, tokenizer = source.codec, source.processor
    if codec is None:
        if not (source.folder / "speech_tokenizer").is_dir():
            raise ModelError(f"model {str(source.folder)!r} has no folder speech_tokenizer, which contains its codec")
        codec = read_codec(source.folder / "speech_tokenizer", source.device)
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        tokenizer = read_tokenizer(tokenizer or source.folder)
    model, draft_model = source.model(read_model), source.draft_model(read_model)
    generation = read_json(source.folder / "generation_config.json")
    return Qwen3TTSAdapter(model, tokenizer, codec, generation, options, draft_model)


def read_options(config: Mapping[str, Any]) -> Options:
    """The options of a pipeline.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = options_of(Options, config, "Qwen3-TTS", ("draft_model",))
    check_integers(options, (("frames", 1, 2**20), ("ahead", 0, MAX_AHEAD)))
    if not isinstance(options.language, str):
        raise ArgumentError(f"language={shown(options.language)} is not allowed; it must be a name, or 'auto'")
    check_texts(options, ("instruct",), optional=True)
    if options.non_streaming_mode is not None:
        check_flag("non_streaming_mode", options.non_streaming_mode)
    return options
