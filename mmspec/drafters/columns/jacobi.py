"""Jacobi decoding of columns: the couplings of the rejected part of a window, and the builder of the recipes.

A coupling returns a column for every slot of the window, int64 [B, W, K]; see `mmspec.drafters.coupling`.
"""

from __future__ import annotations

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.drafter import ContinuationDrafter
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.columns.token_init import (
    ColumnInitDrafter,
    RandomColumn,
    repeat_left,
)
from mmspec.drafters.coupling import Coupling, refuse_leaks
from mmspec.drafters.jacobi import START, Jacobi, built_choice
from mmspec.errors import ArgumentError
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG

STARTS = ("auto", "left", "random")


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot from p, independently of its draft."""
    return put(state.ops.sample_columns(verdict.p, draws), verdict.p, state, draws)


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot; see `mmspec.sampling.multi_codebook.couple_columns`."""
    return put(state.ops.couple_columns(verdict.p, verdict.draft, draws, verdict.counts), verdict.p, state, draws)


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every cell by the Gumbel-max trick with noise that is fixed per position and codebook."""
    return put(state.ops.couple_columns_by_noise(verdict.p, state.rng, draws.positions), verdict.p, state, draws)


def put(tokens: Tensor, p: Probs, state: BatchState, draws: WindowRNG) -> Tensor:
    """Sets the forced cells of columns int64 [B, W, K] that were sampled from `p`."""
    return state.ops.put(p, tokens, state.layout.forced, draws.positions)


COLUMN_COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}


def build(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipes `sjd` and `scd` for columns.

    Raises:
        ArgumentError: For a `start` that does not apply to columns, and as `mmspec.drafters.jacobi.build`.
    """
    refuse_leaks(context)
    recipe = context.recipe
    start = str(recipe.knobs["start"])
    known = *STARTS, *(name for name, choice in context.starts.items() if "columns" in choice.builders)
    if start not in known:
        raise ArgumentError(
            f"recipe '{recipe}' is not possible here: this model generates columns of {context.layout.cell[0]} codes, "
            f"for which start must be one of {', '.join(known)}"
        )
    if recipe.knobs["refresh"] != "none":
        raise ArgumentError(f"recipe '{recipe}' is not possible here: drafts of columns cannot be refreshed")
    coupling = COLUMN_COUPLINGS[str(recipe.knobs.get("coupling", "fresh"))]
    return Jacobi(_continuation(context, start), coupling, context.target.vocab_size)


def _continuation(context: DraftingContext, name: str) -> ContinuationDrafter:
    if name in context.starts:
        found: ContinuationDrafter = built_choice(START, name, context.starts[name], context)
        return found
    return ColumnInitDrafter(RandomColumn(context.target.vocab_size) if name == "random" else repeat_left)
