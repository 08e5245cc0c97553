"""The pipeline of speech and music models: texts to audio by any recipe, at once or streamed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.outputs import AudioOutput, AudioOutputs
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.decoding.batch import Step
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.engine import Decoded, run
from mmspec.errors import ArgumentError, PromptError
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds

FIRST, EVERY = 12, 25  # frames in the first chunk of a stream, and in the later ones
_PART_SEED_STRIDE = 2**32  # between the seeds of one text's parts


@dataclass(frozen=True)
class PreparedText:
    """A text, split into the parts that a model decodes.

    Attributes:
        parts: The parts, such as sentences, decoded separately and played in this order, in the adapter's own format.
        notes: Remarks for the caller.
    """

    parts: Sequence[Any]
    notes: list[str] = field(default_factory=list)


class DecodingJob(Protocol):
    """A batch to decode."""

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        """Decodes the batch; rows that end early are padded with tokens that `SpeechAdapter.codes` drops."""
        ...


@dataclass(frozen=True)
class TargetJob:
    """A batch that one target decodes.

    Attributes:
        target: The model with its prompts given.
        layout: The tokens to generate.
        resources: The resources of the model for drafters.
    """

    target: Target
    layout: Layout
    resources: DraftResources

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        return run(self.target, recipe, self.layout, samplings, seeds, self.resources, on_step, measure_entropy)


class SpeechAdapter(Protocol):
    """The interface between `SpeechPipeline` and a speech or music model.

    Attributes:
        codec: Decodes the model's codes into audio.
        sampling: Default sampling parameters of a call.
        recipe: Default recipe of a call.
        guided: Whether the model supports guidance.
        voices: Names of the voices, the default first; may be empty.
    """

    codec: Codec
    sampling: SamplingParams
    recipe: str
    guided: bool
    voices: Sequence[str]

    def read(self, text: str, voice: str | None) -> PreparedText:
        """Prepares a text.

        Raises:
            PromptError: For a text that the model cannot speak.
        """
        ...

    def job(self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]) -> DecodingJob:
        """Prepares a batch with one row per part."""
        ...

    def codes(self, tokens: Tensor) -> Tensor:
        """The frames int64 [K, F] of a row's tokens so far; more tokens only append frames."""
        ...


@runtime_checkable
class SupportsDuration(SpeechAdapter, Protocol):
    """An adapter of a model that generates audio of a given duration."""

    def with_duration(self, seconds: float) -> SupportsDuration:
        """The same adapter for audio of `seconds` seconds.

        Raises:
            ArgumentError: For a duration that the model cannot generate.
        """
        ...


@runtime_checkable
class SupportsReferenceAudio(SpeechAdapter, Protocol):
    """An adapter of a model that follows reference audio: its melody, or its voice."""

    def with_reference_audio(self, reference: ReferenceAudio) -> SupportsReferenceAudio:
        """The same adapter, following `reference`.

        Raises:
            ArgumentError: For reference audio that the model cannot follow.
        """
        ...


class _StreamClosed(Exception):
    """Stops the decoding of a stream whose consumer has left the iteration."""


