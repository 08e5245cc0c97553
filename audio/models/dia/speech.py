"""Dia with what surrounds it: text by its processor, DAC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.dia.decoding import DiaRequest, Guidance, plan
from mmspec.audio.models.flat.speech import pieces
from mmspec.audio.multi_codebook.decoding import ColumnJob, same_class
from mmspec.audio.multi_codebook.delay_pattern import delay, undelay
from mmspec.audio.pipeline import Reading
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

FRAMES = 2048  # 24 seconds of the published model
LETTERS = 400


@dataclass(frozen=True)
class Voice:
    """What is said in a recording, and its codes int64 [F, C]."""

    text: str
    codes: Tensor


class DiaAdapter:
    """A `mmspec.audio.pipeline.SpeechAdapter`. Text has the marks of its speakers in it: `[S1] Hello. [S2] Hello.`

    Its guidance is its own, see `mmspec.audio.models.dia.decoding.Guidance`; `top_k` is a part of it.

    Args:
        model: A `DiaForConditionalGeneration`.
        processor: A `DiaProcessor`, or its tokenizer.
        codec: Of its codes.
        draft_model: A smaller one of the family, or None.
        frames: At most, of a part.
        voice: One to go on from, or None.
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
        frames: int = FRAMES,
        voice: Voice | None = None,
    ) -> None:
        self.voice = voice
        self.model, self.processor, self.codec = model.eval(), processor, codec
        self.draft_model = None if draft_model is None else same_class(model, draft_model).eval()
        config, late = model.generation_config, max(model.config.delay_pattern)
        self.frames = min(frames, model.config.decoder_config.max_position_embeddings - 1 - late)
        self._end = int(model.config.decoder_config.eos_token_id)
        self.sampling = SamplingParams(
            # Below 1 the model's own generate takes 1.
            max(float(config.temperature or 1.0), 1.0) if config.do_sample else 0.0,
            int(config.top_k or 0),
            float(config.top_p or 1.0),
            float(config.guidance_scale or 1.0),
        )

    def read(self, text: str, voice: str | None) -> Reading:
        return Reading(pieces(text, LETTERS))

    def with_reference_audio(self, sound: ReferenceAudio) -> DiaAdapter:
        dac = getattr(self.processor, "audio_tokenizer", None)
        if dac is None:
            raise ArgumentError("the processor hears no voice; pass a DiaProcessor, with its DAC")
        text, wave = sound.said("Dia"), sound.mono(self.codec.sampling_rate).to(dac.device, dac.dtype)
        with torch.inference_mode():
            codes = dac.encode(F.pad(wave, (0, -len(wave) % self.codec.hop))[None, None]).audio_codes[0].T
        room = self.frames - len(codes)
        if room < 1:
            raise ArgumentError(
                f"audio of {len(codes)} frames is too long for a voice; the model has places for {self.frames} in all"
            )
        voice = Voice(text, codes.to(self.model.device))
        return DiaAdapter(self.model, self.processor, self.codec, self.draft_model, room, voice)

    def task(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[SamplingParams]) -> ColumnJob:
        s, model = samplings[0], self.model
        draft = None if self.draft_model is None else plan(self.draft_model, self._request(self.draft_model, parts, s))
        return ColumnJob(model, plan(model, self._request(model, parts, s)), draft, self.codec.tables)

    def _request(self, model: Any, parts: Sequence[str], sampling: SamplingParams) -> DiaRequest:
        """Texts to a request; with guidance, zeros stand for the text of the unconditional side."""
        config, delays = model.config.decoder_config, model.config.delay_pattern
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        said = [part if self.voice is None else f"{self.voice.text} {part}" for part in parts]
        words = tokenizer(said, padding=True, return_tensors="pt").to(model.device)
        ids, mask = words["input_ids"], words["attention_mask"]
        guidance = None
        if sampling.guidance_scale != 1:
            guidance = Guidance(sampling.guidance_scale, sampling.top_k or None)
            ids, mask = torch.cat([ids, torch.zeros_like(ids)]), mask.repeat(2, 1)
        heard = torch.full((1, 1, len(delays)), int(config.bos_token_id), device=model.device)
        if self.voice is not None:
            heard = torch.cat([heard, self.voice.codes[None]], dim=1)
        # Columns that the voice is whole in come first; what it has of later ones is known.
        columns = delay(heard, delays, int(config.bos_token_id), -1)
        begin = columns[:, : heard.shape[1]].expand(len(parts), -1, -1)
        late = columns[0, heard.shape[1] :].cpu().numpy()
        known = np.pad(late, ((0, self.frames), (0, 0)), constant_values=-1)
        return DiaRequest(
            begin,
            torch.ones(begin.shape[:2], dtype=torch.bool, device=model.device),
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
    """The speaker around a model.

    Raises:
        ArgumentError: For options it does not have, and when there is nothing to make sound with.
    """
    if config:
        raise ArgumentError(f"config has {sorted(config)[0]!r}, which Dia does not have; it may have 'draft_model'")
    own = getattr(processor, "audio_tokenizer", None)
    if codec is None and own is None:
        raise ArgumentError("Dia comes without a codec; pass its processor, or a DAC's folder or Hub id as tokenizer=")
    return DiaAdapter(model, processor, codec or codec_of(own), draft_model)
