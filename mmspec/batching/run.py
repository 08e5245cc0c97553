"""`run`: decodes rows of one target to their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec.arguments import check_callback, check_flag
from mmspec.batching.request import PreparedRows
from mmspec.decoding.assembly import NO_RESOURCES
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStep, Watch
from mmspec.decoding.target import Target
from mmspec.decoding.to_end import decode_to_end
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class Decoded:
    """The result of a run.

    Attributes:
        tokens: [B, N, *cell].
        stats: The statistics of the run.
    """

    tokens: Tensor
    stats: Stats


def run(
    target: Target,
    recipe: Recipe,
    layout: Layout,
    samplings: Sequence[SamplingParams],
    seeds: Sequence[int],
    resources: DraftResources = NO_RESOURCES,
    on_step: OnStep | None = None,
    measure_entropy: bool = False,
) -> Decoded:
    """Decodes a batch of sequences of tokens or columns.

    Args:
        target: The model with its prompts, one per row.
        recipe: How to decode.
        layout: The sequence to generate.
        samplings: Sampling parameters, one per row.
        seeds: One per row. A row's tokens depend on its own seed and prompt, not on the other rows.
        resources: The resources of the model for drafters.
        on_step: Called after every target call; an exception in it ends the run.
        measure_entropy: Whether to measure `Stats.entropy` and `Stats.nll`.

    Raises:
        ArgumentError: If the recipe needs a resource that the model does not provide, or `on_step` cannot be called.
    """
    check_callback("on_step", on_step)
    check_flag("measure_entropy", measure_entropy)
    prepared = PreparedRows(target, layout, samplings, resources)
    batch = prepared.batch(recipe, seeds, Watch(on_step, measure_entropy))
    decode_to_end(batch)
    return Decoded(batch.state.result().clone(), batch.stats())
