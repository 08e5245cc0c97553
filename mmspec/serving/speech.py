"""`POST /v1/audio/speech`."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mmspec import limits
from mmspec.audio.audio_renderer import AudioRenderer
from mmspec.audio.pipeline import EVERY, FIRST
from mmspec.errors import ArgumentError, shorten
from mmspec.serving.accounting import Accounting
from mmspec.serving.audio_encoder import encoder_rate, new_encoder
from mmspec.serving.errors import ApiError, from_mmspec
from mmspec.serving.generation import CallOutput, DecodingRequest, Generation
from mmspec.serving.header_text import in_header
from mmspec.serving.models import ServedModel
from mmspec.serving.reference import Reference, read_reference
from mmspec.serving.schemas import SpeechRequest, VoiceId
from mmspec.serving.settings import ServerSettings
from mmspec.serving.sse import event
from mmspec.serving.stand_ins import ANY, DEFAULT_VOICE, stand_in


@dataclass
class SpeechJob:
    """A speech request that has been checked.

    Args:
        accounting: Counts what the request does.
        settings: What the server allows.

    Raises:
        ApiError: If the request asks for something that is not possible.
        MMSpecError: If the model cannot speak the text, or has no such voice.
    """

    model: ServedModel
    request: SpeechRequest
    accounting: Accounting
    settings: ServerSettings
    recipe: str = field(init=False)
    seed: int = field(init=False)
    voice: str | None = field(init=False)
    remarks: list[str] = field(init=False)
    notes: list[str] = field(init=False)
    samples: int = 0

    def __post_init__(self) -> None:
        request, pipe = self.request, self.model.pipe
        limits.INPUT.check("input", len(request.input))
        self.remarks = request.notes()  # on the request; `notes` are those on the text and the audio
        self.recipe = self.model.check_recipe(request.recipe)
        self.voice = self._voice_of(request.voice.id if isinstance(request.voice, VoiceId) else request.voice)
        reference = read_reference(request.ref_audio, request.ref_text, self.settings)
        self.pipe = pipe if reference is None else _with_voice(pipe, reference)
        prepared = self.pipe.read(request.input, self.voice)
        self.prepared, self.notes = prepared, prepared.notes
        self.format = request.response_format or "mp3"
        self.rate = encoder_rate(self.format, request.sample_rate or pipe.sampling_rate)
        self.seed = secrets.randbits(62) if request.seed is None else request.seed

    def _voice_of(self, name: str | None) -> str | None:
        """The voice of a name, None for the model's first."""
        own, others = self.model.voices, self.settings.voices
        if name in own:
            return name
        if not name or name == DEFAULT_VOICE:
            return None
        other = stand_in(others, name)
        if other in (DEFAULT_VOICE, *own):
            if name not in others:
                self.remarks.append(shorten(f"voice={name!r} is not a voice of this model; {other!r} speaks"))
            return None if other == DEFAULT_VOICE else other
        if not own or self.request.ref_audio is not None:
            self.remarks.append(shorten(f"voice={name!r} has no effect"))
            return None
        known = [*own, *(each for each, voice in others.items() if each != ANY and voice in own), DEFAULT_VOICE]
        message = f"voice={name!r} is not allowed; use one of {', '.join(dict.fromkeys(known))}"
        raise ApiError(400, message, "invalid_value", "voice")

    @property
    def streams(self) -> bool:
        """Whether audio is sent while it is decoded."""
        return bool(self.request.stream or self.request.stream_format)

    @property
    def channels(self) -> int:
        return int(self.model.pipe.adapter.codec.channels)

    def start(self) -> Generation:
        """Hands the text to the engine."""
        settings = DecodingRequest(self.seed, self.recipe, self.request.user, self.request.settings())
        return self.model.generate(self.prepared, settings)

    def headers(self) -> dict[str, str]:
        """Headers that every response has."""
        headers = {
            "X-Seed": str(self.seed),
            "X-Sampling-Rate": str(self.rate),
            "X-Channels": str(self.channels),
        }
        if self.all_notes:
            headers["X-Notes"] = in_header(self.all_notes)
        return headers

    @property
    def all_notes(self) -> list[str]:
        """Remarks on the request, the text and the audio."""
        return [*self.remarks, *self.notes]

    async def chunks(self, generation: Generation, whole: bool = False) -> AsyncIterator[tuple[bytes, list[Any]]]:
        """Chunks of the file while the text is decoded, each with the steps since the last one.

        Args:
            generation: The request.
            whole: Whether the file is one chunk, with its length in the header.
        """
        first = self.request.initial_codec_chunk_frames or FIRST
        every = self.request.codec_chunk_frames or EVERY
        renderer = AudioRenderer(self.pipe.adapter, first, every, self.rate)
        loop, taken = asyncio.get_running_loop(), 0
        encoder = new_encoder(self.format, self.rate, self.channels, whole)

        def encode(outputs: list[CallOutput], last: bool) -> bytes:
            silence = np.zeros((self.channels, 0), np.float32)
            audio = np.concatenate([silence, *renderer.push(outputs, last)], axis=-1)
            if audio.shape[-1] and not self.samples:
                self.accounting.first_audio()
            self.samples += audio.shape[-1]
            data = encoder.push(audio)
            return data + encoder.finish() if last else data

        last = False
        try:
            while not last:
                await (generation.finish() if whole else generation.news())
                last = generation.done
                new, steps = generation.outputs[taken:], generation.steps[taken:]
                taken += len(new)
                yield await loop.run_in_executor(self.model.worker, encode, new, last), steps
        finally:
            # A client that leaves does not end an `encode` that is running: the file is closed after it, in its thread.
            with suppress(RuntimeError):  # a worker that has ended: the file is closed with its last reference
                self.model.worker.submit(encoder.close)
        self.notes = generation.notes or self.notes
        self.accounting.add(generation)
        self.accounting.audio(self.samples / self.rate)

    async def respond(self) -> tuple[bytes, dict[str, str]]:
        """The body and the headers of the response without `stream`."""
        generation = self.start()
        try:
            data = b"".join([data async for data, _ in self.chunks(generation, whole=True)])
        finally:
            await generation.close()
        usage = self.accounting.usage()
        headers = {"X-Output-Tokens": usage["output_tokens"], "X-Target-Calls": usage["target_calls"]}
        headers |= {"X-Tokens-Per-Call": usage["tokens_per_call"], "X-Audio-Seconds": self._duration()}
        return data, self.headers() | {name: str(value) for name, value in headers.items()}

    async def parts(self, generation: Generation) -> AsyncIterator[bytes]:
        """The parts of the response with `stream`: chunks of the file, or events with such chunks."""
        if self.request.stream_format != "sse":
            async for data, _ in self.chunks(generation):
                if data:
                    yield data
            return
        async for data, steps in self.chunks(generation):
            for step in steps if self.request.steps else ():
                yield event(step.event())
            if data:
                yield event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        done = {"usage": self.accounting.usage(), "seed": self.seed, "notes": self.all_notes}
        yield event({"type": "speech.audio.done", "audio_seconds": self._duration(), **done})

    def _duration(self) -> float:
        return round(self.samples / self.rate, 3)


def _with_voice(pipe: Any, reference: Reference) -> Any:
    """The pipeline with reference audio."""
    try:
        return pipe.with_reference_audio(*reference)
    except ArgumentError as error:
        found = from_mmspec(error, SpeechRequest.parameters())
        found.param = found.param or "ref_audio"
        raise found from error
