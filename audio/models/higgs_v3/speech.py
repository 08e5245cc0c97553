"""The speech adapter of Higgs TTS 3: texts with its control tokens, voices, and the codec in its files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText, with_voice_of
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.codecs.higgs import HiggsCodec
from mmspec.audio.draft_model import check_draft
from mmspec.audio.family_options import check_integers, options_of
from mmspec.audio.models.higgs_v3.decoding import HiggsV3Request, plan, row_end
from mmspec.audio.models.higgs_v3.model import HiggsV3, read_codec, read_model
from mmspec.audio.multi_codebook.delay_pattern import delay, linear_delays, undelay
from mmspec.audio.positions import check_positions, check_voice
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes, joined
from mmspec.audio.text import refuse_marks, split_text
from mmspec.decoding.assembly import PreparedRows
from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.folder import tokenizer_of
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

DRAFT_SETTINGS = ("codebooks", "codes")
"""What a draft model's configuration must have in common with the model's."""

MAX_LETTERS = 300  # of a part, about 20 seconds
MARKS = ("<|tts|>", "<|text|>", "<|audio|>", "<|ref_audio|>", "<|ref_text|>")
REFUSED = re.compile("|".join(map(re.escape, MARKS)))


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        voice: The voice that is cloned: its codes int64 [F, K] and its transcript, which may be empty. None draws one.
        frames: Frames of a part, at most; 25 per second.
    """

    voice: ReferenceCodes | None = None
    frames: int = 750


@dataclass(frozen=True)
class HiggsV3Part:
    """A part of a text.

    Attributes:
        voice: The voice, or None.
    """

    text: str
    voice: ReferenceCodes | None


