"""The speech adapter of Higgs Audio: texts by its chat template, voices, its codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_integer, shown
from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText, with_voice_of
from mmspec.audio.checkpoint_sampling import checkpoint_sampling
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.dialogue import dialogue_parts
from mmspec.audio.models.higgs.decoding import HiggsRequest, RepetitionLimit, plan
from mmspec.audio.models.higgs.prompt import SCENE, TAGS, HiggsPrompt, clean, conversation, read_prompt
from mmspec.audio.multi_codebook.decoding import check_same_class
from mmspec.audio.multi_codebook.delay_pattern import linear_delays, undelay
from mmspec.audio.positions import check_positions, check_voice
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes
from mmspec.decoding.assembly import PreparedRows
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_FRAMES = 750  # of a part: half a minute of the published model
MAX_LETTERS = 300  # of a part, about 20 seconds


@dataclass(frozen=True)
class HiggsPart:
    """A part of a text.

    Attributes:
        speakers: The speakers' tags of the whole text.
        context: Reference audio, and parts of the text before this one, whose voices it keeps.
    """

    text: str
    speakers: tuple[str, ...]
    context: tuple[ReferenceCodes, ...] = ()


class HiggsAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Higgs Audio.

    Texts may have several speakers: `[SPEAKER0] Hello. [SPEAKER1] Hello.` Without reference audio, the later parts of a
    text continue from its first, so that they have its voices.

    Args:
        model: A `HiggsAudioV2ForConditionalGeneration`.
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.
        frames: Frames of a part, at most.
        scene: Describes the recording and its speakers; None is nothing.
        reference: Reference audio to continue, its codes int64 [F, codebooks]; or None.
    """

    recipe = "scd:window=4"
    takes_min_p = True
    guided = False
    voices: Sequence[str] = ()
    continues_parts = True

    def __init__(
        self,
        model: Any,
        processor: Any,
        codec: Codec,
        draft_model: Any = None,
        frames: int = MAX_FRAMES,
        scene: str | None = SCENE,
        reference: ReferenceCodes | None = None,
    ) -> None:
        self.model, self.processor, self.codec, self.frames = model.eval(), processor, codec, frames
        self.draft_model = None if draft_model is None else check_same_class(model, draft_model).eval()
        self.scene, self.reference = scene, reference
        check_codec(codec, int(model.config.num_codebooks), int(model.config.audio_stream_bos_id))
        config = model.generation_config
        self.sampling = checkpoint_sampling(config)
        window, limit = (getattr(config, name, None) for name in ("ras_win_len", "ras_win_max_num_repeat"))
        self.repetition = None if window is None or limit is None else RepetitionLimit(int(window), int(limit))

    def read(self, text: str, voice: str | None) -> PreparedText:
        text = clean(text)
        speakers = tuple(sorted(set(TAGS.findall(text))))
        pieces = dialogue_parts(text, TAGS, MAX_LETTERS)
        context = () if self.reference is None else (self.reference,)
        parts = [HiggsPart(piece, speakers, context) for piece in pieces]
        for part in parts:
            check_positions(len(self._prompt(part).ids), self._columns, self._positions)
        return PreparedText(parts, texts=pieces)

    def with_reference_audio(self, reference: ReferenceAudio) -> HiggsAdapter:
        processor, transcript = self.processor, reference.require_transcript("Higgs Audio")
        if getattr(processor, "audio_tokenizer", None) is None:
            raise ArgumentError(
                "the processor cannot encode reference audio; pass a HiggsAudioV2Processor with its codec"
            )
        rate = self.codec.sampling_rate
        wave = reference.mono(rate)
        check_voice(len(wave), self.codec.hop, self._columns, self._positions)
        with torch.inference_mode():
            found = processor(
                text=[processor.audio_token],
                audio=wave.numpy(),
                sampling_rate=rate,
                return_tensors="pt",
            )
        # Between the columns that begin and end audio.
        codes = undelay(found["audio_input_ids"], linear_delays(self.model.config.num_codebooks))[0, 1:-1].cpu().clone()
        voice = ReferenceCodes(transcript, codes)
        return HiggsAdapter(self.model, processor, self.codec, self.draft_model, self.frames, self.scene, voice)

    @property
    def draws_voice(self) -> bool:
        return self.reference is None

    def continue_voice(self, part: HiggsPart, first: HiggsPart, tokens: Tensor) -> HiggsPart:
        return with_voice_of(self, part, first.text, tokens)

    def continue_from(self, part: HiggsPart, context: Sequence[ReferenceCodes]) -> HiggsPart | None:
        after = replace(part, context=(*part.context, *context))
        fits = len(self._prompt(after).ids) + self._columns <= self._positions
        return after if fits else None

    @property
    def _columns(self) -> int:
        """Columns of a part, at most."""
        return self.frames + int(self.model.config.num_codebooks)

    @property
    def _positions(self) -> int:
        return int(self.model.config.max_position_embeddings)

    def _prompt(self, part: HiggsPart) -> HiggsPrompt:
        # The voices of reference audio need no description.
        speakers = part.speakers if self.reference is None else ()
        messages = conversation(part.text, self.scene, speakers, [each.transcript for each in part.context])
        return read_prompt(self.processor, messages, [each.codes for each in part.context])

    def prepare_rows(
        self, parts: Sequence[HiggsPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        model, config, device = self.model, self.model.config, self.model.device
        prompts = [self._prompt(part) for part in parts]
        longest, most = (max(len(getattr(p, name)) for p in prompts) for name in ("ids", "columns"))
        ids = torch.full((len(parts), longest), int(config.pad_token_id or 0))
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        # On the left: the repetition limit reads the latest columns, which must not depend on the other rows.
        columns = torch.full((len(parts), most, int(config.num_codebooks)), int(config.audio_stream_eos_id))
        columns_mask = torch.zeros(columns.shape[:2], dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt.ids) :], mask[row, longest - len(prompt.ids) :] = prompt.ids, True
            if len(prompt.columns):
                first = most - len(prompt.columns)
                columns[row, first:], columns_mask[row, first:] = prompt.columns, True
        request = HiggsRequest(
            ids.to(device),
            mask.to(device),
            columns.to(device),
            columns_mask.to(device),
            self._columns,
            samplings[0],
            self.repetition,
        )
        draft = None if self.draft_model is None else plan(self.draft_model, request)
        return plan(model, request).prepare(model, recipe, len(parts), draft, self.codec.tables)

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
        ArgumentError: For unknown options, values that are not allowed, and if there is no codec.
    """
    options = dict(config)
    frames, scene = options.pop("frames", MAX_FRAMES), options.pop("scene", SCENE)
    check_config(options, "Higgs", ("draft_model", "frames", "scene"))
    check_integer("frames", frames, 1, 2**31)
    if scene is not None and not isinstance(scene, str):
        raise ArgumentError(f"scene={shown(scene)} is not allowed; it must be a string, or None for no scene")
    own = getattr(processor, "audio_tokenizer", None)
    if codec is None and own is None:
        raise ArgumentError(
            "Higgs Audio comes without a codec; pass its processor, or the codec's folder or Hub id as tokenizer="
        )
    return HiggsAdapter(model, processor, codec or codec_of(own), draft_model, frames, scene)
