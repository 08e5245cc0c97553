"""Kernel 17: dynamic trees, whose shape depends on probabilities; see `mmspec.drafters.tree.eagle2`.

One program per sequence grows one level, chooses the nodes, or works out the shape of a tree from the parents of its
nodes, so that the host need not know the shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.specialization import kernel


class Candidates(NamedTuple):
    """The candidates of a tree, level by level.

    Attributes:
        tokens: int64 [B, C].
        joints: float32 [B, C], the product of the probabilities along the path of each.
        parents: int64 [B, C], 0 for the root, i + 1 for candidate i, which comes before.
    """

    tokens: Tensor
    joints: Tensor
    parents: Tensor


class Beams(NamedTuple):
    """The candidates of a level that get children, in the order of the level.

    Attributes:
        place: int64 [B, k], their places in the level.
        tokens: int64 [B, k].
        joints: float32 [B, k].
        owners: int64 [B, k], the entries that they are children of.
    """

    place: Tensor
    tokens: Tensor
    joints: Tensor
    owners: Tensor


def grow_level_reference(
    tokens: Tensor,
    probs: Tensor,
    before: Beams | None,
    candidates: Candidates,
    start: int,
    previous: int,
    entry: int,
    count: int,
) -> Beams:
    """`grow_level` in torch."""
    batch, n, top = tokens.shape
    joints = probs.clamp(min=0.0) if before is None else before.joints[..., None] * probs.clamp(0.0, 1.0)
    joints = joints.nan_to_num(0.0).flatten(1)
    here = slice(start, start + n * top)
    candidates.tokens[:, here], candidates.joints[:, here] = tokens.flatten(1), joints
    parents = torch.zeros_like(tokens[..., 0]) if before is None else previous + 1 + before.place
    candidates.parents[:, here] = parents.repeat_interleave(top, dim=1)
    place = joints.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
    return Beams(place, tokens.flatten(1).gather(1, place), joints.gather(1, place), entry + place // top)


def choose_nodes_reference(candidates: Candidates, last: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`choose_nodes` in torch."""
    tokens, joints, parents = candidates
    place = joints.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
    entry = torch.zeros(len(tokens), tokens.shape[1] + 1, dtype=torch.int64, device=tokens.device)
    entry.scatter_(1, place + 1, torch.arange(1, count + 1, device=tokens.device).expand(len(tokens), -1))
    return torch.cat([last, tokens.gather(1, place)], dim=1), entry.gather(1, parents.gather(1, place))


