"""Trees of drafts where the Triton kernels run: siblings are sampled, and trees verified, from lazy probabilities.

`mmspec.sampling.kernel_ops` verifies with them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.kernels.siblings import sample_siblings
from mmspec.kernels.tree import CHOSEN, INDEPENDENT, WITHOUT_REPLACEMENT, Branches, Walked
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.lazy_probs import LazyProbs, lazy
from mmspec.sampling.numbers import Download, Numbers
from mmspec.sampling.probs import Probs
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

    def sample(self, q: Probs, count: int) -> Tensor:
        """The children of the next n entries, int64 [B, n * count].

        Args:
            q: The distributions of the entries, float32 [B, n, V].
            count: Children of each.
        """
        first, entries = self.count, q.shape[1]
        sample_siblings(lazy(q).stats, self._u, self.window, self.probs, first, self._parents, count, self._distinct)
        self.count += entries * count
        self._parents += entries
        return self.window[:, first : self.count]


def walked(p: LazyProbs, walk: Walked, rule: Accept) -> TreeVerdict:
    """The verdict of a walk down a tree, whose counts are read.

    Raises:
        ModelError: If a row's next token or a draft that was met has no distribution.
    """
    host, height = Download(walk.found).wait(), walk.path.shape[1]
    accepted, tested, invalid = host[:, :3].long().numpy().T
    if invalid.any():
        raise ModelError(INVALID)
    steps, entries = np.arange(height), host[:, 3 : 3 + height].long().numpy()
    path = Numbers(np.where(steps < accepted[:, None], entries, steps + 1), walk.path)
    excess = None if rule is ratio else host[:, 3 + height : 3 + 2 * height].contiguous().view(torch.float32)
    tokens = host[:, 3 + 2 * height :].long().numpy()
    along = LazyProbs.along(p, walk.entries)
    return TreeVerdict(walk.tokens, accepted, tested, path, along, excess, tokens, walk.entries[:, -1])


def branches_of(draft: TreeDraft) -> Branches | None:
    """A tree draft in the form that the kernel reads; None if the kernel does not support its siblings."""
    tree, siblings = draft.tree, draft.siblings
    shape = draft.tokens, tree.children, tree.height
    match siblings:
        case WithoutReplacement():
            return Branches(*shape, WITHOUT_REPLACEMENT, siblings.probs)
        case Independent():
            return Branches(*shape, INDEPENDENT, siblings.probs)
        case Chosen():
            return Branches(*shape, CHOSEN, None)
    return None
