"""MusicGen with what surrounds it: text by its processor, a length in seconds, EnCodec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.models.musicgen.decoding import MELODY, MusicgenRequest, audio_of, delays_of, plan
from mmspec.audio.multi_codebook.decoding import ColumnJob, same_class
from mmspec.audio.multi_codebook.delay_pattern import undelay
from mmspec.audio.pipeline import Reading
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

SECONDS = 10.0
TOP_K = 50  # what transformers takes where a model says nothing


class MusicgenAdapter:
    """A `mmspec.audio.pipeline.SupportsDuration` speaker, of music.

    Args:
        model: A MusicGen or a MusicGen-melody.
        processor: Its processor or tokenizer.
        codec: Of its codes.
        draft_model: A smaller one of the family, or None.
        seconds: Of sound.
        melody: Features float [1, T, 12] of one to follow, or None.
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
        seconds: float = SECONDS,
        melody: Tensor | None = None,
    ) -> None:
        codes = model.decoder.config.vocab_size
        if codec.codebooks < model.decoder.num_codebooks or codec.codebook_size < codes:
            raise ModelError(
                f"the codec has {codec.codebooks} codebooks of {codec.codebook_size}, the model "
                f"{model.decoder.num_codebooks} of {codes}"
            )
        self.model, self.processor, self.codec = model.eval(), processor, codec
        self.draft_model = None if draft_model is None else same_class(model, draft_model).eval()
        self.seconds, self.melody = seconds, melody
        config = model.generation_config
        settings = (config.temperature or 1.0, TOP_K if config.top_k is None else config.top_k, config.top_p or 1.0)
        self.sampling = SamplingParams(
            float(settings[0]) if config.do_sample else 0.0,
            int(settings[1]),
            float(settings[2]),
            1.0 if config.guidance_scale is None else float(config.guidance_scale),
        )

    def with_duration(self, seconds: float) -> MusicgenAdapter:
        rate, late = self.codec.sampling_rate / self.codec.hop, max(delays_of(self.model))
        # Its table of positions grows with what is asked of it; what it was trained for does not.
        most = (self.model.decoder.config.max_position_embeddings - 1 - late) / rate
        if not 1 / rate <= seconds <= most:
            raise ArgumentError(
                f"seconds={seconds:g} is not allowed; this model makes {1 / rate:g} to {most:g} seconds"
            )
        return MusicgenAdapter(self.model, self.processor, self.codec, self.draft_model, seconds, self.melody)

    def with_reference_audio(self, sound: ReferenceAudio) -> MusicgenAdapter:
        if type(self.model).__name__ != MELODY:
            raise ArgumentError("this model follows no melody; facebook/musicgen-melody and its kin do")
        extract = getattr(self.processor, "feature_extractor", None)
        if extract is None:
            raise ArgumentError("the processor reads no melody; pass that of the model, with its feature extractor")
        rate = extract.sampling_rate
        features = extract(sound.mono(rate).numpy(), sampling_rate=rate, return_tensors="pt")["input_features"]
        return MusicgenAdapter(self.model, self.processor, self.codec, self.draft_model, self.seconds, features)

    def read(self, text: str, voice: str | None) -> Reading:
        return Reading([text])

    def task(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[SamplingParams]) -> ColumnJob:
        model, device = self.model, self.model.device
        words = self.processor(text=list(parts), padding=True, return_tensors="pt").to(device)
        states = model.text_encoder(input_ids=words["input_ids"], attention_mask=words["attention_mask"])
        inputs = {"encoder_outputs": states, "attention_mask": words["attention_mask"]}
        if self.melody is not None:
            inputs["input_features"] = self.melody.to(device).expand(len(parts), -1, -1)
        frames = round(self.seconds * self.codec.sampling_rate / self.codec.hop)
        request = MusicgenRequest(
            torch.empty(len(parts), 0, model.decoder.num_codebooks, dtype=torch.int64, device=device),
            max(frames, 1) + max(delays_of(model)),
            samplings[0],
            inputs,
        )
        draft = None if self.draft_model is None else plan(self.draft_model, request)
        return ColumnJob(model, plan(model, request), draft, self.codec.tables)

    def codes(self, tokens: Tensor) -> Tensor:
        return undelay(tokens[None], delays_of(self.model))[0].T


def make(
    model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any
) -> MusicgenAdapter:
    """The speaker around a model.

    Raises:
        ArgumentError: For options it does not have.
    """
    if config:
        raise ArgumentError(
            f"config has {sorted(config)[0]!r}, which MusicGen does not have; it may have 'draft_model'"
        )
    return MusicgenAdapter(model, processor, codec or audio_of(model), draft_model)
