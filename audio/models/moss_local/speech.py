"""The speech adapter of MOSS-TTS-Local v1.5: texts in its message format, voices as codes, up to its codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_job import FrameJob
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.family_options import options_of
from mmspec.audio.models.moss_local.decoding import MossLocalFrames, check_draft, frame_ends, frame_spec
from mmspec.audio.models.moss_local.model import MossLocal, read_model
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.audio.text import split_text
from mmspec.checkpoint import describe
from mmspec.errors import ArgumentError
from mmspec.heads.checkpoint import Head
from mmspec.hf.folder import LOAD_ERRORS
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_LETTERS = 300  # of a part
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


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        language: A language in words, such as "French"; None leaves it to the model.
        instruction: How to speak; or None.
        quality: The quality of the recording, in words; or None.
        tokens: How many frames the text should take, which sets its duration; or None.
        frames: Frames of a part, at most.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
        voice: The voice that is cloned, its codes int64 [F, K]; its transcript is not used. None draws one.
    """

    language: str | None = None
    instruction: str | None = None
    quality: str | None = None
    tokens: int | None = None
    frames: int = 750
    ahead: int = 0
    voice: ReferenceCodes | None = None


@dataclass(frozen=True)
class MossLocalPart:
    """A part of a text.

    Attributes:
        text: The text.
        voice: The codes of the voice, int64 [F, K], or None.
    """

    text: str
    voice: Tensor | None


class MossLocalAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of MOSS-TTS-Local v1.5.

    Without a voice, the later parts of a text are spoken with the voice of the first.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        codec: The codec of its codes.
        options: The options.
        draft_model: A smaller model of the family, or None.
    """

    recipe = "scd:window=8"
    guided = False
    voices: Sequence[str] = ()
    sampling = SamplingParams(1.7, 25, 0.8)

    def __init__(
        self, model: MossLocal, tokenizer: Any, codec: Codec, options: Options, draft_model: MossLocal | None = None
    ) -> None:
        check_codec(codec, model.config.codebooks, model.config.codes)
        self.model, self.tokenizer, self.codec, self.options = model, tokenizer, codec, options
        self.draft_model = None if draft_model is None else check_draft(draft_model, model)
        self.ahead, self.heads = options.ahead, dict[str, Head]()
        self._voice = None if options.voice is None else self._checked(options.voice.codes)

    def read(self, text: str, voice: str | None) -> PreparedText:
        pieces = split_text(text, MAX_LETTERS)
        return PreparedText([MossLocalPart(piece, self._voice) for piece in pieces], texts=pieces)

    @property
    def draws_voice(self) -> bool:
        return self._voice is None

    def continue_voice(self, part: MossLocalPart, first: MossLocalPart, tokens: Tensor) -> MossLocalPart:
        codes = self.codes(tokens).T
        return replace(part, voice=codes) if len(codes) else part

    def prompt(self, part: MossLocalPart) -> tuple[Tensor, Tensor]:
        """Text ids int64 [T] and codes int64 [T, K] of a prompt, which ends with the id that begins audio.

        The pieces of a message become ids one by one, as in the original.
        """
        config, options = self.model.config, self.options
        message = FIELDS.format(
            instruction=named(options.instruction),
            tokens=named(options.tokens),
            quality=named(options.quality),
            language=named(options.language),
        )
        before = [config.message_start, *self._ids("user\n"), *self._ids("<user_inst>\n- Reference(s):\n")]
        after = [
            *self._ids(message),
            *self._ids(part.text),
            *self._ids("\n</user_inst>"),
            config.message_end,
            *self._ids("\n"),
            config.message_start,
            *self._ids("assistant\n"),
            config.start,
        ]
        if part.voice is None:
            text = torch.tensor([*before, *self._ids("None"), *after])
            return text, torch.full((len(text), config.codebooks), config.code_pad)
        text = torch.tensor([*before, config.start, *[config.user_slot] * len(part.voice), config.end, *after])
        codes = torch.full((len(text), config.codebooks), config.code_pad)
        first = len(before) + 1
        codes[first : first + len(part.voice)] = part.voice
        return text, codes

    def job(self, parts: Sequence[MossLocalPart], recipe: Recipe, samplings: Sequence[SamplingParams]) -> FrameJob:
        prompts = [self.prompt(part) for part in parts]
        length = self.options.frames + 1  # with the one that ends a row

        def prompted(model: MossLocal, ahead: int, sampling: SamplingParams) -> MossLocalFrames:
            return MossLocalFrames(model, prompts, length, sampling, ahead)

        def spec(sampling: SamplingParams) -> FrameSpec:
            return frame_spec(self.model, length, sampling)

        books, draft = self.model.config.codebooks, self.draft_model
        return FrameJob("MOSS-TTS-Local", self.model, books, len(parts), self.ahead, prompted, spec, draft, self.heads)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = frame_ends(self.model)(tokens).nonzero()
        # Without the frame of its end, a row that is cut has room for a frame more.
        return tokens[: int(ends[0]) if len(ends) else self.options.frames].T

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _checked(self, codes: Tensor) -> Tensor:
        config, shape = self.model.config, list(codes.shape)
        integers = not codes.is_floating_point() and codes.ndim == 2 and shape[1] == config.codebooks and shape[0] > 0
        if not integers or bool(((codes < 0) | (codes >= config.codes)).any()):
            raise ArgumentError(
                f"voice has codes of shape {shape} and type {codes.dtype}; they must be integers [frames, "
                f"{config.codebooks}], 0 to {config.codes - 1}"
            )
        return codes.cpu().long()


def named(value: str | int | None) -> str:
    """A field of a message; an empty one is "None"."""
    return "None" if value is None else str(value).strip() or "None"


def from_folder(
    folder: Path,
    processor: Any,
    codec: Codec | None,
    config: Mapping[str, Any],
    draft: Path | None,
    device: str,
    dtype: torch.dtype | str,
) -> MossLocalAdapter:
    """The adapter of a published folder; see `mmspec.audio.load.PUBLISHED`.

    Args:
        folder: The folder.
        processor: A tokenizer, or where it is; None is the one in the folder.
        codec: The codec.
        config: The fields of `Options`.
        draft: The folder of a draft model, or None.
        device: Where to load the models.
        dtype: Their dtype, or "auto" for that of the files.

    Raises:
        ArgumentError: For unknown options, values that are not allowed, and if there is no codec.
        ModelError: For missing, broken or unsupported files.
    """
    options = read_options(config)
    if codec is None:
        raise ArgumentError(
            "MOSS-TTS-Local comes without a codec; pass one around MOSS-Audio-Tokenizer-v2 as config={'codec': ...} "
            "(mmspec.audio.codec.Codec)"
        )
    tokenizer = processor
    if processor is None or isinstance(processor, (str, Path)):
        try:
            tokenizer = AutoTokenizer.from_pretrained(processor or folder, trust_remote_code=False)
        except (*LOAD_ERRORS, ImportError) as error:
            where = str(processor or folder)
            raise ArgumentError(f"processor={where!r} cannot be loaded: {describe(error)}") from None
    model = read_model(folder, device, dtype)
    draft_model = None if draft is None else read_model(draft, device, dtype)
    return MossLocalAdapter(model, tokenizer, codec, options, draft_model)


def read_options(config: Mapping[str, Any]) -> Options:
    """The options of a pipeline.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = options_of(Options, config, "MOSS-TTS-Local", ("codec", "draft_model"))
    for name, least, most in (("frames", 1, 2**20), ("tokens", 1, 2**20), ("ahead", 0, MAX_AHEAD)):
        value = getattr(options, name)
        integer = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        if not integer and (name, value) != ("tokens", None):
            raise ArgumentError(f"{name}={shown(value)} is not allowed; it must be an integer, {least} to {most}")
    for name in ("language", "instruction", "quality"):
        value = getattr(options, name)
        if not isinstance(value, (str, type(None))):
            raise ArgumentError(f"{name}={shown(value)} is not allowed; it must be a text, or None")
    if not isinstance(options.voice, (ReferenceCodes, type(None))):
        raise ArgumentError(
            f"voice={shown(options.voice)} is not allowed; pass a mmspec.audio.reference_audio.ReferenceCodes"
        )
    return options
