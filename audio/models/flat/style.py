"""The style of a family of flat speech models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmspec.audio.models.flat.decoding import FrameReader, StreamFormat
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class Style:
    """The prompt, stream format, sampling and limits of a family of flat speech models.

    Attributes:
        stream: How codes are written as ids.
        prompt: Maps tokenizer, text and voice to the ids of a prompt.
        sampling: Default sampling parameters.
        processors: Logits processors, applied before `sampling`.
        tokens: Tokens of a part, at most.
        letters: Letters of a part's text, at most.
        voices: Names of the voices, the default first.
        codec: The Hub id of a SNAC, for families that use it; None otherwise.
        voice_prompt: Maps tokenizer, text and a voice as codes to the ids of a prompt that continues the voice; None
            for families that do not. Without a named or a given voice, the later parts of a text continue its first.
        least: Tokens before the end, at least.
        split: Maps a text to its parts; None splits it after sentences where `letters` are exceeded.
        marked: How frames are read off a stream that has other tokens too; None reads its slots.
        positions: Positions that the model was trained with, where its configuration has more: a part ends there.
        speakers: Whether `voice_prompt` reads the codes of a voice's speaker too.
        described: Whether voices are descriptions in words, which the option `description` replaces.
    """

    stream: StreamFormat
    prompt: Callable[[Any, str, str | None], list[int]]
    sampling: SamplingParams
    processors: tuple[LogitsProcessor, ...]
    tokens: int
    letters: int = 300
    voices: tuple[str, ...] = ()
    codec: str | None = None
    voice_prompt: Callable[[Any, str, ReferenceCodes], list[int]] | None = None
    positions: int | None = None
    described: bool = False
    speakers: bool = False
    least: int = 0
    split: Callable[[str], list[str]] | None = None
    marked: FrameReader | None = None
