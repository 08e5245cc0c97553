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
from mmspec.audio.grafted import Graft, Manner
from mmspec.audio.pipeline import Reading
from mmspec.audio.speakers.flat import pieces
from mmspec.engine import Aids, Decoded, run
from mmspec.errors import ArgumentError, ModelError
from mmspec.law import Constraint, Sampling
from mmspec.loop import OnStep
from mmspec.neighbours import Codebook
from mmspec.pace import paces_of
from mmspec.prefix import PrefixTarget
from mmspec.recipes import Recipe
from mmspec.target import Layout

LETTERS = 300
BROKEN = (OSError, RuntimeError, ValueError, EOFError, UnpicklingError, BadZipFile, SafetensorError)


@dataclass(frozen=True)
class Line:
    """A piece of text as a model reads it.

    - `cond`: vectors [T, D]; `uncond`: those of the unconditional side, or None.
    - `least`, `most`: how many codes it takes.
    """

    cond: Tensor
    uncond: Tensor | None
    least: int
    most: int


class TextSide(Protocol):
    """A model with its text side.

    - `graft`: what makes codes; `codes`: how many there are, from id 0 on; `ends`: the ids that end a stream.
    - `start`: an id that rules count as made already, or None.
    - `sampling`: the defaults of a call; `guided`: whether it takes guidance.
    """

    graft: Graft
    codes: int
    ends: Sequence[int]
    start: int | None
    sampling: Sampling
    guided: bool

    def line(self, text: str) -> Line:
        """Reads a piece of text."""
        ...

    def manner(self, sampling: Sampling) -> Manner:
        """How codes are drawn for the settings of a call."""
        ...


class GraftSpeaker:
    """A `mmspec.audio.pipeline.Speaker`.

    **Arguments:**

    - `side`: the model.
    - `codec`: of its codes, of one codebook.
    - `draft`: a smaller model of the same codes, with a text side of its own, or None.

    **Raises:** `ModelError` for a codec or a draft model of other codes.
    """

    recipe = "recycle:window=4"
    voices: Sequence[str] = ()

    def __init__(self, side: TextSide, codec: Codec, draft: TextSide | None = None) -> None:
        if codec.codebooks != 1 or codec.codebook_size < side.codes:
            raise ModelError(
                f"the codec has {codec.codebooks} codebooks of {codec.codebook_size}, the model one of {side.codes}"
            )
        ids = side.graft.head.out_features
        if draft is not None and (draft.graft.head.out_features, draft.codes) != (ids, side.codes):
            raise ModelError(f"draft_model makes {draft.codes} codes, the model {side.codes}; they are of two families")
        self.side, self.codec, self.draft = side, codec, draft
        self.sampling, self.guided = side.sampling, side.guided

    def read(self, text: str, voice: str | None) -> Reading:
        return Reading(pieces(text, LETTERS))

    def task(self, parts: Sequence[str], recipe: Recipe, samplings: Sequence[Sampling]) -> GraftWork:
        return GraftWork(self, parts)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = torch.isin(tokens, torch.tensor(self.side.ends, device=tokens.device)).nonzero()
        made = tokens[: int(ends[0])] if len(ends) else tokens
        return made[made < self.side.codes][None]  # other marks are no sound

    def codebook(self) -> Codebook:
        """What the tokens stand for."""
        count = self.side.codes
        return Codebook(self.codec.tables()[0][:count], torch.arange(count), self.side.graft.head.out_features)


@dataclass(frozen=True)
class GraftWork:
    """A batch of pieces of text; see `mmspec.audio.pipeline.Work`."""

    speaker: GraftSpeaker
    parts: Sequence[str]

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[Sampling],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        """Codes int64 [B, N]; how they are drawn lies in the rules of their manner."""
        side, draft = self.speaker.side, self.speaker.draft
        manner, lines = side.manner(samplings[0]), [side.line(part) for part in self.parts]
        layout = spans(lines, side.ends, side.graft.head.out_features)
        drawn = [manner.sampling] * len(lines)

        def target(side: TextSide, lines: Sequence[Line], guided: bool) -> PrefixTarget:
            conds = [line.cond for line in lines]
            unconds = [line.uncond for line in lines if line.uncond is not None] if guided else None
            before = None if side.start is None else torch.full((len(lines), 1), side.start)
            return side.graft.target(conds, unconds, layout.length, recipe.window, manner, before)

        def smaller() -> PrefixTarget:
            assert draft is not None
            return target(draft, [draft.line(part) for part in self.parts], False)

        aids = Aids(
            draft_model=None if draft is None else smaller,
            draft_sampling=drawn,
            codebook=self.speaker.codebook,
            paces=paces_of(side.graft.decoder),
        )
        made = target(side, lines, manner.guidance != 1)
        return run(made, recipe, layout, drawn, seeds, aids, on_step, measure_entropy)


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


def make(side: TextSide, codec: Codec | None, draft: TextSide | None, options: dict[str, Any]) -> GraftSpeaker:
    """**Raises:** `ArgumentError` for options it does not have, and when there is nothing to make sound with."""
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
    return GraftSpeaker(side, codec, draft)


def read_state(file: Path) -> dict[str, Any]:
    """What a published file holds, by name. **Raises:** `ModelError`."""
    try:
        state = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except BROKEN as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"model '{file}' cannot be loaded: {type(error).__name__}: {reason}") from None
    if not isinstance(state, dict):
        raise ModelError(f"model '{file}' holds a {type(state).__name__}, and not the state of a model")
    return state


def fill(file: Path, module: nn.Module, state: dict[str, Any], prefix: str) -> Any:
    """The module with those of a state whose names begin so. **Raises:** `ModelError` for missing or misshapen ones."""
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    missing = [prefix + name for name in module.state_dict() if name not in own]
    if missing:
        raise ModelError(f"model '{file}' is incomplete; missing: {', '.join(missing[:6])}")
    try:
        module.load_state_dict({name: own[name] for name in module.state_dict()})
    except RuntimeError as error:
        raise ModelError(f"model '{file}' does not fit: {' '.join(str(error).split())}") from None
    return module.requires_grad_(False)
