"""The speech adapter of Dia: texts by its processor, DAC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.dia.decoding import DiaGuidance, DiaRequest, plan
from mmspec.audio.multi_codebook.decoding import ColumnDecodingJob, check_same_class
from mmspec.audio.multi_codebook.delay_pattern import delay, undelay
from mmspec.audio.pipeline import PreparedText
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes
from mmspec.audio.text import split_text
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_FRAMES = 2048  # of a part: 24 seconds of the published model
MAX_LETTERS = 400  # of a part


class DiaAdapter:
    """The `mmspec.audio.pipeline.SpeechAdapter` of Dia. Texts contain speaker tags: `[S1] Hello. [S2] Hello.`

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
    guided = True
    voices = ()

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
        self.model, self.processor, self.codec = model.eval(), processor, codec
        self.draft_model = None if draft_model is None else check_same_class(model, draft_model).eval()
        config, last_delay = model.generation_config, max(model.config.delay_pattern)
        self.frames = min(frames, model.config.decoder_config.max_position_embeddings - 1 - last_delay)
        self._end = int(model.config.decoder_config.eos_token_id)
        self.sampling = SamplingParams(
            # The model's own generate raises a temperature below 1 to 1.
            max(float(config.temperature or 1.0), 1.0) if config.do_sample else 0.0,
            int(config.top_k or 0),
            float(config.top_p or 1.0),
            float(config.guidance_scale or 1.0),
        )

    def read(self, text: str, voice: str | None) -> PreparedText:
        return PreparedText(split_text(text, MAX_LETTERS))

    def with_reference_audio(self, reference: ReferenceAudio) -> DiaAdapter:
        dac = getattr(self.processor, "audio_tokenizer", None)
        if dac is None:
            raise ArgumentError("the processor cannot encode reference audio; pass a DiaProcessor with its DAC")
        transcript = reference.require_transcript("Dia")
        wave = reference.mono(self.codec.sampling_rate).to(dac.device, dac.dtype)
        with torch.inference_mode():
            codes = dac.encode(F.pad(wave, (0, -len(wave) % self.codec.hop))[None, None]).audio_codes[0].T
        room = self.frames - len(codes)
        if room < 1:
            raise ArgumentError(
                f"audio of {len(codes)} frames is too long for a voice; the model has positions for {self.frames} "
                "in all"
            )
        found = ReferenceCodes(transcript, codes.to(self.model.device))
        return DiaAdapter(self.model, self.processor, self.codec, self.draft_model, room, found)

    def job(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[SamplingParams]) -> ColumnDecodingJob:
        s, model = samplings[0], self.model
        draft = None if self.draft_model is None else plan(self.draft_model, self._request(self.draft_model, parts, s))
        return ColumnDecodingJob(model, plan(model, self._request(model, parts, s)), draft, self.codec.tables)

    def _request(self, model: Any, parts: Sequence[str], sampling: SamplingParams) -> DiaRequest:
        """The request of texts; with guidance, the text of the unconditional rows is zeros."""
        config, delays = model.config.decoder_config, model.config.delay_pattern
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        texts = [part if self.reference is None else f"{self.reference.transcript} {part}" for part in parts]
        words = tokenizer(texts, padding=True, return_tensors="pt").to(model.device)
        ids, mask = words["input_ids"], words["attention_mask"]
        guidance = None
        if sampling.guidance_scale != 1:
            guidance = DiaGuidance(sampling.guidance_scale, sampling.top_k or None)
            ids, mask = torch.cat([ids, torch.zeros_like(ids)]), mask.repeat(2, 1)
        frames = torch.full((1, 1, len(delays)), int(config.bos_token_id), device=model.device)
        if self.reference is not None:
            frames = torch.cat([frames, self.reference.codes[None]], dim=1)
        # The prompt is the columns that the reference fills; the cells that it fills of later columns are forced.
        columns = delay(frames, delays, int(config.bos_token_id), -1)
        prompt = columns[:, : frames.shape[1]].expand(len(parts), -1, -1)
        partial = columns[0, frames.shape[1] :].cpu().numpy()
        known = np.pad(partial, ((0, self.frames), (0, 0)), constant_values=-1)
        return DiaRequest(
            prompt,
            torch.ones(prompt.shape[:2], dtype=torch.bool, device=model.device),
            np.repeat(known[None], len(parts), axis=0),
            guidance,
            SamplingParams(sampling.temperature, sampling.top_k, sampling.top_p),
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
    if config:
        raise ArgumentError(f"config has {sorted(config)[0]!r}, which Dia does not have; it may have 'draft_model'")
    own = getattr(processor, "audio_tokenizer", None)
    if codec is None and own is None:
        raise ArgumentError("Dia comes without a codec; pass its processor, or a DAC's folder or Hub id as tokenizer=")
    return DiaAdapter(model, processor, codec or codec_of(own), draft_model)
