"""A tree of one shape, grown by a smaller model: siblings are drawn, with replacement or without.

Without replacement k siblings are k tokens (recursive rejection sampling of Jeon et al. 2024, arXiv 2402.14160;
Sequoia, Chen et al. 2024, arXiv 2402.12374). With replacement and branches at the root alone they begin k independent
drafts (as in SpecTr, Sun et al. 2023, arXiv 2310.15141, whose own test is in `mmspec.tree_drafts`). Shape and order are
fixed before anything is drawn, so each token follows the law that it is tested with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.drafters.reader import Reader
from mmspec.noise import DRAFT
from mmspec.rows import Rows
from mmspec.tree import Independent, Siblings, Tree, TreeDraft, WithoutReplacement
from mmspec.tree_verify import TreeVerdict
from mmspec.verify import sample


@dataclass(frozen=True)
class Drawing:
    """A way to draw siblings.

    - `draw`: children int64 [B, n * k] in order, from laws float32 [B, n, V] at uniform numbers [B, n, k].
    - `siblings`: what it makes of the laws of all entries, for the test.
    """

    draw: Callable[[Tensor, Tensor], Tensor]
    siblings: Callable[[Tensor], Siblings]


class TreeModelDrafter:
    """Draws a tree level by level, one call of the model for each.

    **Arguments:**

    - `reader`: the model or head, with the law that siblings are drawn from.
    - `branch`: for each depth, how many children an entry of it has.
    - `drawing`: how siblings are drawn.
    - `device`: of the tokens.
    """

    def __init__(self, reader: Reader, branch: Sequence[int], drawing: Drawing, device: torch.device) -> None:
        self._reader = reader
        self._drawing = drawing
        self._branch = branch
        self._tree = Tree.branching(branch, device)

    @property
    def calls(self) -> int:
        return self._reader.calls

    def observe(self, verdict: TreeVerdict, rows: Rows) -> None:
        self._reader.observe(verdict, rows)

    def keep(self, rows: list[int]) -> None:
        self._reader.keep(rows)

    def propose(self, rows: Rows, iteration: int) -> TreeDraft:
        u = self._tree.uniforms(rows, iteration)[DRAFT]
        laws = [self._reader.root(rows)]
        levels: list[Tensor] = []
        first = 1
        for count in self._branch:
            if levels:
                laws.append(self._reader.nodes(rows, levels[-1], self._tree, first))
                first += levels[-1].shape[1]
            size = laws[-1].shape[1] * count
            levels.append(self._drawing.draw(laws[-1], u[:, first - 1 : first - 1 + size].unflatten(1, (-1, count))))
        return TreeDraft(self._tree, torch.cat(levels, dim=1), self._drawing.siblings(torch.cat(laws, dim=1)))


def draw_independent(q: Tensor, u: Tensor) -> Tensor:
    """Every child from q itself."""
    return torch.stack([sample(q, u[..., i]) for i in range(u.shape[-1])], dim=-1).flatten(1)


def draw_different(q: Tensor, u: Tensor) -> Tensor:
    """Every child from q without those before it.

    When no other token is left, a draw repeats an earlier one, and counts for nothing.
    """
    children: list[Tensor] = []
    left = q
    for i in range(u.shape[-1]):
        children.append(sample(left, u[..., i], fallback=q))
        left = left.scatter(-1, children[-1][..., None], 0.0)
    return torch.stack(children, dim=-1).flatten(1)


DRAWINGS = {
    "different": Drawing(draw_different, WithoutReplacement),
    "independent": Drawing(draw_independent, Independent),
}
