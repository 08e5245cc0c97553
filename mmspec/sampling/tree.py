"""Draft trees: their shape, the distributions of their siblings, and their tokens.

A window with a tree holds 1 + m entries. Entry 0 is the last committed token, the root; entry j is node j, whose parent
is an earlier entry. The depth of an entry is its distance from the root, and its position is that of the root plus the
depth, so siblings have the same position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.numbers import Numbers, copied, on_device
from mmspec.sampling.rng import WindowRNG


class DeviceShape(Protocol):
    """The shape of a tree on a device, such as a `mmspec.kernels.tree_shape.Shape`; see `Tree`."""

    @property
    def parents(self) -> Tensor:
        """int64 [R, m]."""
        ...

    @property
    def sees(self) -> Tensor:
        """bool [R, 1 + m, 1 + m]."""
        ...

    @property
    def children(self) -> Tensor:
        """int64 [R, 1 + m, K]."""
        ...

    @property
    def order(self) -> Tensor:
        """int64 [R, m], of the nodes."""
        ...

    @property
    def depth(self) -> Tensor:
        """int64 [R, 1 + m]."""
        ...

    @property
    def after(self) -> Tensor:
        """int64 [R, 1 + m], the position after each entry."""
        ...

    @property
    def at(self) -> Tensor:
        """int64 [R, m], the position of each node."""
        ...


class Tree:
    """The shape of a tree of m nodes, the same in all rows (R = 1) or separate for each row (R = B).

    Args:
        parents: Host int64 [R, m], the parent entry of each node, which comes before the node.
        device: The device of the tensors.

    Attributes:
        parents: Host int64 [R, m], as given.
        depth: Host int64 [R, 1 + m], the depth of each entry.
        height: The largest depth, D.
        order: Host int64 [R, 1 + m], the number of earlier entries of the same depth.
        sees: bool [R, 1 + m, 1 + m], the tree-attention mask: whether an entry (axis 1) is another entry (axis 2) or
            descends from it.
        children: int64 [R, 1 + m, K], the children of each entry in order; 0 where there are no more.
        chain: Whether the tree is a window: no entry of any row has two children.
        widest: For each depth below `height`, the largest number of children of an entry of that depth in any row.
        device_after: int64 [R, 1 + m], the position after each entry; only of trees that were made by `on_device`.
    """

    device_after: Tensor

    def __init__(self, parents: NDArray[np.int64], device: torch.device) -> None:
        rows, m = parents.shape
        row = np.arange(rows)
        depth = np.zeros((rows, 1 + m), dtype=np.int64)
        sees = np.zeros((rows, 1 + m, 1 + m), dtype=bool)
        sees[:, 0, 0] = True
        for j in range(1, 1 + m):
            parent = parents[:, j - 1]
            depth[:, j] = depth[row, parent] + 1
            sees[:, j] = sees[row, parent]
            sees[:, j, j] = True
        rank = _earlier_equals(parents)
        children = np.zeros((rows, 1 + m, int(rank.max()) + 1), dtype=np.int64)
        children[row[:, None], parents, rank] = np.arange(1, 1 + m)
        counts = (children > 0).sum(-1)
        self.parents = parents
        self.depth = depth
        self.order = _earlier_equals(depth)
        self.height = int(depth.max())
        self.chain = bool((parents == np.arange(m)).all())
        self.widest = [int(counts[depth == d].max()) for d in range(self.height)]
        self.sees = copied(torch.from_numpy(sees), device)
        self.children = on_device(children, device)

    @classmethod
    def on_device(cls, shape: DeviceShape, depth: NDArray[np.int64] | None, height: int, chain: bool) -> Tree:
        """A tree whose shape the host does not know; `parents`, and what follows from them, wait for the device.

        Args:
            shape: What is on the device.
            depth: Host int64 [1, 1 + m], the depth of each entry, if the host knows it.
            height: The largest depth that an entry may have.
            chain: Whether the tree is a window.
        """
        tree = cls.__new__(cls)
        tree.sees, tree.children, tree.device_order = shape.sees, shape.children, shape.order
        tree.device_parents, tree.device_depth, tree.device_after = shape.parents, shape.depth, shape.after
        tree.height, tree.chain, tree.widest = height, chain, [shape.children.shape[2]] * height
        if depth is not None:
            tree.depth = depth
        return tree

    @cached_property
    def parents(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.device_parents.cpu().numpy()
        return found

    @cached_property
    def depth(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.device_depth.cpu().numpy()
        return found

    @cached_property
    def order(self) -> NDArray[np.int64]:
        return _earlier_equals(self.depth)

    @cached_property
    def device_depth(self) -> Tensor:
        """`depth` on the device."""
        return on_device(self.depth, self.children.device)

    def positions(self, root: NDArray[np.int64], first: int, last: int) -> Numbers:
        """The positions of entries, [B, last - first]; on the device where the host does not know them.

        Args:
            root: Host int64 [B], the position of the root in each row.
            first: The first entry.
            last: The entry after the last one.
        """
        if self.has_known_depths:
            return Numbers(root[:, None] + self.depth[:, first:last])
        there = on_device(root, self.children.device)[:, None] + self.device_depth[:, first:last]
        return Numbers(root[:, None] + np.minimum(np.arange(first, last), self.height), there)

    @property
    def has_known_depths(self) -> bool:
        """Whether the host knows `depth` without waiting for a device."""
        return "depth" in self.__dict__ or self.children.device.type == "cpu"

    @property
    def has_known_parents(self) -> bool:
        """Whether the host knows `parents` without waiting for a device."""
        return "parents" in self.__dict__ or self.children.device.type == "cpu"

    def positions_after(self, length: NDArray[np.int64], first: int, last: int) -> Numbers:
        """The positions after entries of a tree that was made by `on_device`, as in `positions`.

        Args:
            length: Host int64 [B], the position after the root in each row.
            first: The first entry.
            last: The entry after the last one.
        """
        most = length[:, None] + np.minimum(np.arange(first, last), self.height)
        return Numbers(most, self.device_after[:, first:last])

    @cached_property
    def device_order(self) -> Tensor:
        """`order` of the nodes, int64 [R, m] on the device."""
        return on_device(self.order[:, 1:], self.children.device)

    @cached_property
    def device_parents(self) -> Tensor:
        """`parents` on the device."""
        return on_device(self.parents, self.children.device)

    @staticmethod
    def branching(siblings: Sequence[int], device: torch.device) -> Tree:
        """The tree in which every entry of depth d has `siblings[d]` children; nodes are numbered level by level."""
        parents, level = [], np.zeros(1, dtype=np.int64)
        for count in siblings:
            parents.append(level.repeat(count))
            level = level[-1] + 1 + np.arange(len(level) * count)
        return Tree(np.concatenate(parents)[None], device)


class TreeDraws:
    """The positions and the random numbers of a tree in a batch.

    Args:
        draws: The random numbers of the depths, at the D + 1 positions from that of the nodes of depth 1 on.
        after: [B, 1 + m], the position after each entry.
        at: [B, m], the position of each node.
        iteration: [B, m], the iteration of its random numbers.
    """

    def __init__(self, tree: Tree, draws: WindowRNG, after: Numbers, at: Numbers, iteration: Numbers) -> None:
        self.draws, self.after, self.at, self.iteration = draws, after, at, iteration
        self._tree = tree
        self._streams: list[Tensor] | None = None

    def of_nodes(self, stream: int) -> Tensor:
        """The random numbers of the nodes, float32 [B, m].

        The first node of each depth has the number of the draft at its position in a window without branches.
        """
        if self._streams is None:
            rng = self.draws.source
            if rng.has_kernel:
                found = rng.by_kernel(self.at, self.iteration, 0, 1, self._tree.device_order)
                self._streams = list(found[..., 0])
            else:
                self._streams = rng.uniforms(self.at.host, self.iteration.host, self._tree.order[:, 1:])
        return self._streams[stream]

    def of_depths(self, stream: int) -> Tensor:
        """Those of the depths, float32 [B, D + 1]."""
        return self.draws[stream]


def _earlier_equals(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of earlier equal values, for each of the values int64 [R, n]."""
    return np.tril(values[:, :, None] == values[:, None, :], -1).sum(-1)


