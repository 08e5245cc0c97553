"""CosyVoice and Chatterbox with what surrounds them, up to their codes; what makes sound, the caller brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol
from zipfile import BadZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mmspec.audio.codec import Codec
from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.audio.models.flat.speech import pieces
from mmspec.audio.pipeline import Reading
from mmspec.codebook import Codebook
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.processed_target import ProcessedTarget
from mmspec.decoding.resources import DraftResources
from mmspec.engine import Decoded, run
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import Recipe
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.params import SamplingParams

LETTERS = 300
BROKEN = (OSError, RuntimeError, ValueError, EOFError, UnpicklingError, BadZipFile, SafetensorError)


@dataclass(frozen=True)
class Line:
    """A piece of text as a model reads it.

    Attributes:
        cond: Vectors [T, D].
        uncond: Those of the unconditional side, or None.
        least: How many codes it takes at least.
        most: How many codes it takes at most.
    """

    cond: Tensor
    uncond: Tensor | None
    least: int
    most: int


class TextSide(Protocol):
    """A model with its text side.

    Attributes:
        codec_lm: What makes codes.
        codes: How many there are, from id 0 on.
        ends: The ids that end a stream.
        start: An id that rules count as made already, or None.
        sampling: The defaults of a call.
        guided: Whether it takes guidance.
    """

    codec_lm: CodecLM
    codes: int
    ends: Sequence[int]
    start: int | None
    sampling: SamplingParams
    guided: bool

    def line(self, text: str) -> Line:
        """Reads a piece of text."""
        ...

    def settings(self, sampling: SamplingParams) -> CodecLMSettings:
        """How codes are drawn for the settings of a call."""
        ...


class CodecLMAdapter:
    """A `mmspec.audio.pipeline.SpeechAdapter`.

    Args:
        side: The model.
        codec: Of its codes, of one codebook.
        draft: A smaller model of the same codes, with a text side of its own, or None.

    Raises:
        ModelError: For a codec or a draft model of other codes.
    """

    recipe = "recycle:window=4"
    voices: Sequence[str] = ()

    def __init__(self, side: TextSide, codec: Codec, draft: TextSide | None = None) -> None:
        if codec.codebooks != 1 or codec.codebook_size < side.codes:
            raise ModelError(
                f"the codec has {codec.codebooks} codebooks of {codec.codebook_size}, the model one of {side.codes}"
            )
        ids = side.codec_lm.head.out_features
        if draft is not None and (draft.codec_lm.head.out_features, draft.codes) != (ids, side.codes):
            raise ModelError(f"draft_model makes {draft.codes} codes, the model {side.codes}; they are of two families")
        self.side, self.codec, self.draft = side, codec, draft
        self.sampling, self.guided = side.sampling, side.guided

    def read(self, text: str, voice: str | None) -> Reading:
        return Reading(pieces(text, LETTERS))

    def task(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[SamplingParams]) -> CodecLMJob:
        return CodecLMJob(self, parts)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = torch.isin(tokens, torch.tensor(self.side.ends, device=tokens.device)).nonzero()
        made = tokens[: int(ends[0])] if len(ends) else tokens
        return made[made < self.side.codes][None]  # other marks are no sound

    def codebook(self) -> Codebook:
        """What the tokens stand for."""
        count = self.side.codes
        return Codebook(self.codec.tables()[0][:count], torch.arange(count), self.side.codec_lm.head.out_features)


@dataclass(frozen=True)
class CodecLMJob:
    """A batch of pieces of text; see `mmspec.audio.pipeline.DecodingJob`."""

    speaker: CodecLMAdapter
    parts: Sequence[str]

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        """Codes int64 [B, N]; how they are drawn lies in the rules of their manner."""
        side, draft = self.speaker.side, self.speaker.draft
        settings, lines = side.settings(samplings[0]), [side.line(part) for part in self.parts]
        layout = spans(lines, side.ends, side.codec_lm.head.out_features)
        drawn = [settings.sampling] * len(lines)

        def target(side: TextSide, lines: Sequence[Line], guided: bool) -> ProcessedTarget:
            conds = [line.cond for line in lines]
            unconds = [line.uncond for line in lines if line.uncond is not None] if guided else None
            before = None if side.start is None else torch.full((len(lines), 1), side.start)
            return side.codec_lm.target(conds, unconds, layout.length, recipe.window, settings, before)

        def smaller() -> ProcessedTarget:
            assert draft is not None
            return target(draft, [draft.line(part) for part in self.parts], False)

        resources = DraftResources(
            draft_model=None if draft is None else smaller,
            draft_sampling=drawn,
            codebook=self.speaker.codebook,
            adaptive_windows=adaptive_windows_of(side.codec_lm.decoder),
        )
        made = target(side, lines, settings.guidance != 1)
        return run(made, recipe, layout, drawn, seeds, resources, on_step, measure_entropy)


def spans(lines: Sequence[Line], ends: Sequence[int], vocab_size: int) -> Layout:
    """Streams that may end with any of `ends` once they have their `least` codes, and do so with their `most`."""
    allowed = torch.ones(3, vocab_size, dtype=torch.bool)
    allowed[0, list(ends)] = False
    allowed[2] = ~allowed[0]
    place = torch.arange(max(line.most for line in lines))
    kinds = [(place >= line.least).long() + (place >= line.most) for line in lines]
    device = lines[0].cond.device
    constraint = Constraint(torch.stack(kinds).to(device), allowed.to(device))
    return Layout(len(place), constraint=constraint, eos=frozenset(ends), pad=ends[0])


def make(side: TextSide, codec: Codec | None, draft: TextSide | None, options: dict[str, Any]) -> CodecLMAdapter:
    """The speaker around a model.

    Raises:
        ArgumentError: For options it does not have, and when there is nothing to make sound with.
    """
    if options:
        raise ArgumentError(
            f"config has {sorted(options)[0]!r}, which this model does not have; it may have 'codec', 'draft_model' "
            "and 'voice'"
        )
    if codec is None:
        raise ArgumentError(
            "this model makes codes, and what makes sound of them is another library's; pass it as "
            "config={'codec': ...} (mmspec.audio.codec.Codec)"
        )
    return CodecLMAdapter(side, codec, draft)


def read_state(file: Path) -> dict[str, Any]:
    """What a published file holds, by name.

    Raises:
        ModelError: When it cannot be read.
    """
    try:
        state = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except BROKEN as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"model '{file}' cannot be loaded: {type(error).__name__}: {reason}") from None
    if not isinstance(state, dict):
        raise ModelError(f"model '{file}' holds a {type(state).__name__}, and not the state of a model")
    return state


def fill(file: Path, module: nn.Module, state: dict[str, Any], prefix: str) -> Any:
    """The module with those of a state whose names begin so.

    Raises:
        ModelError: For missing or misshapen ones.
    """
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    missing = [prefix + name for name in module.state_dict() if name not in own]
    if missing:
        raise ModelError(f"model '{file}' is incomplete; missing: {', '.join(missing[:6])}")
    try:
        module.load_state_dict({name: own[name] for name in module.state_dict()})
    except RuntimeError as error:
        raise ModelError(f"model '{file}' does not fit: {' '.join(str(error).split())}") from None
    return module.requires_grad_(False)