@kernel
def _grow_level(
    tokens, shares, before_place, before_joints, c_tokens, c_joints, c_parents, place, b_tokens, b_joints, owners,
    n, max_children, first, previous, drafted, total, count,
    ROOT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    size = n * max_children
    inside, owner = lanes < size, lanes // max_children
    joint = tl.maximum(tl.load(shares + row * size + lanes, mask=inside, other=0.0), 0.0)
    parent = tl.zeros((BLOCK,), tl.int64)
    if not ROOT:
        of_parent = tl.load(before_joints + row * n + owner, mask=inside, other=0.0)
        joint = of_parent * tl.minimum(joint, 1.0)
        parent = previous + 1 + tl.load(before_place + row * n + owner, mask=inside, other=0)
    token = tl.load(tokens + row * size + lanes, mask=inside, other=0)
    there = row * total + first + lanes
    tl.store(c_tokens + there, token, mask=inside)
    tl.store(c_joints + there, joint, mask=inside)
    tl.store(c_parents + there, parent, mask=inside)
    rank = tl.zeros((BLOCK,), tl.int32)
    for other in range(0, size):
        theirs = tl.maximum(tl.load(shares + row * size + other), 0.0)
        if not ROOT:
            theirs = tl.load(before_joints + row * n + other // max_children) * tl.minimum(theirs, 1.0)
        rank += ((theirs > joint) | ((theirs == joint) & (other < lanes))).to(tl.int32)
    wanted = inside & (rank < count)
    at = row * count + tl.cumsum(wanted.to(tl.int32), 0) - 1
    tl.store(place + at, lanes.to(tl.int64), mask=wanted)
    tl.store(b_tokens + at, token, mask=wanted)
    tl.store(b_joints + at, joint, mask=wanted)
    tl.store(owners + at, drafted + owner.to(tl.int64), mask=wanted)


@kernel
def _choose_nodes(
    c_tokens, c_joints, c_parents, last, window, parents, total, count,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < total
    joint = tl.load(c_joints + row * total + lanes, mask=inside, other=-1.0)
    parent = tl.load(c_parents + row * total + lanes, mask=inside, other=0)
    token = tl.load(c_tokens + row * total + lanes, mask=inside, other=0)
    rank = tl.zeros((BLOCK,), tl.int32)
    for other in range(0, total):
        theirs = tl.load(c_joints + row * total + other)
        rank += ((theirs > joint) | ((theirs == joint) & (other < lanes))).to(tl.int32)
    wanted = inside & (rank < count)
    # The last one that is chosen, by which all others are known.
    lowest = tl.sum(tl.where(inside & (rank == count - 1), joint, 0.0), 0)
    latest = tl.sum(tl.where(inside & (rank == count - 1), lanes, 0), 0)
    above = tl.zeros((BLOCK,), tl.int64)  # chosen candidates before the parent
    for other in range(0, total):
        theirs = tl.load(c_joints + row * total + other)
        is_chosen = (theirs > lowest) | ((theirs == lowest) & (other <= latest))
        above += tl.where(is_chosen, (other < parent - 1).to(tl.int64), 0)
    node = tl.cumsum(wanted.to(tl.int32), 0) - 1
    tl.store(window + row * (count + 1), tl.load(last + row))
    tl.store(window + row * (count + 1) + 1 + node, token, mask=wanted)
    tl.store(parents + row * count + node, tl.where(parent > 0, above + 1, 0), mask=wanted)


@operator("mmspec::grow_level", mutates_args=("c_tokens", "c_joints", "c_parents"))
def grow_level_op(
    tokens: Tensor, probs: Tensor, before_place: Tensor | None, before_joints: Tensor | None, c_tokens: Tensor,
    c_joints: Tensor, c_parents: Tensor, start: int, previous: int, entry: int, count: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`grow_level` with plain tensors."""
    if chosen(tokens) == "torch":
        before = None
        if before_place is not None and before_joints is not None:
            before = Beams(before_place, before_place, before_joints, before_place)
        return grow_level_reference(
            tokens, probs, before, Candidates(c_tokens, c_joints, c_parents), start, previous, entry, count
        )
    batch, n, top = tokens.shape
    found = _beams(tokens, count)
    block = max(32, triton.next_power_of_2(n * top))
    with launchable(tokens):
        _grow_level[(batch,)](
            tokens.contiguous(), probs.contiguous(), before_place, before_joints, c_tokens, c_joints, c_parents,
            *found, n, top, start, previous, entry, c_tokens.shape[1], count,
            ROOT=before_place is None, BLOCK=block, num_warps=max(1, min(block // 32, 8)),
        )  # fmt: skip
    return found


@grow_level_op.register_fake
def _(tokens: Tensor, *rest: Tensor | int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = rest[-1]
    assert isinstance(count, int)
    return _beams(tokens, count)


def _beams(tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    place, chosen_tokens, owners = (tokens.new_empty(len(tokens), count) for _ in range(3))
    return place, chosen_tokens, tokens.new_empty(len(tokens), count, dtype=torch.float32), owners


def grow_level(
    tokens: Tensor,
    probs: Tensor,
    before: Beams | None,
    candidates: Candidates,
    start: int,
    previous: int,
    entry: int,
    count: int,
) -> Beams:
    """Adds the children of the entries of a level to the candidates, and chooses those that get children themselves.

    Args:
        tokens: int64 [B, n, top], the children of n entries.
        probs: float32 [B, n, top], their probabilities; NaN counts as 0.
        before: The entries; None for the root.
        candidates: All candidates; those of the level are written from place `start` on.
        previous: The place of the first candidate of the level before.
        entry: The first of the n entries, in the tree that the draft model reads.
        count: Candidates that get children, at most n * top: those of largest joint probability.
    """
    place, joints = (None, None) if before is None else (before.place, before.joints)
    return Beams(*grow_level_op(tokens, probs, place, joints, *candidates, start, previous, entry, count))


@operator("mmspec::choose_nodes", mutates_args=())
def choose_nodes_op(tokens: Tensor, joints: Tensor, parents: Tensor, last: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`choose_nodes` with plain tensors."""
    if chosen(tokens) == "torch":
        return choose_nodes_reference(Candidates(tokens, joints, parents), last, count)
    batch, total = tokens.shape
    window, found = tokens.new_empty(batch, count + 1), tokens.new_empty(batch, count)
    block = max(32, triton.next_power_of_2(total))
    with launchable(tokens):
        _choose_nodes[(batch,)](
            tokens, joints, parents, last.contiguous(), window, found, total, count,
            BLOCK=block, num_warps=max(1, min(block // 32, 8)),
        )  # fmt: skip
    return window, found


@choose_nodes_op.register_fake
def _(tokens: Tensor, joints: Tensor, parents: Tensor, last: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return tokens.new_empty(len(tokens), count + 1), tokens.new_empty(len(tokens), count)


def choose_nodes(candidates: Candidates, last: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The tree of the most likely candidates, in their order.

    Args:
        candidates: The candidates; none is likelier than its parent.
        last: int64 [B, 1], the token of the root.
        count: Nodes, m, at most C.

    Returns:
        The tokens of the entries, int64 [B, 1 + m], the root's first; and the parent entry of each node, int64 [B, m].
    """
    found: tuple[Tensor, Tensor] = choose_nodes_op(*candidates, last, count)
    return found
