"""The speech adapter of the first MOSS-TTS-Local: texts in its message format, voices as codes, up to its codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.codec import Codec
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.draft_model import check_draft
from mmspec.audio.family_options import check_integers
from mmspec.audio.models.moss_local_v1.decoding import LocalV1Frames, frame_ends, frame_spec
from mmspec.audio.models.moss_local_v1.model import MossLocalV1, read_model
from mmspec.audio.models.moss_tts.message import (
    MossPart,
    MossSpeaker,
    Options,
    chat_prompt,
    read_options,
)
from mmspec.audio.published_folder import PublishedFolder
from mmspec.batching.request import PreparedBatch
from mmspec.errors import ArgumentError
from mmspec.hf.folder import tokenizer_of
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

DRAFT_SETTINGS = ("codebooks", "codes", "slot", "start", "end")
"""What a draft model's configuration must have in common with the model's."""


@dataclass(frozen=True)
class LocalV1Options(Options):
    """The options of a pipeline.

    Attributes:
        codebooks: Codebooks to generate; fewer are faster, and sound worse. None is all.
        repetition_penalty: Of codes that a codebook had before, 1 (none) to 10.
    """

    codebooks: int | None = None
    repetition_penalty: float = 1.1


class MossLocalV1Adapter(MossSpeaker):
    """The `mmspec.audio.adapter.SpeechAdapter` of the first MOSS-TTS-Local.

    Without a voice, the later parts of a text are spoken with the voice of the first.

    Args:
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.

    Raises:
        ArgumentError: For options that the model does not have.
    """

    recipe = "scd:window=8"
    takes_min_p = True
    sampling = SamplingParams(1.0, 50, 0.95)

    def __init__(
        self,
        model: MossLocalV1,
        tokenizer: Any,
        codec: Codec,
        options: LocalV1Options,
        draft_model: MossLocalV1 | None = None,
    ) -> None:
        config, positions = model.config, int(model.config.language.max_position_embeddings)
        super().__init__(tokenizer, codec, options, config.codebooks, config.codes, options.frames, positions)
        self.model, self._books = model, options.codebooks or model.config.codebooks
        self._penalty = float(options.repetition_penalty)
        if self._books > model.config.codebooks:
            raise ArgumentError(f"codebooks={self._books} is not allowed; the model has {model.config.codebooks}")
        self.draft_model = None if draft_model is None else check_draft(draft_model, model, DRAFT_SETTINGS)

    def prompt(self, part: MossPart) -> tuple[Tensor, Tensor]:
        """Text ids int64 [T] and codes int64 [T, k] of a prompt, which ends with the id that begins audio."""
        config = self.model.config
        marks = config.start, config.user_slot, config.end
        text, codes = chat_prompt(
            self.tokenizer, self.options, part.text, part.voice, marks, (config.codes, config.codebooks)
        )
        return text, codes[:, : self._books]

    def prepare_rows(
        self, parts: Sequence[MossPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        if recipe.drafts_frames:
            raise ArgumentError(
                f"recipe {recipe.name!r} is not possible for the first MOSS-TTS-Local; it drafts along the depth"
            )
        prompts, sampling = [self.prompt(part) for part in parts], samplings[0]
        length = self.options.frames + 1  # with the one that ends a row

        def prompted(model: MossLocalV1, ahead: int) -> LocalV1Frames:
            return LocalV1Frames(model, prompts, length, sampling, self._penalty)

        spec, books = frame_spec(length, sampling), 1 + self._books
        return prepare_frame_rows(recipe, self.model, len(parts), prompted, spec, books, 0, self.draft_model)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = frame_ends(tokens).nonzero()
        # Without the frame of its end, a row that is cut has room for a frame more.
        return tokens[: int(ends[0]) if len(ends) else self.options.frames, 1:].T

    def voice_of(self, tokens: Tensor) -> Tensor:
        codes, config = super().voice_of(tokens), self.model.config
        return F.pad(codes, (0, config.codebooks - codes.shape[1]), value=config.codes)


def from_folder(source: PublishedFolder) -> MossLocalV1Adapter:
    """The adapter of a published folder; see `PublishedFolder`."""
    options = read_options(LocalV1Options, source.options, "MOSS-TTS-Local")
    check_integers(options, (("codebooks", 1, 256),), optional=("codebooks",))
    penalty: Any = options.repetition_penalty
    if isinstance(penalty, bool) or not isinstance(penalty, (int, float)) or not 1 <= penalty <= 10:
        raise ArgumentError(f"repetition_penalty={shown(penalty)} is not allowed; it must be a number, 1 to 10")
    codec = source.needed_codec("MOSS-TTS-Local", "MOSS-Audio-Tokenizer")
    tokenizer = tokenizer_of(source.processor, source.folder)
    model, draft_model = source.model(read_model), source.draft_model(read_model)
    return MossLocalV1Adapter(model, tokenizer, codec, options, draft_model)
