"""The music adapter of MusicGen: texts by its processor, a duration in seconds, EnCodec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText
from mmspec.audio.checkpoint_sampling import checkpoint_sampling
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.models.magnet.blocks import MagnetBlocks, check_magnet
from mmspec.audio.models.magnet.model import MagnetTransformer
from mmspec.audio.models.musicgen.decoding import MELODY, MusicgenRequest, delays_of, musicgen_codec, plan
from mmspec.audio.multi_codebook.decoding import check_same_class
from mmspec.audio.multi_codebook.delay_pattern import undelay
from mmspec.audio.reference_audio import ReferenceAudio, refuse_unread
from mmspec.decoding.assembly import PreparedRows
from mmspec.errors import ArgumentError
from mmspec.hf.padding import with_padding
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

SECONDS, MAX_SECONDS = 10.0, 30.0


class MusicgenAdapter:
    """The adapter of MusicGen and MusicGen-melody.

    It implements `mmspec.audio.adapter.SupportsDuration` and, for MusicGen-melody,
    `mmspec.audio.adapter.SupportsReferenceAudio`.

    Args:
        model: A MusicGen or a MusicGen-melody.
        processor: Its processor or tokenizer.
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or a MAGNeT of the same codes, which drafts for the recipe `masked`;
            or None.
        seconds: Duration of the audio.
        melody: Features float [1, T, 12] of the melody to follow, or None.
    """

    recipe = "scd:window=4"
    takes_min_p = True
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
        check_codec(codec, model.decoder.num_codebooks, model.decoder.config.vocab_size)
        self.model, self.processor, self.codec = model.eval(), with_padding(processor), codec
        if isinstance(draft_model, MagnetTransformer):
            decoder = model.decoder.config
            check_magnet(draft_model, decoder.num_codebooks, decoder.vocab_size, model.text_encoder.config.d_model)
        elif draft_model is not None:
            draft_model = check_same_class(model, draft_model).eval()
        self.draft_model = draft_model
        self.seconds, self.melody = seconds, melody
        self.sampling = checkpoint_sampling(model.generation_config)

    def with_duration(self, seconds: float) -> MusicgenAdapter:
        rate, last_delay = self.codec.sampling_rate / self.codec.hop, max(delays_of(self.model))
        # The table of sinusoidal positions grows on demand, but the models were trained with half a minute only.
        most = min((self.model.decoder.config.max_position_embeddings - 1 - last_delay) / rate, MAX_SECONDS)
        if not 1 / rate <= seconds <= most:
            raise ArgumentError(
                f"seconds={seconds:g} is not allowed; this model makes {1 / rate:g} to {most:g} seconds"
            )
        return MusicgenAdapter(self.model, self.processor, self.codec, self.draft_model, seconds, self.melody)

    def with_reference_audio(self, reference: ReferenceAudio) -> MusicgenAdapter:
        if type(self.model).__name__ != MELODY:
            raise ArgumentError("this model does not follow a melody; facebook/musicgen-melody does")
        refuse_unread(reference, "MusicGen")
        extract = getattr(self.processor, "feature_extractor", None)
        if extract is None:
            raise ArgumentError(
                "the processor cannot read a melody; pass the model's own processor, with its feature extractor"
            )
        rate = extract.sampling_rate
        features = extract(reference.mono(rate).numpy(), sampling_rate=rate, return_tensors="pt")["input_features"]
        return MusicgenAdapter(self.model, self.processor, self.codec, self.draft_model, self.seconds, features)

    def read(self, text: str, voice: str | None) -> PreparedText:
        return PreparedText([text])

    def prepare_rows(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[SamplingParams]) -> PreparedRows:
        model, device = self.model, self.model.device
        words = self.processor(text=list(parts), padding=True, return_tensors="pt").to(device)
        states = model.text_encoder(input_ids=words["input_ids"], attention_mask=words["attention_mask"])
        inputs = {"encoder_outputs": states, "attention_mask": words["attention_mask"]}
        if self.melody is not None:
            inputs["input_features"] = self.melody.to(device).expand(len(parts), -1, -1)
        frames = max(round(self.seconds * self.codec.sampling_rate / self.codec.hop), 1)
        request = MusicgenRequest(
            torch.empty(len(parts), 0, model.decoder.num_codebooks, dtype=torch.int64, device=device),
            frames + max(delays_of(model)),
            samplings[0],
            inputs,
        )
        whole = plan(model, request)
        if isinstance(self.draft_model, MagnetTransformer):
            text = states.last_hidden_state, words["attention_mask"].bool()
            blocks = partial(MagnetBlocks, self.draft_model, *text, delays_of(model), frames)
            whole, draft = replace(whole, models={"masked": blocks}), None
        else:
            draft = None if self.draft_model is None else plan(self.draft_model, request)
        return whole.prepare(model, recipe, len(parts), draft, self.codec.tables)

    def codes(self, tokens: Tensor) -> Tensor:
        return undelay(tokens[None], delays_of(self.model))[0].T


def make(
    model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any
) -> MusicgenAdapter:
    """The `MusicgenAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options.
    """
    check_config(config, "MusicGen", ["draft_model"])
    return MusicgenAdapter(model, processor, codec or musicgen_codec(model), draft_model)
