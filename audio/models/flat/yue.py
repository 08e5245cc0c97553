"""YuE's first stage: from lyrics to songs, as codes of vocals and accompaniment in turn.

A song is sung segment by segment, each of which continues all those before it. The second stage, which completes the
codes, belongs to the codec: see `mmspec.audio.models.flat.yue_tracks`. Source: the repository YuE at 9f1394b (Apache
License 2.0), its `infer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_integer, shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.family_options import check_texts, options_of
from mmspec.audio.models.flat.decoding import decoder_of
from mmspec.audio.models.flat.left_padding import flat_prompt, left_padded
from mmspec.audio.models.flat.yue_prompt import CODES, END, FIRST, XCODEC, head_ids, segment_ids, segments_of, text_ids
from mmspec.audio.models.flat.yue_tracks import SecondStage, Tracks
from mmspec.audio.sentencepiece_file import read_sentencepiece
from mmspec.codebook import Codebook
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import ProcessedTarget, guidance
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.hf.causal_target import Backbone, CausalTarget, with_cuda_graphs
from mmspec.hf.folder import folder_of, load_model
from mmspec.recipes import Recipe
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

LEAST = 100  # tokens of a segment
MAX_TOKENS = 3000  # 30 seconds of two tracks with 50 frames per second
POSITIONS = 16384
PENALTY = RepetitionPenalty(1.1)


@dataclass(frozen=True)
class Options:
    """How songs are made.

    Attributes:
        genres: Genre, mood, instruments and voices.
        reference: Audio to follow, as codes int64 [F] of a mix, or [F, 2] of vocals and accompaniment; or None.
        tokens: Tokens of a segment, at most; 100 are a second.
        segments: Segments to sing, from the first one; None is all.
        later_guidance: Guidance of all segments but the first, unless a call turns guidance off.
    """

    genres: str = ""
    reference: Tensor | None = None
    tokens: int = MAX_TOKENS
    segments: int | None = None
    later_guidance: float = 1.2


@dataclass(frozen=True)
class Segment:
    """A segment of a song.

    Attributes:
        before: Ids of the song before it.
        own: Ids of its text.
        later: Whether it is not the first one.
    """

    before: list[int]
    own: list[int]
    later: bool


class YuEAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of YuE's first stage; texts are lyrics.

    It implements `mmspec.audio.adapter.SupportsVoiceContinuation`. A token is a code of vocals or accompaniment, or
    `CODES`, which ends a segment.

    Args:
        model: A `LlamaForCausalLM`.
        encode: Texts without special tokens to ids.
        codec: Makes audio of the codes of both tracks, with two codebooks.
        options: How songs are made.
        draft_model: A smaller model with the same ids, or None.

    Raises:
        ModelError: If the codec does not match, or a model does not have the codes.
    """

    recipe = "recycle:window=4"
    guided = True
    takes_min_p = True
    draws_voice = True
    continues_latest = True
    voices: Sequence[str] = ()
    sampling = SamplingParams(1.0, 50, 0.93, guidance_scale=1.5)

    def __init__(
        self,
        model: Any,
        encode: Callable[[str], Sequence[int]],
        codec: Codec,
        options: Options,
        draft_model: Any = None,
    ) -> None:
        self.model, self.options, self._encode = model.eval(), options, encode
        self.draft_model = None if draft_model is None else draft_model.eval()
        self.codec = check_codec(codec, 2, CODES)
        for one, name in ((model, "model"), (draft_model, "draft_model")):
            if one is not None and one.lm_head.weight.shape[0] < FIRST + CODES:
                raise ModelError(f"{name} has {one.lm_head.weight.shape[0]} ids; a YuE has {FIRST + CODES} or more")
        allowed = torch.ones(2, CODES + 1, dtype=torch.bool, device=model.device)
        allowed[1, CODES] = False
        self._allowed = allowed

    def read(self, text: str, voice: str | None) -> PreparedText:
        segments = segments_of(text)
        if not segments:
            raise PromptError(f"text={shown(text)} has no segments; begin each with its name, such as [verse]")
        head = head_ids(self._encode, self.options.genres, segments, self.options.reference)
        sung = segments[: self.options.segments]
        between = text_ids(self._encode, "[end_of_segment]")
        parts = [
            Segment([] if i else head, (between if i else []) + segment_ids(self._encode, segment), i > 0)
            for i, segment in enumerate(sung)
        ]
        return PreparedText(parts, self._outgrown(len(head), parts), sung)

    def _outgrown(self, head: int, parts: Sequence[Segment]) -> list[str]:
        """Remarks on prompts that do not fit into the model's positions, if all segments are sung to their limit."""
        length, limit = head, self.options.tokens
        for number, part in enumerate(parts):
            length += len(part.own)
            if length + number * (limit + 1) <= self._room:
                continue
            if not number:
                return [f"the lyrics are long: the model reads the latest {self._room} ids of them and of the song"]
            return [
                f"the song is long: if segments reach their limit of {limit} tokens, the model reads no more than the "
                f"latest {self._room} ids of it and of its lyrics from segment {number + 1} of {len(parts)} on"
            ]
        return []

    def continue_voice(self, part: Segment, first: Segment, tokens: Tensor) -> Segment:
        """The segment `part`, which follows `first`, the one before it."""
        return replace(part, before=[*first.before, *first.own, *self._sung(tokens).tolist(), END])

    def prepare_rows(
        self, parts: Sequence[Segment], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        own, draft, length = samplings[0], self.draft_model, self.options.tokens
        scale = self.options.later_guidance if parts[0].later and own.guidance_scale != 1 else own.guidance_scale
        params = [replace(each, guidance_scale=1.0) for each in samplings]
        position = torch.arange(length, device=self._allowed.device)
        resources = DraftResources(
            codebook=self.codebook,
            draft_model=None if draft is None else lambda: self._target(draft, parts, scale, recipe.window),
            draft_sampling=params,
            adaptive_windows=adaptive_windows_of(self.model),
        )
        constraint = Constraint((position < min(LEAST, length)).long(), self._allowed)
        layout = Layout(length, 2, constraint, frozenset({CODES}), CODES)
        return PreparedRows(self._target(self.model, parts, scale, recipe.window), layout, params, resources)

    def kind(self, part: Segment) -> bool:
        """First segments have another guidance scale than later ones."""
        return part.later

    def codes(self, tokens: Tensor) -> Tensor:
        codes = self._sung(tokens) - FIRST
        return codes[: len(codes) // 2 * 2].view(-1, 2).T

    def codebook(self) -> Codebook:
        """The vectors that tokens stand for."""
        return Codebook(self.codec.tables()[0][:CODES], torch.arange(CODES), CODES + 1)

    @property
    def _room(self) -> int:
        """Ids that a segment's prompt may have."""
        positions = min(POSITIONS, int(self.model.config.max_position_embeddings))
        return positions - self.options.tokens - 1

    def _sung(self, tokens: Tensor) -> Tensor:
        """The ids of a segment's codes, without its end."""
        ends = (tokens == CODES).nonzero()
        return tokens[: int(ends[0])] + FIRST if len(ends) else tokens + FIRST

    def _target(self, model: Any, parts: Sequence[Segment], scale: float, window: int) -> Target:
        embed, guided, room = model.get_input_embeddings(), scale != 1, self._room
        ids = torch.tensor([*range(FIRST, FIRST + CODES), END], device=model.device)
        backbone = Backbone(
            decoder_of(model),
            lambda tokens: embed(ids[tokens]),
            log_probs_of(model.lm_head, ids) if guided else lambda hidden: model.lm_head(hidden)[..., ids],
            CODES + 1,
            model.device,
        )
        rows = [[*part.before, *part.own][-room:] for part in parts]
        # Guidance as in transformers, without another prompt: the model sees the last id only.
        uncond = flat_prompt(model, [[XCODEC]] * len(parts)) if guided else None
        target = CausalTarget(backbone, flat_prompt(model, rows), uncond, self.options.tokens, window)
        known, mask = left_padded(rows, model.device)
        history = torch.where((known >= FIRST) & (known < FIRST + CODES), known - FIRST, -1)
        history = history.masked_fill(mask & (known == END), CODES)
        guide = guidance(scale) if guided else None
        return ProcessedTarget(with_cuda_graphs(target), (PENALTY,), history, self.options.tokens + window, guide)


def log_probs_of(head: Any, ids: Tensor) -> Callable[[Tensor], Tensor]:
    """A head's log-probabilities of some ids among all: the repetition penalty depends on them, not on logits alone."""

    def log_probs(hidden: Tensor) -> Tensor:
        logits: Tensor = head(hidden).float()
        return logits.log_softmax(-1)[..., ids]

    return log_probs


def make(model: Any, tokenizer: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> YuEAdapter:
    """The `YuEAdapter` of a loaded model.

    Args:
        tokenizer: An object whose method `encode` makes ids of a text without special tokens, or the file of a
            sentencepiece model.
        codec: Makes audio of a track, with 8 codebooks; without a second stage, of the two tracks, with 2.
        config: The fields of `Options`, and `stage_2`: the second stage, or its folder or Hub id.
        draft_model: A smaller model, or None.

    Raises:
        ArgumentError: For unknown options, and values that are not allowed.
    """
    given = dict(config)
    second = given.pop("stage_2", None)
    options = options_of(Options, given, "YuE", ("style", "codec", "stage_2"))
    if isinstance(tokenizer, (str, Path)):
        tokenizer = read_sentencepiece(tokenizer, "YuE")
    encode = getattr(tokenizer, "encode", None)
    if encode is None:
        raise ArgumentError(f"processor={shown(tokenizer)} is not allowed; it needs a method encode")
    if len(encode("")):
        raise ArgumentError(
            f"processor adds ids to texts ({type(tokenizer).__name__}); pass YuE's sentencepiece file, tokenizer.model"
        )
    if codec is None:
        raise ArgumentError(
            "YuE needs a codec; pass an X-codec as tokenizer=, and its second stage as config={'stage_2': ...}"
        )
    check_texts(options, ("genres",))
    positions = min(POSITIONS, int(model.config.max_position_embeddings))
    check_integer("tokens", options.tokens, 2, positions // 2)
    if options.segments is not None:
        check_integer("segments", options.segments, 1, 2**20)
    scale = options.later_guidance
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 <= scale <= 100:
        raise ArgumentError(f"later_guidance={shown(scale)} is not allowed; it must be a number, 0 to 100")
    if options.reference is not None:
        check_reference(options.reference)
    if second is not None:
        codec = Tracks(codec, SecondStage(second_stage(second, model)))
    elif codec.codebooks != 2:
        raise ArgumentError(
            f"the codec has {codec.codebooks} codebooks; pass the second stage as config={{'stage_2': ...}}, or a "
            "codec of two codebooks, the first ones of vocals and accompaniment"
        )
    return YuEAdapter(model, encode, codec, options, draft_model)


def second_stage(where: Any, model: Any) -> Any:
    """The model of the second stage.

    Args:
        where: The model, or its folder or Hub id.
        model: The first stage, whose device and dtype it gets.

    Raises:
        ArgumentError: If it is neither.
        ModelError: If it cannot be read.
    """
    if isinstance(where, (str, Path)):
        return load_model(folder_of("stage_2", where), str(model.device), model.dtype, ("LlamaForCausalLM",))
    if type(where).__name__ != "LlamaForCausalLM":
        raise ArgumentError(
            f"stage_2={shown(where)} is not allowed; it must be a LlamaForCausalLM, or its folder or Hub id"
        )
    return where


def check_reference(reference: Any) -> None:
    """Checks the codes of reference audio.

    Raises:
        ArgumentError: If they are not integers [F] or [F, 2] of the first codebook.
    """
    codes = isinstance(reference, Tensor) and not reference.is_floating_point() and reference.numel() > 0
    shaped = codes and (reference.ndim == 1 or (reference.ndim == 2 and reference.shape[1] == 2))
    if not shaped or bool(((reference < 0) | (reference >= CODES)).any()):
        raise ArgumentError(
            f"reference={shown(reference)} is not allowed; it must be integers [frames] or [frames, 2], 0 to "
            f"{CODES - 1}"
        )
