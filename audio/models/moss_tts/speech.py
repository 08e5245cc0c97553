"""The speech adapter of MOSS-TTS with delays: texts in its message format, voices as codes, up to its codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from mmspec.audio.codec import Codec
from mmspec.audio.models.moss_local_v1.model import is_local_v1
from mmspec.audio.models.moss_local_v1.speech import from_folder as moss_local_v1
from mmspec.audio.models.moss_tts.decoding import END, MossRequest, MossTTS, plan, read_config
from mmspec.audio.models.moss_tts.message import (
    MossPart,
    MossSpeaker,
    Options,
    chat_prompt,
    read_options,
)
from mmspec.audio.multi_codebook.delay_pattern import delay, linear_delays, undelay
from mmspec.audio.published_folder import PublishedFolder, read_published
from mmspec.decoding.assembly import PreparedRows
from mmspec.hf.folder import read_json, tokenizer_of
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

TEXT_TEMPERATURE = 1.5  # of the tokens that tell where audio ends


class MossAdapter(MossSpeaker):
    """The `mmspec.audio.adapter.SpeechAdapter` of MOSS-TTS with delays.

    Without a voice, the later parts of a text are spoken with the voice of the first.

    Args:
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.
    """

    recipe = "scd:window=4"

    def __init__(
        self, model: MossTTS, tokenizer: Any, codec: Codec, options: Options, draft_model: MossTTS | None = None
    ) -> None:
        config = model.config
        columns, positions = options.frames + config.codebooks, int(config.language.max_position_embeddings)
        super().__init__(tokenizer, codec, options, config.codebooks, config.codes, columns, positions)
        self.model, self.draft_model = model, draft_model

    def prompt(self, part: MossPart) -> tuple[Tensor, Tensor]:
        """Text ids int64 [T] and codes int64 [T, K] of a prompt, which ends with the token that begins audio."""
        config, columns = self.model.config, None
        if part.voice is not None:
            columns = delay(part.voice[None], linear_delays(config.codebooks), config.codes, config.codes)[0]
        marks = config.start, config.user_slot, config.slots[END]
        return chat_prompt(self.tokenizer, self.options, part.text, columns, marks, (config.codes, config.codebooks))

    def prepare_rows(
        self, parts: Sequence[MossPart], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        model, config = self.model, self.model.config
        prompts = [self.prompt(part) for part in parts]
        longest = max(len(text) for text, _ in prompts)
        text = torch.full((len(parts), longest), config.pad)
        codes = torch.full((len(parts), longest, config.codebooks), config.codes)
        mask = torch.zeros(text.shape, dtype=torch.bool)
        for row, (ids, columns) in enumerate(prompts):
            first = longest - len(ids)
            text[row, first:], codes[row, first:], mask[row, first:] = ids, columns, True
        request = MossRequest(
            text.to(model.device),
            codes.to(model.device),
            mask.to(model.device),
            self._columns,
            samplings[0],
            TEXT_TEMPERATURE,
        )
        draft = None if self.draft_model is None else plan(self.draft_model, request)
        return plan(model, request).prepare(model, recipe, len(parts), draft, self.tables)

    def tables(self) -> list[Tensor]:
        """The vectors of the cells of a column; the tokens of text, in the first, have none, and padding has none."""
        tables = [table[: self.model.config.codes] for table in self.codec.tables()]
        return [tables[0][:0], *tables]

    def codes(self, tokens: Tensor) -> Tensor:
        ends = (tokens[:, 0] == END).nonzero()
        tokens = tokens[: int(ends[0])] if len(ends) else tokens
        config = self.model.config
        frames = undelay(tokens[None, :, 1:], linear_delays(config.codebooks))[0]
        pads = (frames == config.codes).any(1).nonzero()  # of a row that ended before its last codebook
        # Without the column of its end, a row that is cut has room for a frame more.
        return frames[: int(pads[0]) if len(pads) else self.options.frames].T


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> MossTTS:
    """The model in a published folder; see `mmspec.audio.published_folder.read_published`."""
    model = read_published(
        folder, device, dtype, "a MOSS-TTS with delays", lambda found, what: MossTTS(read_config(found, what))
    )
    model.language_model.rotary_emb = Qwen3RotaryEmbedding(model.config.language).to(device)  # not in the files
    return model


def from_folder(source: PublishedFolder) -> MossSpeaker:
    """The adapter of a published folder, also of the first MOSS-TTS-Local, whose config.json names the same class."""
    if is_local_v1(read_json(source.folder / "config.json")):
        return moss_local_v1(source)
    options = read_options(Options, source.options, "MOSS-TTS")
    codec = source.needed_codec("MOSS-TTS", "MOSS-Audio-Tokenizer")
    tokenizer = tokenizer_of(source.processor, source.folder)
    return MossAdapter(source.model(read_model), tokenizer, codec, options, source.draft_model(read_model))
