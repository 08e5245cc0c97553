"""The speech adapter of Dia: texts by its processor, DAC."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText, with_voice_of
from mmspec.audio.checkpoint_sampling import checkpoint_sampling
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.dialogue import dialogue_parts, with_tag
from mmspec.audio.models.dia.decoding import DiaGuidance, DiaRequest, plan
from mmspec.audio.multi_codebook.decoding import check_same_class
from mmspec.audio.multi_codebook.delay_pattern import delay, undelay
from mmspec.audio.positions import check_positions
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes, joined
from mmspec.decoding.assembly import PreparedRows
from mmspec.errors import ArgumentError
from mmspec.hf.padding import with_padding
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_FRAMES = 1500  # of a part: 17 seconds of the published model, which has room for two parts
MAX_LETTERS = 200  # of a part, about 13 seconds
FIRST, TAGS = "[S1]", re.compile(r"\[S[12]\]")


@dataclass(frozen=True)
class DiaPart:
    """A part of a text.

    Attributes:
        text: The text, which begins with a speaker's tag.
        context: What the part continues from: reference audio, parts of the text before it, or both; or None.
    """

    text: str
    context: ReferenceCodes | None = None


class DiaAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Dia. Texts contain speaker tags: `[S1] Hello. [S2] Hello.`

    A text without a tag is spoken by `[S1]`. Without reference audio, the later parts of a text continue from its
    first, so that they have its voices.

    Guidance differs from that of other models, see `mmspec.audio.models.dia.decoding.DiaGuidance`; `top_k` is part of
    it.

    Args:
        model: A `DiaForConditionalGeneration`.
        processor: A `DiaProcessor`, or its tokenizer.
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.
        frames: Frames of a part, at most.
        reference: Reference audio to continue, its codes int64 [F, C]; or None.
    """

    recipe = "scd:window=4"
    takes_min_p = True
    guided = True
    voices: Sequence[str] = ()
    continues_parts = True

    def __init__(
        self,
        model: Any,
        processor: Any,
        codec: Codec,
        draft_model: Any = None,
        frames: int = MAX_FRAMES,
        reference: ReferenceCodes | None = None,
    ) -> None:
        self.reference = reference
        self.model, self.processor, self.codec = model.eval(), with_padding(processor), codec
        self.draft_model = None if draft_model is None else check_same_class(model, draft_model).eval()
        config, last_delay = model.generation_config, max(model.config.delay_pattern)
        # Frames of a part and its context together.
        self._positions = int(model.config.decoder_config.max_position_embeddings) - 1 - last_delay
        self.frames = min(frames, self._positions)
        self._end = int(model.config.decoder_config.eos_token_id)  # codes are the ids before it
        check_codec(codec, len(model.config.delay_pattern), self._end)
        own = checkpoint_sampling(config)
        # The model's own generate raises a temperature below 1 to 1.
        self.sampling = replace(own, temperature=max(own.temperature, 1.0) if own.temperature else 0.0)

    def read(self, text: str, voice: str | None) -> PreparedText:
        parts = dialogue_parts(with_tag(text.strip(), FIRST, TAGS), TAGS, MAX_LETTERS)
        transcript = "" if self.reference is None else f"{self.reference.transcript} "
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        for part in parts:
            check_positions(
                len(tokenizer(f"{transcript}{part}")["input_ids"]),
                0,
                int(self.model.config.encoder_config.max_position_embeddings),
            )
        return PreparedText([DiaPart(part, self.reference) for part in parts], texts=parts)

    def with_reference_audio(self, reference: ReferenceAudio) -> DiaAdapter:
        dac = getattr(self.processor, "audio_tokenizer", None)
        if dac is None:
            raise ArgumentError("the processor cannot encode reference audio; pass a DiaProcessor with its DAC")
        transcript = with_tag(reference.require_transcript("Dia"), FIRST, TAGS)
        wave = reference.mono(self.codec.sampling_rate).to(dac.device, dac.dtype)
        with torch.inference_mode():
            codes = dac.encode(F.pad(wave, (0, -len(wave) % self.codec.hop))[None, None]).audio_codes[0].T
        if len(codes) >= self._positions:
            raise ArgumentError(
                f"audio of {len(codes)} frames is too long for a voice; the model has positions for {self._positions} "
                "in all"
            )
        found = ReferenceCodes(transcript, codes.to(self.model.device))
        return DiaAdapter(self.model, self.processor, self.codec, self.draft_model, self.frames, found)

    @property
    def draws_voice(self) -> bool:
        return self.reference is None

    def continue_voice(self, part: DiaPart, first: DiaPart, tokens: Tensor) -> DiaPart:
        return with_voice_of(self, part, first.text, tokens)

    def continue_from(self, part: DiaPart, context: Sequence[ReferenceCodes]) -> DiaPart | None:
        own = [] if part.context is None else [part.context]
        before = joined([*own, *context])
        fits = len(before.codes) + self.frames <= self._positions + 1
        return replace(part, context=before) if fits and self._text_fits(f"{before.transcript} {part.text}") else None

    def _text_fits(self, text: str) -> bool:
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        most = int(self.model.config.encoder_config.max_position_embeddings)
        return len(tokenizer(text)["input_ids"]) <= most

    def prepare_rows(
        self, parts: Sequence[DiaPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        s, model = samplings[0], self.model
        draft = None if self.draft_model is None else plan(self.draft_model, self._request(self.draft_model, parts, s))
        made = plan(model, self._request(model, parts, s))
        return made.prepare(model, recipe, len(parts), draft, self.codec.tables)

    def _request(self, model: Any, parts: Sequence[DiaPart], sampling: SamplingParams) -> DiaRequest:
        """The request of texts; with guidance, the text of the unconditional rows is zeros."""
        config, delays, device = model.config.decoder_config, model.config.delay_pattern, model.device
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        contexts = [part.context for part in parts]
        texts = [p.text if p.context is None else f"{p.context.transcript} {p.text}" for p in parts]
        words = tokenizer(texts, padding=True, return_tensors="pt").to(device)
        ids, mask = words["input_ids"], words["attention_mask"]
        guidance = None
        if sampling.guidance_scale != 1:
            guidance = DiaGuidance(sampling.guidance_scale, sampling.top_k or None)
            ids, mask = torch.cat([ids, torch.zeros_like(ids)]), mask.repeat(2, 1)
        begin = int(config.bos_token_id)
        lengths = [1 if context is None else 1 + len(context.codes) for context in contexts]
        longest, frames = max(lengths), min(self.frames, self._positions + 1 - max(lengths))
        # The prompt is the columns that the context fills; the cells that it fills of later columns are forced.
        prompt = torch.full((len(parts), longest, len(delays)), begin, device=device)
        known = np.full((len(parts), frames + max(delays), len(delays)), -1, dtype=np.int64)
        for row, context in enumerate(contexts):
            own = torch.full((1, 1, len(delays)), begin, device=device)
            if context is not None:
                own = torch.cat([own, context.codes[None].to(device)], dim=1)
            columns = delay(own, delays, begin, -1)[0]
            prompt[row, longest - lengths[row] :] = columns[: lengths[row]]
            known[row, : max(delays)] = columns[lengths[row] :].cpu().numpy()
        columns_of_padding = longest - torch.tensor(lengths, device=device)[:, None]
        return DiaRequest(
            prompt,
            torch.arange(longest, device=device) >= columns_of_padding,
            known,
            guidance,
            replace(sampling, guidance_scale=1.0),
            {"encoder_outputs": model.model.encoder(input_ids=ids, attention_mask=mask), "attention_mask": mask},
        )

    def codes(self, tokens: Tensor) -> Tensor:
        frames = undelay(tokens[None], self.model.config.delay_pattern)[0]
        ends = (frames[:, 0] >= self._end).nonzero()
        return frames[: int(ends[0])].T if len(ends) else frames.T


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> DiaAdapter:
    """The `DiaAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options, and if there is no codec.
    """
    check_config(config, "Dia", ["draft_model"])
    own = getattr(processor, "audio_tokenizer", None)
    if codec is None and own is None:
        raise ArgumentError("Dia comes without a codec; pass its processor, or a DAC's folder or Hub id as tokenizer=")
    return DiaAdapter(model, processor, codec or codec_of(own), draft_model)
