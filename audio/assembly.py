"""The audio of a text from the tokens of its parts: pauses between them, another sampling rate, remarks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.adapter import PreparedText, SpeechAdapter, codec_of_part
from mmspec.audio.outputs import AudioOutput, AudioStream
from mmspec.audio.part_stream import stream_part
from mmspec.audio.resampling import Resampler, resample
from mmspec.audio.text_parts import continued, continues_latest
from mmspec.batching.run import Decoded
from mmspec.decoding.stats import RowStats, Stats
from mmspec.decoding.step import OnStep
from mmspec.errors import ArgumentError

MAX_PAUSE = 60  # seconds


class AudioAssembler:
    """Makes the audio of texts, at once or in chunks.

    Args:
        adapter: The model.
        pause: Seconds of silence after each sentence at which a text was split.
        sampling_rate: Samples per second of the audio; None is the model's rate.

    Attributes:
        sampling_rate: Samples per second of the audio.

    Raises:
        ArgumentError: For a pause that is negative or longer than a minute, and for a rate that is not possible.
    """

    def __init__(self, adapter: SpeechAdapter, pause: float = 0.0, sampling_rate: int | None = None) -> None:
        if not isinstance(pause, (int, float)) or not 0 <= pause <= MAX_PAUSE:
            raise ArgumentError(f"pause={pause!r} is not allowed; it must be 0 to {MAX_PAUSE} seconds")
        codec = adapter.codec
        if sampling_rate is not None:
            Resampler(codec.sampling_rate, sampling_rate)  # refuses an impossible rate before any work
        self.sampling_rate = codec.sampling_rate if sampling_rate is None else sampling_rate
        self._adapter = adapter
        self._silence = np.zeros((codec.channels, round(pause * codec.sampling_rate)), dtype=np.float32)

    def output(
        self, prepared: PreparedText, parts: Sequence[Tensor], rows: Sequence[RowStats], seed: int, stats: Stats
    ) -> AudioOutput:
        """The audio of one text.

        Args:
            prepared: The text.
            parts: The tokens of each of its parts.
            rows: The statistics of each part.
            seed: The seed of the text.
            stats: The statistics of the call.
        """
        tokens, chunks = [part.cpu() for part in parts], list[NDArray[np.float32]]()
        for i, part in enumerate(tokens):
            chunks.append(self._decode(part, prepared.parts[i]))
            if prepared.pause_follows(i):
                chunks.append(self._silence)
        audio, own = np.concatenate(chunks, axis=-1), self._adapter.codec.sampling_rate
        if self.sampling_rate != own:
            audio = resample(audio, own, self.sampling_rate)
        notes, truncated = prepared.remarks(self._adapter, tokens, rows), any(row.truncated for row in rows)
        return AudioOutput(audio, self.sampling_rate, tokens, seed, notes, truncated, stats)

    def stream(
        self,
        prepared: PreparedText,
        seed: int,
        decode: Callable[[int, Any, OnStep], Decoded],
        first: int,
        every: int,
        on_step: OnStep | None,
    ) -> AudioStream:
        """The audio of one text in chunks, which add up to that of `output`.

        Args:
            prepared: The text.
            seed: The seed of the text.
            decode: Decodes a part, given its number, and calls its last argument after every window.
            first: Frames in the first chunk of each part.
            every: Frames in the later chunks.
            on_step: Called after every window, from another thread.
        """
        own, notes, truncations = self._adapter.codec.sampling_rate, list(prepared.notes), list[str]()
        resampler = None if self.sampling_rate == own else Resampler(own, self.sampling_rate)

        def decoded() -> Iterator[NDArray[np.float32]]:
            start: tuple[Any, Tensor] | None = None
            for i, part in enumerate(prepared.parts):
                if start is not None:
                    part = continued(self._adapter, part, *start)

                def decode_part(observe: OnStep, part: Any = part, number: int = i) -> Decoded:
                    return decode(number, part, observe)

                found = yield from stream_part(self._adapter, part, decode_part, first, every, on_step)
                if i == 0 or continues_latest(self._adapter):
                    start = part, found.tokens[0]
                if not self._adapter.codes(found.tokens[0]).shape[-1]:
                    notes.append(prepared.silence_note(i))
                if found.stats.rows[0].truncated:
                    truncations.append(prepared.truncation_note(i, found.stats.rows[0].tokens))
                if self._silence.shape[-1] and prepared.pause_follows(i):
                    yield self._silence

        def chunks() -> Generator[NDArray[np.float32], None, None]:
            if resampler is None:
                yield from decoded()
                return
            for chunk in decoded():
                if (audio := resampler.push(chunk)).shape[-1]:
                    yield audio
            if (audio := resampler.finish()).shape[-1]:
                yield audio

        return AudioStream(chunks(), self.sampling_rate, seed, notes, truncations)

    def _decode(self, tokens: Tensor, part: Any) -> NDArray[np.float32]:
        """The audio float32 [channels, samples] of the tokens of a part, in the model's rate."""
        codes = self._adapter.codes(tokens)
        if not codes.shape[-1]:  # the model ended at once; codecs refuse no frames
            return np.zeros((self._adapter.codec.channels, 0), dtype=np.float32)
        return codec_of_part(self._adapter, part).decode(codes[None])[0].cpu().numpy()
