"""The audio of a text from the tokens of its parts: pauses between them, another sampling rate, remarks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.adapter import SpeechAdapter
from mmspec.audio.audio_renderer import AudioRenderer
from mmspec.audio.outputs import AudioOutput, AudioStream
from mmspec.audio.resampling import Resampler, resample
from mmspec.audio.text_parts import PartPrompt, TextParts
from mmspec.batching.call import CallEngine
from mmspec.batching.engine_thread import outputs_from_thread
from mmspec.batching.request import PreparedRequest
from mmspec.decoding.stats import Stats
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

    def request(self, text: TextParts, latent: bool = False) -> PreparedRequest:
        """The request of a text, whose result is an `AudioOutput`.

        Args:
            latent: Whether the result has no samples.
        """
        return text.request(partial(self._output, text, latent))

    def _output(self, text: TextParts, latent: bool, tokens: Sequence[Tensor], stats: Stats) -> AudioOutput:
        """The audio of a text from the tokens of each of its parts."""
        chunks = [np.zeros_like(self._silence[:, :0])]
        for i, part in enumerate(() if latent else tokens):
            chunks += [self._decode(part, text.prompts[i]), self._silence_after(text, i)]
        audio, own = np.concatenate(chunks, axis=-1), self._adapter.codec.sampling_rate
        if self.sampling_rate != own and not latent:
            audio = resample(audio, own, self.sampling_rate)
        notes = [*text.notes, *text.prepared.remarks(self._adapter, tokens, stats.rows)]
        truncated = any(r.truncated for r in stats.rows)
        return AudioOutput(audio, self.sampling_rate, list(tokens), text.seed, notes, truncated, stats)

    def stream(self, engine: CallEngine, text: TextParts, first: int, every: int) -> AudioStream:
        """The audio of a text in chunks, which add up to that of its request.

        Args:
            engine: Decodes the request of the text.
            first: Frames in the first chunk of each part.
            every: Frames in the later chunks.
        """
        silences = [self._silence_after(text, i) for i in range(len(text.prompts))]
        notes, truncations = text.notes, list[str]()
        tokens: list[list[Tensor]] = [[] for _ in text.prompts]

        def chunks() -> Generator[NDArray[np.float32], None, None]:
            renderer = AudioRenderer(self._adapter, first, every, self.sampling_rate, silences)
            before = 0
            with closing(outputs_from_thread(engine)) as outputs:
                for output in outputs:
                    tokens[output.part].append(output.tokens)
                    ended = len(text.prompts) if output.finished else output.part
                    for i in range(before, ended):
                        if tokens[i]:
                            notes.extend(text.prepared.notes_on(self._adapter, i, torch.cat(tokens[i])))
                        else:
                            notes.append(text.prepared.silence_note(i))
                        row = engine.row_stats(i)
                        if row is not None and row.truncated:
                            truncations.append(text.prepared.truncation_note(i, row.tokens))
                    before = ended
                    yield from renderer.push([output], output.finished)

        return AudioStream(chunks(), self.sampling_rate, text.seed, notes, truncations)

    def _silence_after(self, text: TextParts, part: int) -> NDArray[np.float32]:
        return self._silence if text.prepared.pause_follows(part) else self._silence[:, :0]

    def _decode(self, tokens: Tensor, prompt: PartPrompt) -> NDArray[np.float32]:
        """The audio float32 [channels, samples] of the tokens of a part, in the model's rate."""
        codes = self._adapter.codes(tokens)
        if not codes.shape[-1]:  # the model ended at once; codecs refuse no frames
            return np.zeros((self._adapter.codec.channels, 0), dtype=np.float32)
        return prompt.codec().decode(codes[None])[0].cpu().numpy()
