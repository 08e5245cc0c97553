"""SpecTr (Sun et al. 2023, arXiv 2310.15141): k independent drafts, verified by the K-SEQ test."""

from __future__ import annotations

from mmspec.decoding.adaptive_branching import FixedBranching
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.tree.specinfer import SiblingSampler, StaticTreeDrafter, build_static, sample_independent
from mmspec.sampling.k_seq import verify_drafts
from mmspec.sampling.tree import Independent

K_SEQ = SiblingSampler(sample_independent, Independent, verify_drafts)


def build(context: DraftingContext) -> StaticTreeDrafter:
    """Builds the drafter of the recipe `spectr`."""
    knobs = context.recipe.knobs
    branching = FixedBranching([int(knobs["drafts"])] + [1] * (int(knobs["length"]) - 1))
    return build_static(context, branching, K_SEQ)
