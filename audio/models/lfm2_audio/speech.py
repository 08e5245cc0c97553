"""The speech adapter of LFM2-Audio: texts to speech, with a voice that the system prompt names or describes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.draft_model import check_draft
from mmspec.audio.family_options import check_integers, options_of
from mmspec.audio.models.lfm2_audio.decoding import Lfm2AudioFrames, frame_ends, frame_spec
from mmspec.audio.models.lfm2_audio.detokenizer import FOLDER, read_detokenizer
from mmspec.audio.models.lfm2_audio.model import Lfm2Audio, read_model
from mmspec.audio.positions import check_positions
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.text import split_text
from mmspec.batching.request import PreparedBatch
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.heads.head import Head
from mmspec.hf.folder import tokenizer_of
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

DRAFT_SETTINGS = ("codebooks", "codes")
"""What a draft model's configuration must have in common with the model's."""

MAX_LETTERS = 300  # of a part, about 20 seconds
START, START_ID = "<|audio_start|>", 128  # before audio
MARKS = re.compile(r"<\|[^<>|]*\|>")  # that a text must not contain


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        frames: Frames of a part, at most; 12.5 per second.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
        system: The system prompt; None is the one of LFM2.5-Audio for the voice of a call.
    """

    frames: int = 512
    ahead: int = 0
    system: str | None = None


class Lfm2AudioAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of LFM2-Audio.

    It speaks texts, in the original's sequential mode: audio begins at once, and its end is the end of a row.

    Args:
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.

    Raises:
        ModelError: For a codec or a tokenizer that does not fit.
    """

    recipe = "scd:window=8"
    guided = False
    takes_min_p = True
    sampling = SamplingParams(0.8, 64)

    def __init__(
        self,
        model: Lfm2Audio,
        tokenizer: Any,
        codec: Codec,
        options: Options,
        draft_model: Lfm2Audio | None = None,
    ) -> None:
        config = model.config
        self.codec = check_codec(codec, config.codebooks, config.codes)
        self.model, self.tokenizer, self.options, self.ahead = model, tokenizer, options, options.ahead
        self.draft_model = None if draft_model is None else check_draft(draft_model, model, DRAFT_SETTINGS)
        self.heads: dict[str, Head] = {}
        if (found := tokenizer.convert_tokens_to_ids(START)) != START_ID:
            raise ModelError(
                f"the tokenizer has {START} as {found}, the model as {START_ID}; they do not belong together"
            )
        own = options.system is not None
        self.voices: Sequence[str] = () if own else ("UK male", "UK female", "US male", "US female")

    def read(self, text: str, voice: str | None) -> PreparedText:
        if found := MARKS.search(text):
            raise PromptError(f"text contains {found.group()[:80]!r}, a mark of the prompt; leave it out")
        system = self.options.system or f"Perform TTS. Use the {voice or self.voices[0]} voice."
        pieces = split_text(text, MAX_LETTERS)
        parts = [self.prompt(system, piece) for piece in pieces]
        for part in parts:
            check_positions(len(part), self.options.frames, int(self.model.config.language.max_position_embeddings))
        return PreparedText(parts, texts=pieces)

    def prompt(self, system: str, text: str) -> Tensor:
        """The text ids int64 [T] of a prompt, which ends with the id before audio.

        Its pieces become ids one by one, as in the original.
        """
        pieces = (
            "<|startoftext|>", "<|im_start|>system\n", system, "<|im_end|>\n",
            "<|im_start|>user\n", text, "<|im_end|>\n", "<|im_start|>assistant\n", START,
        )  # fmt: skip
        return torch.tensor([i for piece in pieces for i in self.tokenizer.encode(piece, add_special_tokens=False)])

    def prepare_rows(
        self, parts: Sequence[Tensor], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        length = self.options.frames + 1  # with the one that ends a row

        def prompted(model: Lfm2Audio, ahead: int) -> Lfm2AudioFrames:
            return Lfm2AudioFrames(model, parts, length, ahead)

        spec, books = frame_spec(self.model, length, samplings[0]), self.model.config.codebooks
        return prepare_frame_rows(
            recipe, self.model, len(parts), prompted, spec, books, self.ahead, self.draft_model, self.heads
        )

    def codes(self, tokens: Tensor) -> Tensor:
        ends = frame_ends(self.model)(tokens).nonzero()
        # Without the frame of its end, a row that is cut has room for a frame more.
        frames = tokens[: int(ends[0]) if len(ends) else self.options.frames]
        # The end in another codebook is no code: the original's demo leaves such a frame out.
        return frames[(frames < self.model.config.codes).all(-1)].T


def from_folder(source: PublishedFolder) -> Lfm2AudioAdapter:
    """The adapter of a published folder; see `PublishedFolder`."""
    options = read_options(source.options)
    own = source.folder / FOLDER
    if source.codec is None and not own.is_dir():
        raise ArgumentError("LFM2-Audio needs Mimi here; pass tokenizer='kyutai/mimi'")
    tokenizer = tokenizer_of(source.processor, source.folder, "PreTrainedTokenizerFast")
    model, draft_model = source.model(read_model), source.draft_model(read_model)
    codec = source.codec or read_detokenizer(own, model.config.codebooks, source.device)
    return Lfm2AudioAdapter(model, tokenizer, codec, options, draft_model)


def read_options(config: Any) -> Options:
    """The options of a pipeline.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = options_of(Options, config, "LFM2-Audio", ("codec", "draft_model"))
    check_integers(options, (("frames", 1, 2**20), ("ahead", 0, MAX_AHEAD)))
    if options.system is not None and (not isinstance(options.system, str) or not options.system.strip()):
        raise ArgumentError(f"system={shown(options.system)} is not allowed; it must be a text, or None")
    return options