class HiggsV3Adapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Higgs TTS 3.

    Without a voice, the later parts of a text are spoken with the voice of the first.

    Args:
        tokenizer: Its tokenizer, with the marks of its prompts.
        codec: The codec of its codes.
        draft_model: A smaller model of the family, or None.

    Raises:
        ModelError: If the tokenizer lacks a mark, or the draft model generates other columns.
    """

    recipe = "scd:window=4"
    takes_min_p = True
    guided = False
    voices: Sequence[str] = ()
    sampling = SamplingParams(1.0, 50, 0.95)
    continues_parts = True

    def __init__(
        self, model: HiggsV3, tokenizer: Any, codec: Codec, options: Options, draft_model: HiggsV3 | None = None
    ) -> None:
        check_codec(codec, model.config.codebooks, model.config.codes)
        self.model, self.tokenizer, self.codec, self.options = model, tokenizer, codec, options
        self.draft_model = draft_model
        added = tokenizer.get_added_vocab()
        if missing := [mark for mark in MARKS[:4] if mark not in added]:
            raise ModelError(f"the tokenizer has no {missing[0]}; it is not that of a Higgs TTS 3")
        self._marks: dict[str, int] = {mark: added[mark] for mark in MARKS if mark in added}
        if (largest := max(self._marks.values())) >= (size := model.config.language.vocab_size):
            raise ModelError(f"the tokenizer has the id {largest}, the model {size} ids; they do not belong together")
        self._voice: ReferenceCodes | None = None
        if options.voice is not None:
            read = ["transcript"] if "<|ref_text|>" in self._marks else []
            self._voice = options.voice.checked(model.config.codebooks, model.config.codes, "this Higgs TTS 3", *read)
            refuse_marks("transcript", self._voice.transcript, REFUSED)

    def read(self, text: str, voice: str | None) -> PreparedText:
        refuse_marks("text", text, REFUSED)
        pieces = split_text(text, MAX_LETTERS)
        parts = [HiggsV3Part(piece, self._voice) for piece in pieces]
        for part in parts:
            check_positions(len(self.prompt(part)[0]), self._columns, self._positions)
        return PreparedText(parts, texts=pieces)

    def with_reference_audio(self, reference: ReferenceAudio) -> HiggsV3Adapter:
        if not isinstance(self.codec, HiggsCodec):
            raise ArgumentError("this codec cannot encode reference audio; pass its codes as config={'voice': ...}")
        wave = reference.mono(self.codec.sampling_rate)
        check_voice(len(wave), self.codec.hop, self._columns, self._positions)
        codes = self.codec.encode(wave)
        voice = ReferenceCodes((reference.transcript or "").strip(), codes)
        options = replace(self.options, voice=voice)
        return HiggsV3Adapter(self.model, self.tokenizer, self.codec, options, self.draft_model)

    @property
    def draws_voice(self) -> bool:
        return self._voice is None

    def continue_voice(self, part: HiggsV3Part, first: HiggsV3Part, tokens: Tensor) -> HiggsV3Part:
        return with_voice_of(self, part, first.text, tokens)

    def continue_from(self, part: HiggsV3Part, context: Sequence[ReferenceCodes]) -> HiggsV3Part | None:
        own = [] if self._voice is None else [self._voice]
        after = replace(part, voice=joined([*own, *context]))
        fits = len(self.prompt(after)[0]) + self._columns <= self._positions
        return after if fits else None

    def prompt(self, part: HiggsV3Part) -> tuple[Tensor, Tensor]:
        """The ids int64 [T] of a prompt, -1 in the places of the voice, and its columns int64 [n, K]."""
        config, marks, ids = self.model.config, self._marks, [self._marks["<|tts|>"]]
        columns = torch.empty(0, config.codebooks, dtype=torch.int64)
        if part.voice is not None:
            if part.voice.transcript and "<|ref_text|>" in marks:
                ids += [marks["<|ref_text|>"], *self._ids(part.voice.transcript)]
            columns = delay(part.voice.codes[None], linear_delays(config.codebooks), config.begin, config.end)[0].cpu()
            ids += [marks["<|ref_audio|>"], *[-1] * len(columns)]
        ids += [marks["<|text|>"], *self._ids(part.text), marks["<|audio|>"]]
        return torch.tensor(ids), columns

    def prepare_rows(
        self, parts: Sequence[HiggsV3Part], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        model, config = self.model, self.model.config
        prompts = [self.prompt(part) for part in parts]
        longest = max(len(ids) for ids, _ in prompts)
        ids = torch.zeros(len(parts), longest, dtype=torch.int64)
        columns = torch.full((*ids.shape, config.codebooks), config.end)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for row, (own, voice) in enumerate(prompts):
            ids[row, longest - len(own) :], mask[row, longest - len(own) :] = own, True
            columns[row, ids[row] < 0] = voice
        request = HiggsV3Request(
            ids.to(model.device),
            columns.to(model.device),
            mask.to(model.device),
            self._columns,
            samplings[0],
        )
        draft = None if self.draft_model is None else plan(self.draft_model, request)
        return plan(model, request).prepare(model, recipe, len(parts), draft, self.codec.tables)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = (tokens[:, 0] == row_end(self.model)).nonzero()
        tokens = tokens[: int(ends[0]) + 1] if len(ends) else tokens
        frames = undelay(tokens[None], linear_delays(self.model.config.codebooks))[0]
        return frames.masked_fill(frames >= self.model.config.codes, 0).T  # marks where a code should be

    @property
    def _columns(self) -> int:
        """Columns of a part, at most."""
        return self.options.frames + self.model.config.codebooks - 1

    @property
    def _positions(self) -> int:
        return int(self.model.config.language.max_position_embeddings)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def from_folder(source: PublishedFolder) -> HiggsV3Adapter:
    """The adapter of a published folder; see `PublishedFolder`."""
    options = read_options(source.options)
    tokenizer = tokenizer_of(source.processor, source.folder, "PreTrainedTokenizerFast")
    (model, state), draft = source.model(read_model), source.draft_model(read_model)
    own = source.codec
    if own is None:
        own = read_codec(state, f"model {str(source.folder)!r}", source.device)
    draft_model = None if draft is None else check_draft(draft[0], model, DRAFT_SETTINGS)
    return HiggsV3Adapter(model, tokenizer, own, options, draft_model)


def read_options(config: Mapping[str, Any]) -> Options:
    """The options of a pipeline.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    options = options_of(Options, config, "Higgs TTS 3", ("codec", "draft_model"))
    check_integers(options, (("frames", 1, 2**20),))
    if not isinstance(options.voice, (ReferenceCodes, type(None))):
        raise ArgumentError(
            f"voice={shown(options.voice)} is not allowed; pass a mmspec.audio.reference_audio.ReferenceCodes"
        )
    return options
