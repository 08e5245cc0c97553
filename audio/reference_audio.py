"""Reference audio that a model follows: a melody, or a voice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.resampling import resample
from mmspec.errors import ArgumentError
from mmspec.media.audio import check_samples, to_audio


@dataclass(frozen=True)
class ReferenceAudio:
    """A melody or a voice, as a waveform.

    Attributes:
        audio: float32 [channels, samples] in -1..1; other arrays and tensors are converted, see
            `mmspec.media.audio.to_audio`.
        sampling_rate: Samples per second.
        transcript: The words spoken in it, or None.

    Raises:
        ArgumentError: For an array that is not audio, and a sampling rate below 1.
    """

    audio: NDArray[np.float32]
    sampling_rate: int
    transcript: str | None = None

    def __post_init__(self) -> None:
        if getattr(self.audio, "ndim", 2) == 1:
            raise ArgumentError(f"audio has shape {list(self.audio.shape)}; it must be [channels, samples]")
        object.__setattr__(self, "audio", check_samples(to_audio(self.audio, "audio"), "audio"))
        rate: Any = self.sampling_rate
        transcript: Any = self.transcript
        if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or rate < 1:
            raise ArgumentError(f"sampling_rate={shown(rate)} is not allowed; it must be 1 or more")
        if not isinstance(transcript, (str, type(None))):
            raise ArgumentError(f"transcript={shown(transcript)} is not allowed; it must be a text, or None")

    def mono(self, sampling_rate: int) -> Tensor:
        """One channel, float32 [samples]: the mean of all channels, resampled if the rate differs.

        Raises:
            ArgumentError: If it cannot be resampled, see `mmspec.audio.resampling.Resampler`.
        """
        mixed = self.audio.mean(0, keepdims=True)
        return torch.from_numpy(np.ascontiguousarray(resample(mixed, self.sampling_rate, sampling_rate)[0]))

    def require_transcript(self, model: str) -> str:
        """The transcript, stripped.

        Args:
            model: The model that needs it, for the error.

        Raises:
            ArgumentError: If there is none.
        """
        if self.transcript is None or not self.transcript.strip():
            raise ArgumentError(
                f"transcript of the reference audio is missing; {model} continues from it: pass transcript=, or "
                "--voice-text on the command line"
            )
        return self.transcript.strip()


@dataclass(frozen=True)
class ReferenceCodes:
    """Reference audio as codes, for models that continue from its transcript and its codes.

    Attributes:
        transcript: The words spoken in it.
        codes: int64 [F, codebooks], or [F] for codecs of one codebook.
        speaker: int64 [n], the codes of the speaker, for codecs that have them apart; or None.

    Raises:
        ArgumentError: If the transcript is no text, or codes or speaker are no tensors.
    """

    transcript: str
    codes: Tensor
    speaker: Tensor | None = None

    def __post_init__(self) -> None:
        transcript: Any = self.transcript
        if not isinstance(transcript, str):
            raise ArgumentError(f"transcript={shown(transcript)} is not allowed; it must be a text")
        for name, value in (("codes", self.codes), ("speaker", self.speaker)):
            if not isinstance(value, Tensor) and (name, value) != ("speaker", None):
                raise ArgumentError(f"{name}={shown(value)} is not allowed; it must be a tensor of integers")

    def checked(self, codebooks: int, count: int, model: str, *read: str) -> ReferenceCodes:
        """The same with codes int64 [F, codebooks] on the CPU.

        Args:
            codebooks: Codebooks of the model.
            count: Codes of each.
            model: The model, for errors.
            read: What it reads besides; see `refuse_unread`.

        Raises:
            ArgumentError: If the codes have another shape or type, or are not among those of the model, and for what
                it does not read.
        """
        refuse_unread(self, model, *read)
        codes, shape = self.codes, list(self.codes.shape)
        integers = not codes.is_floating_point() and not codes.is_complex() and codes.dtype != torch.bool
        shaped = integers and codes.ndim == 2 and shape[1] == codebooks and shape[0] > 0
        if not shaped or bool(((codes < 0) | (codes >= count)).any()):
            raise ArgumentError(
                f"voice has codes of shape {shape} and type {codes.dtype}; they must be integers [frames, "
                f"{codebooks}], 0 to {count - 1}"
            )
        return replace(self, codes=codes.cpu().long())


def refuse_unread(voice: ReferenceAudio | ReferenceCodes, model: str, *read: str) -> None:
    """Refuses what a voice has and a model does not read.

    Args:
        model: The model, for the error.
        read: What it reads besides the audio or the codes, of "transcript" and "speaker".

    Raises:
        ArgumentError: For another one that is not empty.
    """
    takes = ("audio" if isinstance(voice, ReferenceAudio) else "codes", *read)
    for name in ("transcript", "speaker"):
        value = getattr(voice, name, None)
        given = value.strip() if isinstance(value, str) else value is not None and value.numel()
        if given and name not in read:
            raise ArgumentError(
                f"{name}={shown(value)} is not possible: {model} takes only {' and '.join(takes)}; leave it out"
            )


def joined(references: Sequence[ReferenceCodes]) -> ReferenceCodes:
    """References that follow each other, as one, in the shape of the first.

    It has no transcript if one of them has codes without a transcript.
    """
    spoken = [each for each in references if each.codes.numel()]
    texts = [each.transcript.strip() for each in spoken]
    speakers = [each.speaker for each in references if each.speaker is not None]
    codes = torch.cat([each.codes.cpu().reshape(-1, *spoken[0].codes.shape[1:]) for each in spoken])
    return ReferenceCodes(" ".join(texts) if all(texts) else "", codes, speakers[0] if speakers else None)
