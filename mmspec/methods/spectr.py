"""SpecTr (Sun et al. 2023, arXiv 2310.15141): k independent drafts, verified by the K-SEQ test."""

from __future__ import annotations

from torch import Tensor

from mmspec.decoding.adaptive_branching import FixedBranching
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.tree.specinfer import SiblingSampler, StaticTreeDrafter, build_static, sample_independent
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.probs import Probs
from mmspec.sampling.tree import Independent, TreeDraft
from mmspec.sampling.tree_rejection import TreeVerdict


def verify_drafts(
    ops: TorchOps, p: Probs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor
) -> TreeVerdict:
    """Tests independent drafts together, see `mmspec.sampling.k_seq`; a `TreeVerification`."""
    return ops.verify_drafts(p, draft, rule, accept_u, resample_u)


K_SEQ = SiblingSampler(sample_independent, Independent, verify_drafts)


def build(context: DraftingContext) -> StaticTreeDrafter:
    """Builds the drafter of the recipe `spectr`."""
    knobs = context.recipe.knobs
    branching = FixedBranching([int(knobs["drafts"])] + [1] * (int(knobs["length"]) - 1))
    return build_static(context, branching, K_SEQ)
