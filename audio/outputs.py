"""Outputs of speech and music pipelines: whole audio, and streams."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.stats import Stats
from mmspec.pipeline import Output


@dataclass(eq=False)
class AudioOutput(Output):
    """The audio of one text, by key or by attribute, with the keys of transformers' pipelines.

    Attributes:
        audio: float32 [channels, samples] in -1..1.
        sampling_rate: Samples per second.
        tokens: int64 [n] of each part that was decoded separately, such as a sentence.
        seed: The seed of the text.
        notes: Remarks for the caller, such as words that were spelled, and parts that have no sound.
        truncated: Whether a part reached its length limit before its end; `notes` tells which.
        stats: Statistics of the whole call, for all of its texts together.
    """

    audio: NDArray[np.float32]
    sampling_rate: int
    tokens: list[Tensor]
    seed: int
    notes: list[str]
    truncated: bool
    stats: Stats

    @property
    def seconds(self) -> float:
        """Duration of the audio."""
        return self.audio.shape[-1] / self.sampling_rate

    def save(self, path: str | Path) -> None:
        """Writes the audio to a file, by its suffix: .wav, .flac, .ogg, .opus or .mp3; 16 bits in WAV and FLAC.

        Raises:
            ArgumentError: For another suffix, a sampling rate that the format does not have, audio without samples,
                which only .wav can hold, and a file that cannot be written.
        """
        from mmspec.audio.wave import write_audio

        write_audio(self.audio, self.sampling_rate, Path(path))

    def _repr_html_(self) -> str | None:
        """A player, in notebooks; None without audio."""
        if not self.audio.size:
            return None
        import soundfile

        file = BytesIO()
        soundfile.write(file, self.audio.T, self.sampling_rate, format="FLAC")
        data = base64.b64encode(file.getvalue()).decode()
        return f'<audio controls src="data:audio/flac;base64,{data}"></audio>'


class AudioOutputs(list[AudioOutput]):
    """The audio of several texts, and the statistics of the call.

    Args:
        outputs: One per text.
        stats: Statistics of the call.
    """

    def __init__(self, outputs: list[AudioOutput], stats: Stats) -> None:
        super().__init__(outputs)
        self.stats = stats

    @property
    def audio(self) -> list[Any]:
        """The audio of each text, float32 [channels, samples]."""
        return [output.audio for output in self]


class AudioStream(Iterator[NDArray[np.float32]]):
    """The audio of one text in chunks float32 [channels, n], while it is decoded.

    Args:
        sampling_rate: Samples per second.
        seed: The seed of the text.
        notes: Remarks for the caller, to which `chunks` adds those on parts, such as one without sound.
        truncations: A list to which `chunks` adds a remark for each part that reached its length limit before its end.
    """

    def __init__(
        self,
        chunks: Generator[NDArray[np.float32], None, None],
        sampling_rate: int,
        seed: int,
        notes: Sequence[str],
        truncations: Sequence[str],
    ) -> None:
        self._chunks = chunks
        self.sampling_rate = sampling_rate
        self.seed = seed
        self._notes, self._truncations = notes, truncations

    @property
    def notes(self) -> list[str]:
        """Remarks for the caller, as far as the stream has been read."""
        return [*self._notes, *self._truncations]

    @property
    def truncated(self) -> bool:
        """Whether a part reached its length limit before its end, as far as the stream has been read."""
        return bool(self._truncations)

    def __next__(self) -> NDArray[np.float32]:
        return next(self._chunks)

    def close(self) -> None:
        """Stops the decoding."""
        self._chunks.close()

    async def __aiter__(self) -> AsyncIterator[NDArray[np.float32]]:
        """The same chunks, awaited in another thread: `async for chunk in pipe.stream(text)`."""
        try:
            while (chunk := await asyncio.to_thread(next, self, None)) is not None:
                yield chunk
        finally:
            self.close()
