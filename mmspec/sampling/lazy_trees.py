"""Trees of drafts where the Triton kernels run: siblings are sampled, and trees verified, from lazy probabilities.

`mmspec.sampling.sampler`, which makes lazy probabilities, imports this module with them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.kernels import k_seq as k_seq_kernel
from mmspec.kernels.siblings import sample_siblings
from mmspec.kernels.tree import CHOSEN, INDEPENDENT, WITHOUT_REPLACEMENT, Branches, Walked, walk_tree
from mmspec.sampling import k_seq, tree_rejection
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.lazy_probs import FUNCTIONS, LazyProbs, dense_of, stats_of
from mmspec.sampling.lazy_verification import kernel_rule
from mmspec.sampling.mirrored import Download, mirrored
from mmspec.sampling.rejection import INVALID, ratio
from mmspec.sampling.tree import Chosen, Independent, Tree, TreeDraft, WithoutReplacement
from mmspec.sampling.tree_rejection import TreeVerdict


class TreeSampler:
    """Samples the nodes of a static tree level by level, in one launch each.

    Args:
        last: int64 [B, 1], the last token of each row.
        tree: The tree, the same in all rows, whose nodes are numbered level by level.
        vocab_size: V.
        u: float32 [B, m] in [0, 1), the uniform random numbers of the nodes.
        distinct: Whether siblings are sampled without replacement.

    Attributes:
        window: int64 [B, 1 + m], the root and the nodes so far.
        probs: float32 [B, n, V], the distributions of the children of the first entries.
        count: Entries so far, the root included.
    """

    def __init__(self, last: Tensor, tree: Tree, vocab_size: int, u: Tensor, distinct: bool) -> None:
        batch, m = u.shape
        parents = int(tree.parents.max()) + 1  # entries that have children
        self.window = last.new_empty(batch, 1 + m)
        self.window[:, :1] = last
        self.probs = torch.empty(batch, parents, vocab_size, device=u.device)
        self.count = 1
        self._u, self._distinct = u, distinct
        self._parents = 0  # entries whose children have been sampled

    def sample(self, q: Tensor, count: int) -> Tensor:
        """The children of the next n entries, int64 [B, n * count].

        Args:
            q: The distributions of the entries, float32 [B, n, V].
            count: Children of each.
        """
        first, entries = self.count, q.shape[1]
        sample_siblings(stats_of(q), self._u, self.window, self.probs, first, self._parents, count, self._distinct)
        self.count += entries * count
        self._parents += entries
        return self.window[:, first : self.count]


def verify_tree(p: LazyProbs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> TreeVerdict:
    """`mmspec.sampling.tree_rejection.verify_tree`, in two launches and one wait for the device."""
    branches, known = _branches(draft), kernel_rule(rule, p.device)
    # On devices before an H100, GSD on chosen siblings needs more registers than there are.
    spills = isinstance(draft.siblings, Chosen) and known is not None and known.name == "gsd"
    if known is None or branches is None or spills:
        return tree_rejection.verify_tree(p.dense(), draft, rule, accept_u, resample_u)
    return _walked(p, walk_tree(p.stats, branches, accept_u, resample_u, known), rule)


def verify_drafts(p: LazyProbs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor) -> TreeVerdict:
    """`mmspec.sampling.k_seq.verify_drafts`, in two launches and one wait for the device."""
    known, siblings = kernel_rule(rule, p.device), draft.siblings
    if known is None or not isinstance(siblings, Independent):
        return k_seq.verify_drafts(p.dense(), draft, rule, accept_u, resample_u)
    count = draft.tokens.shape[1] // draft.tree.height
    given = draft.tokens, dense_of(siblings.probs), count, accept_u, resample_u
    return _walked(p, k_seq_kernel.verify_drafts(p.stats, *given, known), rule)


def _walked(p: LazyProbs, walk: Walked, rule: Accept) -> TreeVerdict:
    """The verdict of a walk down a tree, whose counts are read.

    Raises:
        ModelError: If a row's next token or a draft that was met has no distribution.
    """
    host, height = Download(walk.found).wait(), walk.path.shape[1]
    accepted, tested, invalid = host[:, :3].long().numpy().T
    if invalid.any():
        raise ModelError(INVALID)
    steps, entries = np.arange(height), host[:, 3 : 3 + height].long().numpy()
    path = mirrored(np.where(steps < accepted[:, None], entries, steps + 1), walk.path)
    excess = None if rule is ratio else host[:, 3 + height : 3 + 2 * height].contiguous().view(torch.float32)
    tokens = host[:, 3 + 2 * height :].long().numpy()
    along = LazyProbs.along(p, walk.entries)
    return TreeVerdict(walk.tokens, accepted, tested, path, along, excess, tokens, walk.entries[:, -1])


def _branches(draft: TreeDraft) -> Branches | None:
    """A tree draft in the form that the kernel reads; None if the kernel does not support its siblings."""
    tree, siblings = draft.tree, draft.siblings
    shape = draft.tokens, tree.children, tree.height
    match siblings:
        case WithoutReplacement():
            return Branches(*shape, WITHOUT_REPLACEMENT, dense_of(siblings.probs))
        case Independent():
            return Branches(*shape, INDEPENDENT, dense_of(siblings.probs))
        case Chosen():
            return Branches(*shape, CHOSEN, None)
    return None


FUNCTIONS.update({tree_rejection.verify_tree: verify_tree, k_seq.verify_drafts: verify_drafts})
