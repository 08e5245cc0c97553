"""Rows that are decoded alone, in one batch, and in a batch that they join while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import tiny_speech
import torch
from frame_models import random_head
from torch import Tensor

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_batch import PreparedFrames
from mmspec.audio.depth.frame_windows import prepare_frame_windows
from mmspec.audio.models.csm.decoding import CsmFrames
from mmspec.batching.request import DecodingBatch
from mmspec.continuous.prepared import PreparedLatents
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.rows import batches_fit, join_batches
from mmspec.methods.frame.head import FrameHead
from mmspec.methods.masked import MaskedToy
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import (
    ColumnToy,
    ToyBackbone,
    ToyHead,
    ToyTarget,
    toy_codebooks,
    toy_latent_resources,
    toy_resources,
)

# Of row i the settings i modulo 5. Rows that differ in them advance at different speeds.
SAMPLINGS = [
    SamplingParams(), SamplingParams(temperature=3.0), SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=2), SamplingParams(temperature=1.5),
]  # fmt: skip
LENGTH, VOCAB, MEMORY = 24, 4, 3
LIMITS = [24, 14, 24, 19, 9, 22, 11]  # of row i, modulo 7

# Begins a batch of these rows by a recipe.
World = Callable[[Recipe, Sequence[int]], DecodingBatch]


def seeds(rows: Sequence[int]) -> list[int]:
    return [1000 + row for row in rows]


def limits(rows: Sequence[int]) -> list[int]:
    return [LIMITS[row % len(LIMITS)] for row in rows]


@dataclass(frozen=True)
class Tokens:
    """Rows of `ToyTarget`.

    Attributes:
        width: Tokens per line; None for a stream.
        guided: Whether there is guidance.
        ends: Whether a row ends when the same token comes three times.
        bare: Whether the model has neither a draft model nor an n-gram table.
    """

    width: int | None = 3
    guided: bool = False
    ends: bool = False
    bare: bool = False

    def __call__(self, recipe: Recipe, rows: Sequence[int]) -> DecodingBatch:
        count, layout = len(rows), Layout(LENGTH, self.width, stops=_repeated if self.ends else None)
        target = ToyTarget(count, VOCAB, LENGTH, 5, self.guided, memory=MEMORY)
        settings = [SAMPLINGS[row % len(SAMPLINGS)] for row in rows]
        drafts = [SamplingParams(s.temperature) for s in settings]
        if self.guided:
            settings = [replace(s, guidance_scale=1.5 + row % 2) for s, row in zip(settings, rows, strict=True)]
        small = partial(ToyTarget, count, VOCAB, LENGTH, 6, memory=MEMORY)
        resources = toy_resources(count, VOCAB, layout, 6, drafts)
        resources = replace(resources, draft_model=small, guided_draft_model=partial(small, guided=True))
        if self.bare:
            resources = replace(resources, table=None, draft_model=None, guided_draft_model=None)
        return PreparedRows(target, layout, settings, resources, limits(rows)).batch(recipe, seeds(rows))


def _repeated(row: int, tokens: Tensor) -> bool:
    return len(tokens) > 2 and len(tokens[-3:].unique()) == 1


def columns(recipe: Recipe, rows: Sequence[int]) -> DecodingBatch:
    """Rows of `ColumnToy`."""
    count, layout = len(rows), Layout(LENGTH, cell=(2,))
    toy = partial(ColumnToy, count, 3, 2, LENGTH, memory=2)
    resources = DraftResources(
        draft_model=lambda: toy(8),
        draft_sampling=[SamplingParams()] * count,
        codebooks=lambda: toy_codebooks(3, 2, 9),
        models={"masked": lambda: MaskedToy(3, layout, 10)},
    )
    settings = [SAMPLINGS[row % len(SAMPLINGS)] for row in rows]
    return PreparedRows(toy(7), layout, settings, resources, limits(rows)).batch(recipe, seeds(rows))


def latents(recipe: Recipe, rows: Sequence[int]) -> DecodingBatch:
    """Rows of `ToyBackbone`."""
    layout = Layout(LENGTH, cell=(2,), dtype=torch.float32)
    sigma = 0.3 if recipe.rule_name == "cspd" else 0.0
    resources = toy_latent_resources(len(rows), 2, LENGTH, 11, ToyHead(2, 0.15, sigma * 1.1, 0.9))
    target = ToyBackbone(len(rows), 2, LENGTH, 11)
    prepared = PreparedLatents(target, ToyHead(2, sigma=sigma), layout, resources, limits(rows))
    return prepared.batch(recipe, seeds(rows))


@dataclass(frozen=True)
class Frames:
    """Rows of a tiny CSM, of frames of 4 tokens; the row ends with a frame of zeros.

    Attributes:
        ahead: Frames in a window; 0 drafts along the depth alone.
    """

    ahead: int

    def __call__(self, recipe: Recipe, rows: Sequence[int]) -> DecodingBatch:
        length, hot = 8, SamplingParams(1.5)
        model, small = (_prompted(seed, rows, length, self.ahead) for seed in (2, 3))
        spec = FrameSpec(length, lambda frames: (frames[..., :2] == 0).all(-1), 1, hot, hot)
        draft = small if recipe.needs_draft_model else None
        if not self.ahead:
            return PreparedFrames(model, spec, DraftResources(), draft).batch(recipe, seeds(rows))
        heads = {"frame": _frame_head(model.vocab_size)} if recipe.drafts_frames else {}
        made = prepare_frame_windows(model, recipe, spec, len(rows), self.ahead, draft, heads=heads)
        return made.batch(made.recipe or recipe, seeds(rows))


@cache
def _frame_head(codes: int) -> FrameHead:
    return random_head(codes - 1, 24, 4)


_csm = cache(partial(tiny_speech.csm, codes=4))  # rows that join have the same model


def _prompted(seed: int, rows: Sequence[int], length: int, ahead: int) -> CsmFrames:
    model = _csm(seed)
    prompts = torch.tensor([[3 + row % 5, 7, 8, 9 - row % 3] for row in rows])
    embeds = model.embed_text_tokens(prompts).detach()
    return CsmFrames(model, embeds, torch.ones(len(rows), 4, dtype=torch.bool), length, ahead + 1)


def together(world: World, recipe: Recipe, rows: Sequence[int]) -> dict[int, Tensor]:
    """The tokens of rows that are decoded in one batch, by row."""
    with torch.inference_mode():
        batch = world(recipe, rows)
        running = batch.start()
        while running:
            running = batch.step()
    return {row: batch.state.tokens(at) for at, row in enumerate(rows)}


def alone(world: World, recipe: Recipe, rows: Sequence[int]) -> dict[int, Tensor]:
    """The tokens of rows that are decoded one after the other."""
    found: dict[int, Tensor] = {}
    for row in rows:
        found |= together(world, recipe, [row])
    return found


def joining(world: World, recipe: Recipe, rows: Sequence[int], first: int) -> dict[int, Tensor]:
    """The tokens of rows of which the first ones begin a batch, and one joins it before each of its windows."""
    waiting, found = list(rows[first:]), dict[int, Tensor]()
    with torch.inference_mode():
        batch: Any = world(recipe, rows[:first])
        there, running = dict(enumerate(rows[:first])), batch.start()
        while running or waiting:
            if waiting:
                new: Any = world(recipe, [waiting[0]])
                row, new_runs = waiting.pop(0), new.start()
                _collect(batch, there, found)
                if not new_runs:
                    found[row] = new.state.tokens(0)
                elif running:
                    assert batches_fit(batch, new)
                    (at,) = join_batches(batch, new)
                    there[int(batch.state.ids[at])] = row
                else:
                    batch, there = new, {0: row}
            running = batch.step()
    _collect(batch, there, found)
    return found


def _collect(batch: Any, there: dict[int, int], found: dict[int, Tensor]) -> None:
    """Moves the tokens of rows that have finished from a batch, by their places `there`."""
    running = set(batch.state.ids[batch.state.is_running].tolist())
    for place in [place for place in there if place not in running]:
        found[there.pop(place)] = batch.state.tokens(place)


def differing(alone: dict[int, Tensor], other: dict[int, Tensor]) -> list[int]:
    """The rows whose tokens differ.

    Latents may differ by rounding: a product with a matrix adds numbers in another order for another number of rows.
    """
    assert set(alone) == set(other)

    def equal(one: Tensor, two: Tensor) -> bool:
        if one.shape != two.shape:
            return False
        return torch.equal(one, two) if not one.is_floating_point() else bool(np.allclose(one, two, atol=1e-4))

    return [row for row, tokens in alone.items() if not equal(tokens, other[row])]
