"""The pipeline of models that speak: texts to sound by any recipe, at once or while decoding goes on."""

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
from mmspec.audio.outputs import Sound, Sounds
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

FIRST, EVERY = 12, 25  # frames until the first chunk of a stream, and between the others
_PART_SEED = 2**32  # between the seeds of one text's parts


@dataclass(frozen=True)
class Reading:
    """A text as a model reads it.

    Attributes:
        parts: What is decoded apart and heard in this order, such as sentences; whatever the speaker understands.
        notes: What the caller may want to know.
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
        """Decodes it; rows that end early are filled up with what `SpeechAdapter.codes` takes for no frames."""
        ...


@dataclass(frozen=True)
class Task:
    """Work for one target: with its prompts given, what is to be made, and what helps drafters."""

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
    """A model that speaks.

    Attributes:
        codec: Turns its codes into sound.
        sampling: The defaults of a call.
        recipe: The defaults of a call.
        guided: Whether it takes guidance.
        voices: Names to choose from, the default first; may be empty.
    """

    codec: Codec
    sampling: SamplingParams
    recipe: str
    guided: bool
    voices: Sequence[str]

    def read(self, text: str, voice: str | None) -> Reading:
        """Reads a text.

        Raises:
            PromptError: For one it cannot say.
        """
        ...

    def task(self, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams]) -> DecodingJob:
        """Prepares a batch, a row per part."""
        ...

    def codes(self, tokens: Tensor) -> Tensor:
        """The frames int64 [K, F] of a row's tokens so far; more tokens only add frames after them."""
        ...


@runtime_checkable
class SupportsDuration(SpeechAdapter, Protocol):
    """A speaker, or player, that is told how long to sound."""

    def with_duration(self, seconds: float) -> SupportsDuration:
        """The same for so many seconds.

        Raises:
            ArgumentError: For more, or less, than it can make.
        """
        ...


@runtime_checkable
class SupportsReferenceAudio(SpeechAdapter, Protocol):
    """A speaker, or player, that goes by a sound: follows its melody, speaks with its voice."""

    def with_reference_audio(self, sound: ReferenceAudio) -> SupportsReferenceAudio:
        """The same, going by a sound.

        Raises:
            ArgumentError: For one it cannot go by.
        """
        ...


class _Left(Exception):
    """Ends a decoding that nobody listens to any more."""


