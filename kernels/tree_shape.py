"""Kernel 18: the shape of a tree from the parents of its nodes, as in `mmspec.sampling.tree.Tree`.

One program per sequence, one lane per entry: each walks up to the root.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.specialization import kernel


class Shape(NamedTuple):
    """The shape of a tree of m nodes; see `mmspec.sampling.tree.Tree`.

    Attributes:
        sees: bool [B, 1 + m, 1 + m].
        children: int64 [B, 1 + m, K].
        order: int64 [B, m], of the nodes.
        depth: int64 [B, 1 + m].
        after: int64 [B, 1 + m], the position after each entry.
        at: int64 [B, m], the position of each node.
        parents: int64 [B, m], as given.
    """

    sees: Tensor
    children: Tensor
    order: Tensor
    depth: Tensor
    after: Tensor
    at: Tensor
    parents: Tensor


def tree_shape_reference(parents: Tensor, before: Tensor, height: int, most: int) -> Shape:
    """`tree_shape` in torch, node by node."""
    batch, m = parents.shape
    row = torch.arange(batch, device=parents.device)
    sees = torch.zeros(batch, 1 + m, 1 + m, dtype=torch.bool, device=parents.device)
    children = torch.zeros(batch, 1 + m, most, dtype=torch.int64, device=parents.device)
    order, depth, counts = torch.zeros_like(parents), parents.new_zeros(batch, 1 + m), parents.new_zeros(batch, 1 + m)
    sees[:, 0, 0] = True
    for node in range(1, 1 + m):
        parent = parents[:, node - 1]
        sees[:, node] = sees[row, parent]
        sees[:, node, node] = True
        depth[:, node] = depth[row, parent] + 1
        order[:, node - 1] = (depth[:, :node] == depth[:, node, None]).sum(1)
        rank = counts[row, parent]
        fits = rank < most
        children[row[fits], parent[fits], rank[fits]] = node
        counts[row, parent] += 1
    after = before[:, None] + 1 + depth
    return Shape(sees, children, order, depth, after, after[:, 1:] - 1, parents)


@kernel
def _tree_shape(
    parents, positions, sees, children, order, depths, after, places, m, height, max_children,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside, own = lanes <= m, parents + row * m
    # Each lane writes its own rows alone: zeros first.
    visible = sees + (row * (m + 1) + lanes) * (m + 1)
    below = children + (row * (m + 1) + lanes) * max_children
    for column in range(0, m + 1):
        tl.store(visible + column, tl.zeros((BLOCK,), tl.int8), mask=inside)
    for rank in range(0, max_children):
        tl.store(below + rank, tl.zeros((BLOCK,), tl.int64), mask=inside)
    entry, depth = lanes.to(tl.int64), tl.zeros((BLOCK,), tl.int64)
    for _ in range(0, height):
        tl.store(visible + entry, tl.full((BLOCK,), 1, tl.int8), mask=inside)
        depth += (entry > 0).to(tl.int64)
        entry = tl.load(own + entry - 1, mask=inside & (entry > 0), other=0)
    tl.store(visible + entry, tl.full((BLOCK,), 1, tl.int8), mask=inside)
    known, earlier = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int64)
    for node in range(1, m + 1):
        is_child = inside & (tl.load(own + node - 1) == lanes)
        tl.store(below + known, tl.full((BLOCK,), 0, tl.int64) + node, mask=is_child & (known < max_children))
        known += is_child.to(tl.int32)
        theirs = tl.sum(tl.where(lanes == node, depth, 0), 0)
        earlier += ((theirs == depth) & (node < lanes)).to(tl.int64)
    start = tl.load(positions + row) + 1
    tl.store(depths + row * (m + 1) + lanes, depth, mask=inside)
    tl.store(after + row * (m + 1) + lanes, start + depth, mask=inside)
    is_node = inside & (lanes > 0)
    tl.store(order + row * m + lanes - 1, earlier, mask=is_node)
    tl.store(places + row * m + lanes - 1, start + depth - 1, mask=is_node)


@operator("mmspec::tree_shape", mutates_args=())
def tree_shape_op(
    parents: Tensor, before: Tensor, height: int, most: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`tree_shape` as a tuple."""
    if chosen(parents) == "torch":
        return tree_shape_reference(parents, before, height, most)[:6]
    outputs = _outputs(parents, most)
    (batch, m), block = parents.shape, max(32, triton.next_power_of_2(parents.shape[1] + 1))
    with launchable(parents):
        _tree_shape[(batch,)](
            parents.contiguous(), before.contiguous(), outputs[0].view(torch.int8), *outputs[1:], m, height, most,
            BLOCK=block, num_warps=max(1, min(block // 32, 4)),
        )  # fmt: skip
    return outputs


@tree_shape_op.register_fake
def _(parents: Tensor, before: Tensor, height: int, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _outputs(parents, most)


def _outputs(parents: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, m = parents.shape
    return (
        parents.new_empty((batch, 1 + m, 1 + m), dtype=torch.bool),
        parents.new_empty(batch, 1 + m, most),
        parents.new_empty(batch, m),
        parents.new_empty(batch, 1 + m),
        parents.new_empty(batch, 1 + m),
        parents.new_empty(batch, m),
    )


def tree_shape(parents: Tensor, before: Tensor, height: int, most: int) -> Shape:
    """The shape of the tree of each row.

    Args:
        parents: int64 [B, m], the parent entry of each node, which comes before the node.
        before: int64 [B], the position of the root.
        height: The largest depth that a node may have.
        most: Children of an entry that are listed, K.
    """
    return Shape(*tree_shape_op(parents, before, height, most), parents)
