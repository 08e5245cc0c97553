"""The pipeline of speech and music models: texts to audio by any recipe, at once or streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec import limits
from mmspec.arguments import check_callback, check_flag, check_integer, check_text, processor_errors, shown, text_list
from mmspec.arguments.keywords import check_options, refuse_unknown_keywords
from mmspec.audio.adapter import (
    PreparedText,
    SpeechAdapter,
    SupportsDuration,
    SupportsHeads,
    SupportsReferenceAudio,
)
from mmspec.audio.assembly import AudioAssembler
from mmspec.audio.draft_heads import add_head, supports_heads, training_prompts
from mmspec.audio.outputs import AudioOutput, AudioOutputs, AudioStream
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.audio.text_parts import TextParts
from mmspec.batching.call import CallEngine
from mmspec.batching.request import PreparedBatch, PreparedRequest, RowPrompt
from mmspec.decoding.step import OnStep, Watch
from mmspec.errors import ArgumentError, PromptError
from mmspec.pipeline import Arguments, ModelPipeline
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams, guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.training.prepared import PreparedPrompts

FIRST, EVERY = 12, 25  # frames in the first chunk of a stream, and in the later ones
DEFAULT_BATCH = 8  # parts of texts that are decoded at a time


class SpeechPipeline(ModelPipeline):
    """Generates audio from texts.

    Args:
        adapter: The model.
    """

    output_kind = "audio"

    def __init__(self, adapter: SpeechAdapter) -> None:
        self.adapter = adapter

    @property
    def sampling_rate(self) -> int:
        return self.adapter.codec.sampling_rate

    @property
    def voices(self) -> tuple[str, ...]:
        """Names that `voice` takes, the default first; empty for models without named voices."""
        return tuple(self.adapter.voices)

    def with_duration(self, seconds: float) -> SpeechPipeline:
        """The same pipeline, for audio of `seconds` seconds.

        Raises:
            ArgumentError: For a model whose text determines the duration, and for a duration it cannot generate.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise ArgumentError(f"seconds={shown(seconds)} is not allowed; it must be a number")
        if not isinstance(self.adapter, SupportsDuration):
            raise ArgumentError(f"seconds={seconds:g} is not possible: this model's text determines the duration")
        return SpeechPipeline(self.adapter.with_duration(seconds))

    def with_reference_audio(
        self, audio: NDArray[np.float32], sampling_rate: int, transcript: str | None = None
    ) -> SpeechPipeline:
        """The same pipeline, following reference audio: a melody for music models, a voice for speech models.

        Args:
            audio: float32 [channels, samples] in -1..1; it is mixed down and resampled as the model requires.
            sampling_rate: Samples per second.
            transcript: The words spoken in it, for models that continue a voice.

        Raises:
            ArgumentError: For a model that does not accept reference audio, and for audio it cannot follow.
        """
        if not isinstance(self.adapter, SupportsReferenceAudio):
            raise ArgumentError("this model does not accept reference audio")
        return SpeechPipeline(self.adapter.with_reference_audio(ReferenceAudio(audio, sampling_rate, transcript)))

    @property
    def config(self) -> Arguments:
        """The defaults of a call, by key and by attribute."""
        s = self.adapter.sampling
        return Arguments(
            temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, guidance_scale=s.guidance_scale,
            recipe=self.adapter.recipe,
        )  # fmt: skip

    def prepare(
        self,
        prompts: Sequence[str],
        slack: int,
        temperature: float | None = None,
        guidance_scale: float | None = None,
    ) -> PreparedPrompts:
        """A batch of texts, ready to be decoded; see `mmspec.training.prepared.TrainablePipeline`.

        Of a text that is split, only the first part is used.

        Args:
            prompts: The texts.
            slack: Number of tokens by which windows may reach past the end of a sequence.

        Raises:
            PromptError: For a text that the model cannot speak.
            ArgumentError: If no drafter can be trained for this model.
        """
        adapter = supports_heads(self.adapter)
        parts = [self.read(prompt, None).parts[0] for prompt in prompts]
        samplings = [self._sampling(temperature, guidance_scale=guidance_scale)] * len(parts)
        return training_prompts(adapter, parts, samplings, slack)

    def new_small(self) -> Any:
        """Refused: the command does not train small speech models."""
        raise ArgumentError(
            "mmspec cannot train a small speech model here; use --kind block, eagle or medusa, or --kind "
            "frame for a model with a depth decoder"
        )

    def add_drafter(self, folder: str | Path) -> None:
        """Adds a draft head; it replaces one of the same kind.

        Args:
            folder: Written by `mmspec train-drafter`.

        Raises:
            ArgumentError: If the model takes no heads.
            ModelError: If the folder contains no head, or one for another model.
        """
        if not isinstance(self.adapter, SupportsHeads):
            raise ArgumentError(f"drafter={str(folder)!r} was given, but this model does not take drafters")
        add_head(self.adapter, folder, self.prepare(["one"], 1))

    def read(self, text: str | PreparedText, voice: str | None) -> PreparedText:
        """Prepares a text without decoding it: its parts, and remarks for the caller.

        Args:
            text: A text; one that is prepared already is returned as it is, so that models which answer do it once.
            voice: One of the model's voices, or None.

        Raises:
            PromptError: For a text that the model cannot speak.
            ArgumentError: For an unknown voice, or one beside a prepared text.
        """
        if isinstance(text, PreparedText):
            if voice is not None:
                raise ArgumentError(f"voice={shown(voice)} is not possible for a prepared text, which has its voice")
            return text
        voices = self.adapter.voices
        if voice is not None and voice not in voices:
            known = f"use one of {', '.join(voices)}" if voices else "this model has no voices to choose from"
            raise ArgumentError(f"voice={voice!r} is not allowed; {known}")
        if not check_text("text", text).strip():
            raise PromptError(f"text={text!r} is empty; give words to say")
        limits.TEXT.check("text", len(text))
        with processor_errors("text", text):
            prepared = replace(self.adapter.read(text, voice), adapter=self.adapter)
        return prepared.with_note_on_words(text)

    @refuse_unknown_keywords
    def __call__(
        self,
        text: str | Sequence[str],
        *,
        voice: str | None = None,
        recipe: str | Recipe | None = None,
        seed: int | Sequence[int] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
        batch_size: int | None = None,
        pause: float = 0.0,
        condition_on_previous_chunks: bool = False,
        sampling_rate: int | None = None,
        on_step: OnStep | None = None,
        measure_entropy: bool = False,
    ) -> AudioOutput | AudioOutputs:
        """Generates audio of one text, or of several texts as one batch.

        A long text is split into parts, such as sentences, which are rows of the batch. If the model draws a new voice
        for every part, the later parts of a text continue the voice of its first part. With
        `condition_on_previous_chunks`, they also continue the part just before them.

        Args:
            text: A text, or a list of texts.
            voice: A name of `adapter.voices`; None is the first, or with Bark a random voice.
            recipe: How to decode, e.g. `"table:window=8"`; None is the model's default.
            seed: Text i uses `seed + i`; or one seed per text. None is a random seed.
            temperature: 0 takes the most likely token; None is the model's default.
            top_k: Keeps the k most likely tokens, 0 all; None is the model's default.
            top_p: Keeps the most likely tokens of this total probability, 1 all; None is the model's default.
            min_p: Keeps the tokens at least this much as likely as the most likely one, 0 all; None is the model's
                default.
            typical_p: Keeps the tokens with the most typical information up to this total probability, 1 all; None
                is the model's default.
            guidance_scale: Classifier-free guidance, 1 and below is off; None is the model's default.
            batch_size: Parts to decode at a time, at most; None is the number of texts, but at least 8. The audio does
                not depend on it.
            pause: Seconds of silence after each sentence at which a text was split, in addition to the model's own.
            condition_on_previous_chunks: Whether each part of a text continues the codes and the text of the part
                before it, after its reference audio or, if the model draws the voice, the first part. The parts of a
                text are then decoded one after the other.
            sampling_rate: Samples per second of the audio, which is resampled; None is the model's rate.
            on_step: Called with a `mmspec.decoding.step.Step` after every target call of a batch, whose rows and counts
                it shows; parts join and leave a batch while it runs.
            measure_entropy: Also report the entropy of the target distribution.

        Returns:
            An `AudioOutput` for a single text, `AudioOutputs` for a list.

        Raises:
            PromptError: For a text that the model cannot speak.
            ArgumentError: For an argument whose value is not allowed.
            UnknownNameError: For an unknown recipe, rule or drafter.
        """
        texts = text_list("text", text)
        check_callback("on_step", on_step)
        check_flag("measure_entropy", measure_entropy)
        check_flag("condition_on_previous_chunks", condition_on_previous_chunks)
        if batch_size is None:
            batch_size = max(len(texts), DEFAULT_BATCH)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ArgumentError(f"batch_size={batch_size!r} is not allowed; it must be an integer, 1 or more")
        assembler = AudioAssembler(self.adapter, pause, sampling_rate)
        chosen = parse(recipe if recipe is not None else self.adapter.recipe)
        sampling = self._sampling(temperature, top_k, top_p, min_p, typical_p, guidance_scale)
        prepared = [self.read(t, voice) for t in texts]
        seeds = row_seeds(seed, len(texts))
        requests = [
            assembler.request(TextParts(self.adapter, each, sampling, own_seed, condition_on_previous_chunks))
            for each, own_seed in zip(prepared, seeds, strict=True)
        ]
        engine = CallEngine(self, requests, chosen, batch_size, Watch(on_step, measure_entropy))
        outputs = engine.results()
        stats = engine.call_stats()
        for output in outputs:
            output.stats = stats
        return outputs[0] if isinstance(text, str) else AudioOutputs(outputs, stats)

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request of an engine; see `mmspec.batching.request.EnginePipeline`.

        Args:
            prompt: A text, or what `read` made of it; that of a pipeline of the same model that follows reference audio
                is read by this one.
            options: `seed`, `voice`, `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, `guidance_scale`, `pause`,
                `condition_on_previous_chunks`, `sampling_rate`, and `output_type`: "audio" for an `AudioOutput`,
                "latent" for one without samples.
            recipe: How it is decoded.

        Raises:
            PromptError: For a text that the model cannot speak.
            ArgumentError: For an option of another name, or whose value is not allowed.
        """
        adapter = prompt.adapter if isinstance(prompt, PreparedText) else None
        if adapter is not None and adapter is not self.adapter:
            return SpeechPipeline(adapter).read_request(prompt, options, recipe)
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale")
        own = ("pause", "condition_on_previous_chunks", "sampling_rate", "output_type")
        check_options(options, ("seed", "voice", *names, *own))
        conditioned = options.get("condition_on_previous_chunks", False)
        check_flag("condition_on_previous_chunks", conditioned)
        output_type = options.get("output_type", "audio")
        if output_type not in ("audio", "latent"):
            raise ArgumentError(f"output_type={shown(output_type)} is not allowed; use 'audio' or 'latent'")
        assembler = AudioAssembler(self.adapter, options.get("pause", 0.0), options.get("sampling_rate"))
        sampling = self._sampling(*(options.get(name) for name in names))
        prepared = self.read(prompt, options.get("voice"))
        (seed,) = row_seeds(options.get("seed"), 1)
        parts = TextParts(self.adapter, prepared, sampling, seed, conditioned)
        return assembler.request(parts, output_type == "latent")

    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedBatch:
        """Prepares rows of an engine; see `mmspec.batching.request.EnginePipeline`."""
        with torch.inference_mode():
            parts, samplings = [row.prompt.part for row in rows], [row.sampling for row in rows]
            prepared: PreparedBatch = rows[0].prompt.adapter.prepare_rows(parts, recipe, samplings)
            return prepared

    @refuse_unknown_keywords
    def stream(
        self,
        text: str,
        *,
        voice: str | None = None,
        recipe: str | Recipe | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
        pause: float = 0.0,
        condition_on_previous_chunks: bool = False,
        sampling_rate: int | None = None,
        first: int = FIRST,
        every: int = EVERY,
        on_step: OnStep | None = None,
    ) -> AudioStream:
        """Yields the audio of a text in chunks, float32 [channels, n], while it is decoded.

        The chunks add up to the audio of a call with the same arguments. The parts of a text are decoded one after the
        other. Leaving the iteration stops the decoding.

        Args:
            first: Frames in the first chunk of each part.
            every: Frames in the later chunks.
            on_step: Called after every target call, from another thread.

        Raises:
            PromptError: If the model does not accept the text; before the first chunk.
            ArgumentError: For an argument whose value is not allowed; before the first chunk.
            UnknownNameError: For an unknown recipe, rule or drafter; before the first chunk.
        """
        check_integer("first", first, 1, 2**31)
        check_integer("every", every, 1, 2**31)
        check_callback("on_step", on_step)
        check_flag("condition_on_previous_chunks", condition_on_previous_chunks)
        chosen = parse(recipe if recipe is not None else self.adapter.recipe)
        sampling = self._sampling(temperature, top_k, top_p, min_p, typical_p, guidance_scale)
        assembler = AudioAssembler(self.adapter, pause, sampling_rate)
        prepared = self.read(text, voice)
        (own_seed,) = row_seeds(seed, 1)
        parts = TextParts(self.adapter, prepared, sampling, own_seed, condition_on_previous_chunks)
        engine = CallEngine(self, [assembler.request(parts, True)], chosen, 1, Watch(on_step), streams=True)
        return assembler.stream(engine, parts, first, every)

    def _sampling(
        self,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
    ) -> SamplingParams:
        own = self.adapter.sampling
        scale = guidance_of_call(own.guidance_scale if guidance_scale is None else guidance_scale)
        if scale != 1 and not self.adapter.guided:
            raise ArgumentError(f"guidance_scale={guidance_scale} is not possible: this model has no guidance")
        for name, value in (("min_p", min_p), ("typical_p", typical_p)):
            if value is not None and not getattr(self.adapter, "takes_min_p", False):
                raise ArgumentError(f"{name}={shown(value)} is not possible: this model's sampling does not take it")
        return replace(
            own,
            temperature=own.temperature if temperature is None else temperature,
            top_k=own.top_k if top_k is None else top_k,
            top_p=own.top_p if top_p is None else top_p,
            guidance_scale=scale,
            min_p=own.min_p if min_p is None else min_p,
            typical_p=own.typical_p if typical_p is None else typical_p,
        )