class SpeechPipeline:
    """Texts to sound.

    Args:
        speaker: The model.
    """

    def __init__(self, speaker: SpeechAdapter) -> None:
        self.speaker = speaker

    @property
    def sampling_rate(self) -> int:
        return self.speaker.codec.sampling_rate

    def with_duration(self, seconds: float) -> SpeechPipeline:
        """The same pipeline, for sounds of so many seconds.

        Raises:
            ArgumentError: For a model that ends by itself, and for more than it can make.
        """
        if not isinstance(self.speaker, SupportsDuration):
            raise ArgumentError(f"seconds={seconds:g} is not possible: how long this model sounds, its text decides")
        return SpeechPipeline(self.speaker.with_duration(seconds))

    def with_reference_audio(
        self, audio: NDArray[np.float32], sampling_rate: int, text: str | None = None
    ) -> SpeechPipeline:
        """The same pipeline, going by a sound: the melody for a model of music, the voice for one that speaks.

        Args:
            audio: [channels, samples] in -1..1; channels are mixed, and the rate is changed to the model's.
            text: What is said in it, for a voice.

        Raises:
            ArgumentError: For a model that goes by none, and for a sound it cannot go by.
        """
        if not isinstance(self.speaker, SupportsReferenceAudio):
            raise ArgumentError("this model goes by no melody and no voice but its own")
        return SpeechPipeline(self.speaker.with_reference_audio(ReferenceAudio(audio, sampling_rate, text)))

    @property
    def config(self) -> Mapping[str, Any]:
        """The defaults of a call."""
        s = self.speaker.sampling
        return {
            "temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "guidance_scale": s.guidance_scale,
            "recipe": self.speaker.recipe,
        }  # fmt: skip

    def read(self, text: str, voice: str | None) -> Reading:
        """How a text is read, before any of it is said: its parts, and what the caller may want to know.

        Raises:
            PromptError: As a call.
            ArgumentError: As a call, of `voice`.
        """
        voices = self.speaker.voices
        if voice is not None and voice not in voices:
            known = f"use one of {', '.join(voices)}" if voices else "this model has no voices to choose from"
            raise ArgumentError(f"voice={voice!r} is not allowed; {known}")
        if not isinstance(text, str) or not text.strip():
            raise PromptError(
                f"text={text!r} is empty; give words to say"
                if text == "" or isinstance(text, str)
                else f"text={text!r} is not allowed; it must be a string"
            )
        return self.speaker.read(text, voice)

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
    ) -> Sound | Sounds:
        """Speaks one text, which gives a `Sound`, or several as one batch, which gives `Sounds`.

        Args:
            voice: A name of `speaker.voices`; None is the first.
            recipe: How to decode, e.g. `"table:window=8"`; None takes the model's own.
            seed: Text i uses `seed + i`; or one per text. None draws one.
            temperature: See `mmspec.sampling.params.SamplingParams`; None takes the model's own.
            top_k: See `mmspec.sampling.params.SamplingParams`; None takes the model's own.
            top_p: See `mmspec.sampling.params.SamplingParams`; None takes the model's own.
            guidance_scale: See `mmspec.sampling.params.SamplingParams`; None takes the model's own.
            on_step: Called with a `mmspec.decoding.batch.Step` after every target call.
            measure_entropy: Also report the entropy of the target distribution.

        Raises:
            PromptError: When a prompt cannot be read by the model.
            ArgumentError: When an argument has a value that is not allowed.
            UnknownNameError: When a model, recipe, rule or drafter of that name does not exist.
        """
        texts = [text] if isinstance(text, str) else list(text)
        if not texts:
            raise ArgumentError("text is an empty list; give at least one text")
        chosen = parse(recipe if recipe is not None else self.speaker.recipe)
        sampling = self._sampling(temperature, top_k, top_p, guidance_scale)
        readings = [self.read(t, voice) for t in texts]
        seeds = row_seeds(seed, len(texts))
        parts = [part for reading in readings for part in reading.parts]
        part_seeds = [s + i * _PART_SEED for r, s in zip(readings, seeds, strict=True) for i in range(len(r.parts))]
        decoded = self._decode(parts, chosen, sampling, part_seeds, on_step, measure_entropy)
        rows = iter(decoded.tokens)
        sounds = []
        for reading, own_seed in zip(readings, seeds, strict=True):
            tokens = [next(rows).cpu() for _ in reading.parts]
            pieces = [self._sound(part) for part in tokens]
            audio = np.concatenate(pieces, axis=-1)
            sounds.append(Sound(audio, self.sampling_rate, tokens, own_seed, reading.notes, decoded.stats))
        return sounds[0] if isinstance(text, str) else Sounds(sounds, decoded.stats)

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
        """Speaks a text and gives its sound in chunks, float32 [channels, n], while it is decoded.

        All chunks together are what a call with the same arguments gives. The parts of a text are decoded one after the
        other. To leave the iteration ends the decoding.

        Args:
            first: Frames that are decoded until the first chunk of each part.
            every: Between later ones.
            text: As in a call.
            voice: As in a call.
            recipe: As in a call.
            seed: As in a call.
            temperature: As in a call.
            top_k: As in a call.
            top_p: As in a call.
            guidance_scale: As in a call.
            on_step: As in a call, but called from another thread.

        Raises:
            PromptError: As a call, before the first chunk.
            ArgumentError: As a call, before the first chunk.
            UnknownNameError: As a call, before the first chunk.
        """
        if min(first, every) < 1:
            raise ArgumentError(f"first={first} and every={every} must be 1 frame or more")
        chosen = parse(recipe if recipe is not None else self.speaker.recipe)
        sampling = self._sampling(temperature, top_k, top_p, guidance_scale)
        reading = self.read(text, voice)
        (own_seed,) = row_seeds(seed, 1)

        def chunks() -> Iterator[NDArray[np.float32]]:
            for i, part in enumerate(reading.parts):
                yield from self._stream_part(part, chosen, sampling, own_seed + i * _PART_SEED, first, every, on_step)

        return chunks()

    def _sampling(
        self, temperature: float | None, top_k: int | None, top_p: float | None, guidance_scale: float | None
    ) -> SamplingParams:
        own = self.speaker.sampling
        if guidance_scale not in (None, 1) and not self.speaker.guided:
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
            job = self.speaker.task(parts, recipe, samplings)
            return job.run(recipe, samplings, seeds, on_step, measure_entropy)

    def _sound(self, tokens: Tensor) -> NDArray[np.float32]:
        return self.speaker.codec.decode(self.speaker.codes(tokens)[None])[0].cpu().numpy()

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
        """Decodes one part in a thread of its own and gives its sound as the codes come."""
        arrived: queue.SimpleQueue[Tensor | BaseException | None] = queue.SimpleQueue()
        left = threading.Event()
        sent = 0

        def send(tokens: Tensor, last: bool) -> None:
            nonlocal sent
            codes = self.speaker.codes(tokens)
            new = codes.shape[-1] - sent
            if new and (last or new >= (every if sent else first)):
                arrived.put(codes[None, :, sent:])
                sent = codes.shape[-1]

        def observe(step: Step) -> None:
            if left.is_set():
                raise _Left
            if on_step is not None:
                on_step(step)
            send(step.tokens[0], last=False)

        def decode() -> None:
            try:
                send(self._decode([part], recipe, sampling, [seed], observe).tokens[0], last=True)
                arrived.put(None)
            except BaseException as error:  # whatever it is, the listener gets it
                arrived.put(error)

        worker = threading.Thread(target=decode, name="mmspec-stream", daemon=True)
        worker.start()
        stream = self.speaker.codec.stream()
        try:
            while True:
                codes = arrived.get()
                if isinstance(codes, BaseException):
                    raise codes
                sound = stream.finish() if codes is None else stream.push(codes)
                if sound.shape[-1]:
                    yield sound[0].cpu().numpy()
                if codes is None:
                    return
        finally:
            left.set()
            worker.join()
