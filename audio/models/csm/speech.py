"""The speech adapter of CSM: texts by speaker, frames, Mimi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_integer
from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText
from mmspec.audio.checkpoint_sampling import checkpoint_sampling, stage_sampling
from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.draft_model import check_draft
from mmspec.audio.models.csm.decoding import DRAFT_SETTINGS, CsmFrames, depth_sampling, frame_ends
from mmspec.audio.positions import check_positions, check_voice
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes
from mmspec.audio.text import split_text
from mmspec.batching.request import PreparedBatch
from mmspec.heads.head import Head
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_FRAMES = 375  # of a part: half a minute
MIN_LETTERS, MAX_LETTERS = 50, 300  # of a part of few frames, and of `MAX_FRAMES`: about 20 seconds
ORIGINAL = SamplingParams(0.9, 50)  # of both models, in github.com/SesameAILabs/csm


@dataclass(frozen=True)
class CsmPart:
    """A part of a text.

    Attributes:
        speaker: Who speaks.
        ids: The ids of its line.
        context: The ids of the lines before it, each with its frames int64 [F, codebooks].
    """

    speaker: str
    ids: list[int]
    context: tuple[tuple[list[int], Tensor], ...] = ()


class CsmAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of CSM.

    The sampling parameters of a call apply to all codebooks. For those that a call leaves at their defaults, the depth
    decoder has its own, in its generation config. Without reference audio, the later parts of a text continue from its
    first, so that they have its voice.

    Args:
        model: A `CsmForConditionalGeneration`.
        processor: A `CsmProcessor`, or its tokenizer.
        codec: The codec of its codes.
        draft_model: A smaller model of the family, which drafts the depth, or None.
        frames: Frames of a part, at most.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
        reference: Reference audio to continue, its codes int64 [F, codebooks]; or None.
    """

    recipe = "scd:window=8"
    takes_min_p = True
    guided = False
    voices: Sequence[str] = ("0", "1")
    continues_parts = True

    def __init__(
        self,
        model: Any,
        processor: Any,
        codec: Codec,
        draft_model: Any = None,
        frames: int = MAX_FRAMES,
        ahead: int = 0,
        reference: ReferenceCodes | None = None,
    ) -> None:
        self.model, self.processor, self.codec, self.frames = model.eval(), processor, codec, frames
        self.ahead, self.reference = ahead, reference
        self.heads: dict[str, Head] = {}
        self.draft_model = None if draft_model is None else check_draft(draft_model, model, DRAFT_SETTINGS).eval()
        self.sampling = checkpoint_sampling(model.generation_config, ORIGINAL)

    def read(self, text: str, voice: str | None) -> PreparedText:
        speaker = voice or self.voices[0]
        letters = max(min(MAX_LETTERS, MAX_LETTERS * self.frames // MAX_FRAMES), MIN_LETTERS)
        pieces = split_text(text, letters)
        context = () if self.reference is None else (self._said(speaker, self.reference),)
        parts = [CsmPart(speaker, self._ids(f"[{speaker}]{piece}"), context) for piece in pieces]
        for part in parts:
            check_positions(len(self._prompt(part)), self.frames, int(self.model.config.max_position_embeddings))
        return PreparedText(parts, texts=pieces)

    @property
    def draws_voice(self) -> bool:
        return self.reference is None

    def continue_voice(self, part: CsmPart, first: CsmPart, tokens: Tensor) -> CsmPart:
        codes = self.codes(tokens).T
        return (self._after(part, (first.ids, codes)) if len(codes) else None) or part

    def continue_from(self, part: CsmPart, context: Sequence[ReferenceCodes]) -> CsmPart | None:
        return self._after(part, *(self._said(part.speaker, each) for each in context))

    def _said(self, speaker: str, reference: ReferenceCodes) -> tuple[list[int], Tensor]:
        """The ids of the line that a speaker said, and its frames."""
        return self._ids(f"[{speaker}]{reference.transcript}"), reference.codes

    def _after(self, part: CsmPart, *lines: tuple[list[int], Tensor]) -> CsmPart | None:
        """A part that follows lines; None if that does not fit into the positions."""
        after = replace(part, context=(*part.context, *lines))
        fits = len(self._prompt(after)) + self.frames <= self.model.config.max_position_embeddings
        return after if fits else None

    def _prompt(self, part: CsmPart) -> list[int]:
        """The ids of a part and of the lines before it, with placeholders for their frames."""
        config, ids = self.model.config, list[int]()
        for line, codes in part.context:
            ids += [*line, *[config.audio_token_id] * len(codes), config.audio_eos_token_id]
        return [*ids, *part.ids]

    def _ids(self, line: str) -> list[int]:
        """The ids of a line between the marks that begin and end a text."""
        ids = self.processor(line, add_special_tokens=True)["input_ids"]  # a CsmProcessor leaves the marks out unasked
        return list(torch.as_tensor(ids).flatten().tolist())

    def with_reference_audio(self, reference: ReferenceAudio) -> CsmAdapter:
        mimi = self.model.codec_model
        transcript = reference.require_transcript("CSM")
        wave = reference.mono(self.codec.sampling_rate).to(mimi.device, mimi.dtype)
        check_voice(len(wave), self.codec.hop, self.frames, self.model.config.max_position_embeddings)
        with torch.inference_mode():
            codes = mimi.encode(wave[None, None]).audio_codes[0, : self.model.config.num_codebooks].T
        found = ReferenceCodes(transcript, codes.to(self.model.device))
        other = CsmAdapter(self.model, self.processor, self.codec, self.draft_model, self.frames, self.ahead, found)
        other.heads = self.heads
        return other

    def prepare_rows(
        self, parts: Sequence[CsmPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        def prompted(model: Any, ahead: int) -> CsmFrames:
            return self._prompted(model, parts, ahead)

        first, pad = samplings[0], int(self.model.config.codebook_eos_token_id)
        rest = stage_sampling(depth_sampling(self.model), self.sampling, first)
        spec = FrameSpec(self.frames, frame_ends(self.model), pad, first, rest)
        books = int(self.model.config.num_codebooks)
        return prepare_frame_rows(
            recipe, self.model, len(parts), prompted, spec, books, self.ahead, self.draft_model, self.heads
        )

    def _prompted(self, model: Any, parts: Sequence[CsmPart], ahead: int) -> CsmFrames:
        """A model, which is the target or the draft model, with the prompts of parts, padded on the left."""
        prompts = [self._prompt(part) for part in parts]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(own)) + own for own in prompts], device=self.model.device)
        lengths = torch.tensor([[len(own)] for own in prompts], device=ids.device)
        mask = torch.arange(longest, device=ids.device) >= longest - lengths
        given = [codes.to(ids.device) for part in parts for _, codes in part.context]
        config, embeds = model.config, model.embed_text_tokens(ids)
        if given:
            codes = torch.cat(given)
            ends = torch.full_like(codes[: len(given)], config.codebook_eos_token_id)
            for placeholder, frames in ((config.audio_token_id, codes), (config.audio_eos_token_id, ends)):
                frame_embeds = model.backbone_model.embed_tokens(frames[None])[0]
                embeds = embeds.masked_scatter((ids == placeholder)[..., None], frame_embeds)
        return CsmFrames(model, embeds, mask, self.frames, ahead)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = frame_ends(self.model)(tokens).nonzero()
        frames = tokens[: int(ends[0])] if len(ends) else tokens
        return frames.clamp(max=self.codec.codebook_size - 1).T  # the vocabulary has more ids than the codec


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> CsmAdapter:
    """The `CsmAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = dict(config)
    frames, ahead = options.pop("frames", MAX_FRAMES), options.pop("ahead", 0)
    check_config(options, "CSM", ("draft_model", "frames", "ahead"))
    check_integer("frames", frames, 1, 2**31)
    check_integer("ahead", ahead, 0, MAX_AHEAD)
    return CsmAdapter(model, processor, codec or codec_of(model.codec_model), draft_model, frames, ahead)
