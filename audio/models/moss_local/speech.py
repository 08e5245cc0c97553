"""The speech adapter of MOSS-TTS-Local v1.5: texts in its message format, voices as codes, up to its codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.draft_model import check_draft
from mmspec.audio.models.moss_local.decoding import MossLocalFrames, frame_ends, frame_spec
from mmspec.audio.models.moss_local.model import MossLocal, read_model
from mmspec.audio.models.moss_tts.message import (
    END_OF_MESSAGE,
    FIELDS,
    REFERENCE,
    MossPart,
    MossSpeaker,
    Options,
    read_options,
)
from mmspec.audio.published_folder import PublishedFolder
from mmspec.batching.request import PreparedBatch
from mmspec.heads.head import Head
from mmspec.hf.folder import tokenizer_of
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

DRAFT_SETTINGS = ("codebooks", "codes", "slot", "start", "end")
"""What a draft model's configuration must have in common with the model's."""


@dataclass(frozen=True)
class LocalOptions(Options):
    """The options of a pipeline.

    Attributes:
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
    """

    ahead: int = 0


class MossLocalAdapter(MossSpeaker):
    """The `mmspec.audio.adapter.SpeechAdapter` of MOSS-TTS-Local v1.5.

    Without a voice, the later parts of a text are spoken with the voice of the first.

    Args:
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.
    """

    recipe = "scd:window=8"
    takes_min_p = True

    def __init__(
        self,
        model: MossLocal,
        tokenizer: Any,
        codec: Codec,
        options: LocalOptions,
        draft_model: MossLocal | None = None,
    ) -> None:
        config, positions = model.config, int(model.config.language.max_position_embeddings)
        super().__init__(tokenizer, codec, options, config.codebooks, config.codes, options.frames, positions)
        self.model = model
        self.draft_model = None if draft_model is None else check_draft(draft_model, model, DRAFT_SETTINGS)
        self.ahead, self.heads = options.ahead, dict[str, Head]()

    def prompt(self, part: MossPart) -> tuple[Tensor, Tensor]:
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
        before = [config.message_start, *self._ids("user\n"), *self._ids(REFERENCE)]
        after = [
            *self._ids(message),
            *self._ids(part.text),
            *self._ids(END_OF_MESSAGE),
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

    def prepare_rows(
        self, parts: Sequence[MossPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        prompts, sampling = [self.prompt(part) for part in parts], samplings[0]
        length = self.options.frames + 1  # with the one that ends a row

        def prompted(model: MossLocal, ahead: int) -> MossLocalFrames:
            return MossLocalFrames(model, prompts, length, sampling, ahead)

        spec, books = frame_spec(self.model, length, sampling), self.model.config.codebooks
        return prepare_frame_rows(
            recipe, self.model, len(parts), prompted, spec, books, self.ahead, self.draft_model, self.heads
        )

    def codes(self, tokens: Tensor) -> Tensor:
        ends = frame_ends(self.model)(tokens).nonzero()
        # Without the frame of its end, a row that is cut has room for a frame more.
        return tokens[: int(ends[0]) if len(ends) else self.options.frames].T

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def named(value: str | int | None) -> str:
    """A field of a message; an empty one is "None"."""
    return "None" if value is None else str(value).strip() or "None"


def from_folder(source: PublishedFolder) -> MossLocalAdapter:
    """The adapter of a published folder; see `PublishedFolder`."""
    options = read_options(LocalOptions, source.options, "MOSS-TTS-Local", (("ahead", 0, MAX_AHEAD),))
    codec = source.needed_codec("MOSS-TTS-Local", "MOSS-Audio-Tokenizer-v2")
    tokenizer = tokenizer_of(source.processor, source.folder)
    model, draft_model = source.model(read_model), source.draft_model(read_model)
    return MossLocalAdapter(model, tokenizer, codec, options, draft_model)
