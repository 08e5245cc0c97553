"""The speech adapter of Fish Audio S2 Pro: texts of one or several speakers, voices as codes or as recordings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.dialogue import dialogue_parts
from mmspec.audio.draft_model import check_draft
from mmspec.audio.family_options import check_integers, options_of
from mmspec.audio.models.fish_s2.codec import FILE, FishCodec, read_codec
from mmspec.audio.models.fish_s2.decoding import FirstCodes, FishFrames, frame_ends, frame_spec
from mmspec.audio.models.fish_s2.model import FishS2, read_model
from mmspec.audio.positions import check_positions, check_voice
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes
from mmspec.audio.text import refuse_marks
from mmspec.batching.request import PreparedBatch
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.head import Head
from mmspec.hf.folder import tokenizer_of
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

DRAFT_SETTINGS = ("codebooks", "codes", "first", "end")
"""What a draft model's configuration must have in common with the model's."""

MAX_LETTERS = 300  # of a part, about 20 seconds
RESIDUAL_CODES = 1024  # that the codec has in each codebook but the first
TAGS = re.compile(r"<\|speaker:\d+\|>")
MARKS = re.compile(r"<\|(?!speaker:\d+\||phoneme_(?:start|end)\|)[^<>|]*\|>")  # that a text must not contain
VOICE = "convert the provided text to speech reference to the following:\n\nText:\n"


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        voice: The voice that is cloned: its codes int64 [F, K] and its transcript. None draws one.
        frames: Frames of a part, at most; 21.5 per second.
        repetition_penalty: Of the latest 16 first codes.
        residual: Sampling parameters of the codes after the first; a temperature of 0 takes the most likely ones.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
    """

    voice: ReferenceCodes | None = None
    frames: int = 750
    repetition_penalty: float = 1.1
    residual: SamplingParams = field(default_factory=lambda: SamplingParams(0.0))
    ahead: int = 0


@dataclass(frozen=True)
class FishPart:
    """A part of a text.

    Attributes:
        voice: The voice, or None.
        context: Parts before it, as turns of the conversation.
    """

    text: str
    voice: ReferenceCodes | None
    context: tuple[ReferenceCodes, ...] = ()


class FishAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Fish Audio S2 Pro.

    Texts may have several speakers: `<|speaker:0|>Hello. <|speaker:1|>Hello.` Without a voice, the later parts of a
    text are spoken with the voices of the first.

    Args:
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.

    Raises:
        ModelError: If the tokenizer has other ids than the model.
    """

    recipe = "scd:window=4"
    guided = False
    takes_min_p = False
    voices: Sequence[str] = ()
    sampling = SamplingParams(0.8, 30, 0.8)
    continues_parts = True

    def __init__(
        self, model: FishS2, tokenizer: Any, codec: Codec, options: Options, draft_model: FishS2 | None = None
    ) -> None:
        config = model.config
        self.codec = check_codec(codec, config.codebooks, 1)
        self.model, self.tokenizer, self.options, self.draft_model = model, tokenizer, options, draft_model
        self.ahead = options.ahead
        self.heads: dict[str, Head] = {}
        for name, own in (("<|semantic:0|>", config.first), ("<|im_end|>", config.end)):
            if (found := tokenizer.convert_tokens_to_ids(name)) != own:
                raise ModelError(
                    f"the tokenizer has {name} as {found}, the model as {own}; they do not belong together"
                )
        voice = options.voice
        self._voice = None if voice is None else voice.checked(config.codebooks, config.codes, "Fish S2", "transcript")
        if self._voice is not None:
            refuse_marks("transcript", self._voice.transcript, MARKS)

    def read(self, text: str, voice: str | None) -> PreparedText:
        refuse_marks("text", text, MARKS)
        pieces = dialogue_parts(text, TAGS, MAX_LETTERS)
        parts = [FishPart(piece, self._voice) for piece in pieces]
        for part in parts:
            check_positions(len(self.prompt(part)[0]), self.options.frames, self._positions)
        return PreparedText(parts, texts=pieces)

    def with_reference_audio(self, reference: ReferenceAudio) -> FishAdapter:
        if not isinstance(self.codec, FishCodec):
            raise ArgumentError("this codec cannot encode reference audio; pass its codes as config={'voice': ...}")
        wave = reference.mono(self.codec.sampling_rate)
        check_voice(len(wave), self.codec.hop, self.options.frames, self._positions)
        codes = self.codec.encode(wave)
        options = replace(self.options, voice=ReferenceCodes((reference.transcript or "").strip(), codes))
        made = FishAdapter(self.model, self.tokenizer, self.codec, options, self.draft_model)
        made.heads = self.heads
        return made

    @property
    def draws_voice(self) -> bool:
        return self._voice is None

    def continue_voice(self, part: FishPart, first: FishPart, tokens: Tensor) -> FishPart:
        codes = self.codes(tokens).T
        after = replace(part, voice=ReferenceCodes(first.text, codes))
        return after if len(codes) and self._fits(after) else part

    def continue_from(self, part: FishPart, context: Sequence[ReferenceCodes]) -> FishPart | None:
        after = replace(part, context=tuple(context))
        return after if self._fits(after) else None

    def _fits(self, part: FishPart) -> bool:
        return len(self.prompt(part)[0]) + self.options.frames <= self._positions

    def prompt(self, part: FishPart) -> tuple[Tensor, Tensor]:
        """The ids int64 [T] of a prompt, -1 in the places of frames, and these frames int64 [n, K].

        They are the voice's, and those of the parts before, each of which is a turn of the conversation.
        """
        ids, frames = list[int](), [torch.empty(0, self.model.config.codebooks, dtype=torch.int64)]
        if part.voice is not None:
            transcript = part.voice.transcript
            said = [spoken(transcript)] if transcript else []
            for text in ("<|im_start|>system\n", VOICE, *said, "\n\nSpeech:\n"):
                ids += self._ids(text)
            ids += [-1] * len(part.voice.codes) + self._ids("<|im_end|>\n")
            frames.append(part.voice.codes)
        for each in part.context:
            ids += [*self._asked(each.transcript), *[-1] * len(each.codes), *self._ids("<|im_end|>\n")]
            frames.append(each.codes)
        return torch.tensor([*ids, *self._asked(part.text)]), torch.cat(frames)

    def _asked(self, text: str) -> list[int]:
        """The ids of a turn that asks for a text, and of the beginning of the answer."""
        turn = "<|im_start|>user\n", spoken(text), "<|im_end|>\n", "<|im_start|>assistant\n<|voice|>"
        return [each for piece in turn for each in self._ids(piece)]

    def prepare_rows(
        self, parts: Sequence[FishPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        prompts, options, sampling = [self.prompt(part) for part in parts], self.options, samplings[0]
        length = options.frames + 1  # with the one that ends a row

        def prompted(model: FishS2, ahead: int) -> FishFrames:
            return FishFrames(model, prompts, length, FirstCodes(sampling, options.repetition_penalty), ahead)

        spec, books = frame_spec(self.model, length, sampling, options.residual), self.model.config.codebooks
        return prepare_frame_rows(
            recipe, self.model, len(parts), prompted, spec, books, self.ahead, self.draft_model, self.heads
        )

    def codes(self, tokens: Tensor) -> Tensor:
        ends = frame_ends(self.model)(tokens).nonzero()
        # Without the frame of its end, a row that is cut has room for a frame more.
        frames = tokens[: int(ends[0]) if len(ends) else self.options.frames]
        return torch.cat([frames[:, :1], frames[:, 1:].clamp(max=RESIDUAL_CODES - 1)], dim=1).T

    @property
    def _positions(self) -> int:
        return int(self.model.config.slow.max_position_embeddings)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def spoken(text: str) -> str:
    """A text with the tag of who speaks, by default the first speaker."""
    return text if TAGS.match(text) else f"<|speaker:0|>{text}"


def from_folder(source: PublishedFolder) -> FishAdapter:
    """The adapter of a published folder; see `PublishedFolder`."""
    options = read_options(source.options)
    if source.codec is None and not (source.folder / FILE).is_file():
        raise ArgumentError(
            f"Fish S2 has no codec here; put {FILE} into {str(source.folder)!r}, or pass a mmspec.audio.codec.Codec as "
            "config={'codec': ...}"
        )
    tokenizer = tokenizer_of(source.processor, source.folder, "PreTrainedTokenizerFast")
    model, draft_model = source.model(read_model), source.draft_model(read_model)
    if draft_model is not None:
        check_draft(draft_model, model, DRAFT_SETTINGS)
    own = read_codec(source.folder, source.device) if source.codec is None else source.codec
    return FishAdapter(model, tokenizer, own, options, draft_model)


def sampling_of(name: str, fields: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters of their fields, such as {"temperature": 0.8, "top_k": 30, "top_p": 0.9}.

    Raises:
        ArgumentError: For other fields, and values that are not allowed.
    """
    allowed = ("temperature", "top_k", "top_p")
    if unknown := [each for each in fields if each not in allowed]:
        raise ArgumentError(f"{name} has {shown(unknown[0])}, which is not a field of it; fields: {', '.join(allowed)}")
    return SamplingParams(**fields)


def read_options(config: Mapping[str, Any]) -> Options:
    """The options of a pipeline.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    given = dict(config)
    if isinstance(given.get("residual"), Mapping):  # as the command line writes it
        given["residual"] = sampling_of("residual", given["residual"])
    options = options_of(Options, given, "Fish S2", ("codec", "draft_model"))
    check_integers(options, (("frames", 1, 2**20), ("ahead", 0, MAX_AHEAD)))
    penalty = options.repetition_penalty
    if isinstance(penalty, bool) or not isinstance(penalty, (int, float)) or not 0.1 <= penalty <= 10:
        raise ArgumentError(f"repetition_penalty={shown(penalty)} is not allowed; it must be a number, 0.1 to 10")
    for name, kinds, wanted in (
        ("voice", (ReferenceCodes, type(None)), "a mmspec.audio.reference_audio.ReferenceCodes"),
        ("residual", (SamplingParams,), "a mmspec.sampling.params.SamplingParams, or its fields"),
    ):
        if not isinstance(getattr(options, name), kinds):
            raise ArgumentError(f"{name}={shown(getattr(options, name))} is not allowed; pass {wanted}")
    return options
