"""Messages of MOSS-TTS: texts with how to speak them, and voices as codes, which all its models share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.family_options import check_integers, check_texts, options_of
from mmspec.audio.positions import check_positions
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.audio.text import split_text
from mmspec.errors import ArgumentError
from mmspec.sampling.params import SamplingParams

MAX_LETTERS = 300  # of a part
REFERENCE = "<user_inst>\n- Reference(s):\n"
FIELDS = """
- Instruction:
{instruction}
- Tokens:
{tokens}
- Quality:
{quality}
- Sound Event:
None
- Ambient Sound:
None
- Language:
{language}
- Text:
"""
END_OF_MESSAGE = "\n</user_inst>"
USER = f"{REFERENCE}{{reference}}{FIELDS}{{text}}{END_OF_MESSAGE}"


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        language: A language in words, such as "French"; None leaves it to the model.
        instruction: How to speak; or None.
        quality: The quality of the recording, in words; or None.
        tokens: How many frames the text should take, which sets its duration; or None.
        frames: Frames of a part, at most.
        voice: The voice that is cloned, its codes int64 [F, K], without a transcript. None draws one.
    """

    language: str | None = None
    instruction: str | None = None
    quality: str | None = None
    tokens: int | None = None
    frames: int = 750
    voice: ReferenceCodes | None = None


@dataclass(frozen=True)
class MossPart:
    """A part of a text.

    Attributes:
        voice: The codes of the voice, int64 [F, K], or None.
    """

    text: str
    voice: Tensor | None


class MossSpeaker(ABC):
    """The texts and voices of a `mmspec.audio.adapter.SpeechAdapter` of a MOSS-TTS.

    Without a voice, the later parts of a text are spoken with the voice of the first.

    Args:
        codec: The codec of its codes.
        codebooks: Codebooks of the model.
        columns: Columns of a part, at most.
        positions: Positions of the model.

    Raises:
        ArgumentError: For a voice with other codes.
        ModelError: For a codec with others.
    """

    guided = False
    voices: Sequence[str] = ()
    sampling = SamplingParams(1.7, 25, 0.8)

    def __init__(
        self,
        tokenizer: Any,
        codec: Codec,
        options: Options,
        codebooks: int,
        codes: int,
        columns: int,
        positions: int,
    ) -> None:
        self.tokenizer, self.codec, self.options = tokenizer, check_codec(codec, codebooks, codes), options
        self._voice = None if options.voice is None else options.voice.checked(codebooks, codes, "MOSS-TTS").codes
        self._columns, self._positions = columns, positions

    @abstractmethod
    def codes(self, tokens: Tensor) -> Tensor:
        """Codes of frames in columns; overridden by each model."""

    @abstractmethod
    def prompt(self, part: MossPart) -> tuple[Tensor, Tensor]:
        """Text ids int64 [T] and codes int64 [T, K] of a prompt, which ends with the id that begins audio."""

    def read(self, text: str, voice: str | None) -> PreparedText:
        pieces = split_text(text, MAX_LETTERS)
        parts = [MossPart(piece, self._voice) for piece in pieces]
        for part in parts:
            check_positions(len(self.prompt(part)[0]), self._columns, self._positions)
        return PreparedText(parts, texts=pieces)

    @property
    def draws_voice(self) -> bool:
        return self._voice is None

    def continue_voice(self, part: MossPart, first: MossPart, tokens: Tensor) -> MossPart:
        voice = self.voice_of(tokens)
        after = replace(part, voice=voice)
        fits = len(self.prompt(after)[0]) + self._columns <= self._positions
        return after if len(voice) and fits else part

    def voice_of(self, tokens: Tensor) -> Tensor:
        """The codes int64 [F, K] of a part that was decoded, as a voice."""
        return self.codes(tokens).T


Kind = TypeVar("Kind", bound=Options)


def read_options(
    kind: type[Kind], config: Mapping[str, Any], family: str, further: Sequence[tuple[str, int, int]] = ()
) -> Kind:
    """The options of a pipeline.

    Args:
        kind: `Options`, or a class with more of them.
        config: What the caller gave.
        family: The name of the models, for errors.
        further: The names of further integers, with the least and the largest value of each.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = options_of(kind, config, family, ("codec", "draft_model"))
    check_integers(options, (("frames", 1, 2**20), ("tokens", 1, 2**20), *further), optional=("tokens",))
    check_texts(options, ("language", "instruction", "quality"), optional=True)
    if not isinstance(options.voice, (ReferenceCodes, type(None))):
        raise ArgumentError(
            f"voice={shown(options.voice)} is not allowed; pass a mmspec.audio.reference_audio.ReferenceCodes"
        )
    return options


def chat_prompt(
    tokenizer: Any,
    options: Options,
    text: str,
    voice: Tensor | None,
    marks: tuple[int, int, int],
    codes: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """A prompt of the models whose messages are written by the tokenizer's chat template.

    Args:
        voice: Columns of a voice as they are read, int64 [n, K]; or None.
        marks: The text ids that begin audio, stand for its columns, and end it.
        codes: The code that is padding, and K.

    Returns:
        Text ids int64 [T], of which the last begins audio, and codes int64 [T, K].
    """
    start, slot, end = marks
    content = USER.format(
        reference="None" if voice is None else "[S1]:\n<|audio|>",
        instruction=options.instruction,
        tokens=options.tokens,
        quality=options.quality,
        language=options.language,
        text=text,
    )
    before, placeholder, after = content, "", ""
    if voice is not None:
        before, placeholder, after = content.partition("<|audio|>")
        placeholder = "".join(tokenizer.convert_ids_to_tokens([start, *[slot] * len(voice), end]))
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": before + placeholder + after}], add_generation_prompt=True, tokenize=False
    )
    ids = torch.tensor([*tokenizer.encode(chat), start])
    columns = torch.full((len(ids), codes[1]), codes[0])
    if voice is not None:
        first = int((ids == start).nonzero()[0]) + 1
        columns[first : first + len(voice)] = voice
    return ids, columns