class SpeechPipeline:
    """Generates audio from texts.

    Args:
        adapter: The model.
    """

    def __init__(self, adapter: SpeechAdapter) -> None:
        self.adapter = adapter

    @property
    def sampling_rate(self) -> int:
        return self.adapter.codec.sampling_rate

    def with_duration(self, seconds: float) -> SpeechPipeline:
        """The same pipeline, for audio of `seconds` seconds.

        Raises:
            ArgumentError: For a model whose text determines the duration, and for a duration it cannot generate.
        """
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
    def config(self) -> Mapping[str, Any]:
        """The defaults of a call."""
        s = self.adapter.sampling
        return {
            "temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "guidance_scale": s.guidance_scale,
            "recipe": self.adapter.recipe,
        }  # fmt: skip

    def read(self, text: str, voice: str | None) -> PreparedText:
        """Prepares a text without decoding it: its parts, and remarks for the caller.

        Raises:
            PromptError: For a text that the model cannot speak.
            ArgumentError: For an unknown voice.
        """
        voices = self.adapter.voices
        if voice is not None and voice not in voices:
            known = f"use one of {', '.join(voices)}" if voices else "this model has no voices to choose from"
            raise ArgumentError(f"voice={voice!r} is not allowed; {known}")
        if not isinstance(text, str) or not text.strip():
            raise PromptError(
                f"text={text!r} is empty; give words to say"
                if text == "" or isinstance(text, str)
                else f"text={text!r} is not allowed; it must be a string"
            )
        return self.adapter.read(text, voice)

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
        guidance_scale: float | None = None,
        on_step: OnStep | None = None,
        measure_entropy: bool = False,
    ) -> AudioOutput | AudioOutputs:
        """Generates audio of one text, or of several texts as one batch.

        Args:
            text: A text, or a list of texts.
            voice: A name of `adapter.voices`; None is the first.
            recipe: How to decode, e.g. `"table:window=8"`; None is the model's default.
            seed: Text i uses `seed + i`; or one seed per text. None is a random seed.
            temperature: 0 takes the most likely token; None is the model's default.
            top_k: Keeps the k most likely tokens, 0 all; None is the model's default.
            top_p: Keeps the most likely tokens of this total probability, 1 all; None is the model's default.
            guidance_scale: Classifier-free guidance, 1 is off; None is the model's default.
            on_step: Called with a `mmspec.decoding.batch.Step` after every target call.
            measure_entropy: Also report the entropy of the target distribution.

        Returns:
            An `AudioOutput` for a single text, `AudioOutputs` for a list.

        Raises:
            PromptError: For a text that the model cannot speak.
            ArgumentError: For an argument whose value is not allowed.
            UnknownNameError: For an unknown recipe, rule or drafter.
        """
        texts = [text] if isinstance(text, str) else list(text)
        if not texts:
            raise ArgumentError("text is an empty list; give at least one text")
        chosen = parse(recipe if recipe is not None else self.adapter.recipe)
        sampling = self._sampling(temperature, top_k, top_p, guidance_scale)
        prepared = [self.read(t, voice) for t in texts]
        seeds = row_seeds(seed, len(texts))
        parts = [part for each in prepared for part in each.parts]
        part_seeds = [
            s + i * _PART_SEED_STRIDE for each, s in zip(prepared, seeds, strict=True) for i in range(len(each.parts))
        ]
        decoded = self._decode(parts, chosen, sampling, part_seeds, on_step, measure_entropy)
        rows = iter(decoded.tokens)
        outputs = []
        for each, own_seed in zip(prepared, seeds, strict=True):
            tokens = [next(rows).cpu() for _ in each.parts]
            audio = np.concatenate([self._decode_audio(part) for part in tokens], axis=-1)
            outputs.append(AudioOutput(audio, self.sampling_rate, tokens, own_seed, each.notes, decoded.stats))
        return outputs[0] if isinstance(text, str) else AudioOutputs(outputs, decoded.stats)

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
        guidance_scale: float | None = None,
        first: int = FIRST,
        every: int = EVERY,
        on_step: OnStep | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """Yields the audio of a text in chunks, float32 [channels, n], while it is decoded.

        The chunks add up to the audio of a call with the same arguments. The parts of a text are decoded one after the
        other. Leaving the iteration stops the decoding.

        Args:
            text: As in a call.
            voice: As in a call.
            recipe: As in a call.
            seed: As in a call.
            temperature: As in a call.
            top_k: As in a call.
            top_p: As in a call.
            guidance_scale: As in a call.
            first: Frames in the first chunk of each part.
            every: Frames in the later chunks.
            on_step: As in a call, but called from another thread.

        Raises:
            PromptError: As in a call, before the first chunk.
            ArgumentError: As in a call, before the first chunk.
            UnknownNameError: As in a call, before the first chunk.
        """
        if min(first, every) < 1:
            raise ArgumentError(f"first={first} and every={every} must be 1 frame or more")
        chosen = parse(recipe if recipe is not None else self.adapter.recipe)
        sampling = self._sampling(temperature, top_k, top_p, guidance_scale)
        prepared = self.read(text, voice)
        (own_seed,) = row_seeds(seed, 1)

        def chunks() -> Iterator[NDArray[np.float32]]:
            for i, part in enumerate(prepared.parts):
                part_seed = own_seed + i * _PART_SEED_STRIDE
                yield from self._stream_part(part, chosen, sampling, part_seed, first, every, on_step)

        return chunks()

    def _sampling(
        self, temperature: float | None, top_k: int | None, top_p: float | None, guidance_scale: float | None
    ) -> SamplingParams:
        own = self.adapter.sampling
        if guidance_scale not in (None, 1) and not self.adapter.guided:
            raise ArgumentError(f"guidance_scale={guidance_scale} is not possible: this model has no guidance")
        return SamplingParams(
            own.temperature if temperature is None else temperature,
            own.top_k if top_k is None else top_k,
            own.top_p if top_p is None else top_p,
            own.guidance_scale if guidance_scale is None else guidance_scale,
        )

    def _decode(
        self,
        parts: Sequence[Any],
        recipe: Recipe,
        sampling: SamplingParams,
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool = False,
    ) -> Decoded:
        samplings = [sampling] * len(parts)
        with torch.inference_mode():
            job = self.adapter.job(parts, recipe, samplings)
            return job.run(recipe, samplings, seeds, on_step, measure_entropy)

    def _decode_audio(self, tokens: Tensor) -> NDArray[np.float32]:
        return self.adapter.codec.decode(self.adapter.codes(tokens)[None])[0].cpu().numpy()

    def _stream_part(
        self,
        part: Any,
        recipe: Recipe,
        sampling: SamplingParams,
        seed: int,
        first: int,
        every: int,
        on_step: OnStep | None,
    ) -> Iterator[NDArray[np.float32]]:
        """Decodes one part in a separate thread and yields its audio as the codes arrive."""
        arrived: queue.SimpleQueue[Tensor | BaseException | None] = queue.SimpleQueue()
        closed = threading.Event()
        sent = 0

        def send(tokens: Tensor, last: bool) -> None:
            nonlocal sent
            codes = self.adapter.codes(tokens)
            new = codes.shape[-1] - sent
            if new and (last or new >= (every if sent else first)):
                arrived.put(codes[None, :, sent:])
                sent = codes.shape[-1]

        def observe(step: Step) -> None:
            if closed.is_set():
                raise _StreamClosed
            if on_step is not None:
                on_step(step)
            send(step.tokens[0], last=False)

        def decode() -> None:
            try:
                send(self._decode([part], recipe, sampling, [seed], observe).tokens[0], last=True)
                arrived.put(None)
            except BaseException as error:  # re-raised by the consumer's thread
                arrived.put(error)

        worker = threading.Thread(target=decode, name="mmspec-stream", daemon=True)
        worker.start()
        stream = self.adapter.codec.stream()
        try:
            while True:
                codes = arrived.get()
                if isinstance(codes, BaseException):
                    raise codes
                audio = stream.finish() if codes is None else stream.push(codes)
                if audio.shape[-1]:
                    yield audio[0].cpu().numpy()
                if codes is None:
                    return
        finally:
            closed.set()
            worker.join()
