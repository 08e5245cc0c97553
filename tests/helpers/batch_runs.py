"""Rows of a target that are decoded as one batch, to their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmspec.continuous.prepared import PreparedLatents
from mmspec.decoding.assembly import NO_RESOURCES, PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import OnStep, Watch
from mmspec.decoding.to_end import Decoded, decode_to_end
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams


def run(
    target: Any,
    recipe: Recipe,
    layout: Layout,
    samplings: Sequence[SamplingParams],
    seeds: Sequence[int],
    resources: DraftResources = NO_RESOURCES,
    on_step: OnStep | None = None,
    measure_entropy: bool = False,
) -> Decoded:
    """Decodes tokens or columns."""
    rows = PreparedRows(target, layout, samplings, resources)
    return decode_to_end(rows.batch(recipe, seeds, Watch(on_step, measure_entropy)))


def run_latents(
    target: Any,
    head: Any,
    recipe: Recipe,
    layout: Layout,
    seeds: Sequence[int],
    resources: DraftResources = NO_RESOURCES,
) -> Decoded:
    """Decodes latents."""
    return decode_to_end(PreparedLatents(target, head, layout, resources).batch(recipe, seeds))