class Siblings(Protocol):
    """How the children of an entry were sampled."""

    def conditional(self, entry: Tensor, tokens: Tensor) -> Tensor:
        """The distribution of a sibling given the earlier ones, float32 [B, V]; all zeros for an invalid sibling.

        Args:
            entry: int64 [B], the parent.
            tokens: int64 [B, i + 1], the siblings up to and including this one.
        """
        ...


class WithoutReplacement:
    """Siblings sampled without replacement: each from the entry's distribution without the earlier siblings.

    Args:
        probs: float32 [B, n, V], the distributions of the children of the first n entries; later entries have no
            children.
    """

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs

    def conditional(self, entry: Tensor, tokens: Tensor) -> Tensor:
        row = torch.arange(len(entry), device=entry.device)
        q = self.probs[row, entry.clamp(max=self.probs.shape[1] - 1)]
        if tokens.shape[1] == 1:
            return q
        q = q.scatter(1, tokens[:, :-1], 0.0)
        return q / q.sum(-1, keepdim=True).clamp_(min=torch.finfo(q.dtype).tiny)


class Independent:
    """Siblings sampled with replacement: each from the entry's distribution, so that siblings may be equal.

    Args:
        probs: float32 [B, n, V], the distributions of the children of the first n entries; later entries have no
            children.
    """

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs

    def conditional(self, entry: Tensor, tokens: Tensor) -> Tensor:
        row = torch.arange(len(entry), device=entry.device)
        return self.probs[row, entry.clamp(max=self.probs.shape[1] - 1)]


class Chosen:
    """Siblings that are a function of the tokens before them, such as the most likely ones: each q is one-hot.

    A sibling equal to an earlier one is invalid.

    Args:
        vocab_size: V.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def conditional(self, entry: Tensor, tokens: Tensor) -> Tensor:
        x = tokens[:, -1:]
        new = (tokens[:, :-1] != x).all(-1, keepdim=True)
        return torch.zeros(len(x), self._vocab_size, device=x.device).scatter_(1, x, new.float())


@dataclass
class TreeDraft:
    """A tree of draft tokens and the distributions they were sampled from.

    Attributes:
        tree: The shape.
        tokens: int64 [B, m], the tokens of the nodes.
        siblings: How siblings were sampled.
        draws: The positions and the random numbers of the tree, where the drafter has used them.
        window: int64 [B, 1 + m], the last token of each row and the nodes, where a kernel has written them next to each
            other.
    """

    tree: Tree
    tokens: Tensor
    siblings: Siblings
    draws: TreeDraws | None = None
    window: Tensor | None = None
