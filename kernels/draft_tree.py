"""Kernel 12: a tree of drafts from an n-gram table; see `mmspec.drafters.tree.ngram_tree`.

One program per sequence. It fills the tree level by level: each node is one of the candidates after its parent, so that
in torch every level would be a dozen launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.specialization import kernel


def draft_tree_reference(
    tokens: Tensor,
    rows: Tensor,
    positions: Tensor,
    table: Tensor,
    forced: Tensor | None,
    plan: Tensor,
    levels: Tensor,
    line: int,
) -> Tensor:
    """`draft_tree` in torch, node by node."""
    batch, m = len(rows), plan.shape[1]
    window = torch.zeros(batch, m + 1, dtype=torch.int64, device=tokens.device)
    bounds, best = levels.tolist(), table.long()
    for row in range(batch):
        own, start = tokens[int(rows[row])].tolist(), int(positions[row, 0])
        found = [max(own[start - 1], 0)]
        for depth, (first, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
            position = start + depth
            above = own[start - 2] if start > 1 else -1
            if line:
                above = own[position - line] if position >= line and depth < line else -1
            only = -1
            if forced is not None:
                must = forced if forced.ndim == 1 else forced[row]
                only = int(must[min(position, len(must) - 1)])
            for node in range(first, end):
                parent, rank, upper = plan[:, node].tolist()
                left, up = found[parent], found[upper] if upper >= 0 else above
                left = up if line and position % line == 0 and up >= 0 else left
                higher = up if up >= 0 else left
                candidates = [int(best[up, left]), int(best[-1, left]), higher, left, int(best[-1, higher])]
                distinct = [token for token in dict.fromkeys(candidates) if token >= 0]
                token = distinct[rank] if rank < len(distinct) else distinct[0]
                found.append(only if only >= 0 else token)
        window[row] = torch.tensor(found)
    return window


@triton.jit
def _take(candidate, repeated, rank, seen, first, token):
    """Counts a candidate unless it is repeated or none, and takes it if it is the one of this rank."""
    new = (candidate >= 0) & (repeated == 0)
    token = tl.where(new & (seen == rank), candidate, token)
    first = tl.where(new & (seen == 0), candidate, first)
    return seen + new.to(tl.int32), first, token


@kernel
def _draft_tree(
    tokens, rows, positions, table, forced, plan, levels, window,
    m, most, line, vocab, height, width, forced_row, forced_last,
    LINES: tl.constexpr, FORCED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    start = tl.load(positions + row * width).to(tl.int32)
    own = tokens + tl.load(rows + row) * most
    second = tl.load(own + start - 2, mask=start > 1, other=-1)
    out = window + row * (m + 1)
    tl.store(out, tl.maximum(tl.load(own + start - 1), 0))
    none = table + vocab.to(tl.int64) * vocab  # the row of "no upper neighbor"
    for depth in range(0, height):
        tl.debug_barrier()  # the level above is read by other threads than those that have written it
        first_node, end = tl.load(levels + depth).to(tl.int32), tl.load(levels + depth + 1).to(tl.int32)
        node = first_node + lanes
        inside = node < end
        parent = tl.load(plan + node, mask=inside, other=0)
        rank = tl.load(plan + m + node, mask=inside, other=0)
        upper = tl.load(plan + 2 * m + node, mask=inside, other=-1)
        left = tl.load(out + parent, mask=inside, other=0)
        position = start + depth
        above = second
        if LINES:
            above = tl.load(own + position - line, mask=(depth < line) & (position >= line), other=-1)
        up = tl.where(upper >= 0, tl.load(out + tl.maximum(upper, 0), mask=inside, other=-1), above)
        if LINES:
            left = tl.where((position % line == 0) & (up >= 0), up, left)
        higher = tl.where(up >= 0, up, left)
        pair = tl.load(table + tl.where(up >= 0, up, vocab) * vocab + left, mask=inside, other=0).to(tl.int64)
        after_left = tl.load(none + left, mask=inside, other=0).to(tl.int64)
        after_higher = tl.load(none + higher, mask=inside, other=0).to(tl.int64)
        seen, first, token = tl.zeros((BLOCK,), tl.int32), left * 0 - 1, left * 0 - 1
        seen, first, token = _take(pair, lanes * 0, rank, seen, first, token)
        repeated = after_left == pair
        seen, first, token = _take(after_left, repeated, rank, seen, first, token)
        repeated = (higher == pair) | (higher == after_left)
        seen, first, token = _take(higher, repeated, rank, seen, first, token)
        repeated = (left == pair) | (left == after_left) | (left == higher)
        seen, first, token = _take(left, repeated, rank, seen, first, token)
        repeated = (after_higher == pair) | (after_higher == after_left)
        repeated = repeated | (after_higher == higher) | (after_higher == left)
        seen, first, token = _take(after_higher, repeated, rank, seen, first, token)
        token = tl.where(seen > rank, token, first)
        if FORCED:
            only = tl.load(forced + row * forced_row + tl.minimum(position, forced_last))
            token = tl.where(only >= 0, only, token)
        tl.store(out + 1 + node, token, mask=inside)


@operator("mmspec::draft_tree", mutates_args=())
def draft_tree(
    tokens: Tensor,
    rows: Tensor,
    positions: Tensor,
    table: Tensor,
    forced: Tensor | None,
    plan: Tensor,
    levels: Tensor,
    line: int,
) -> Tensor:
    """Drafts a tree of each row from `mmspec.drafters.ngram.NGramTable.candidates`.

    Args:
        tokens: int64 [rows, N], the tokens so far, contiguous.
        rows: int64 [B], the row of `tokens` of each row.
        positions: int64 [B, W]; the first one is at least 1, and that of the nodes of depth 1.
        table: Integer [V + 1, V], contiguous.
        forced: int64 [n] or [B, n], the token that a position is forced to, -1 for none; positions past the end count
            as the last. None if no position is forced.
        plan: int64 [3, m], of each node, level by level: its parent entry; its rank among its siblings; and the entry
            that is its upper neighbor, or -1 if that is no entry of the tree.
        levels: int64 [D + 1], the first node of each level, and m.
        line: Positions per line of a token map; 0 for a stream, whose upper neighbor is the token before the last.

    Returns:
        int64 [B, 1 + m], the last token of each row and the nodes.
    """
    if chosen(tokens) == "torch":
        return draft_tree_reference(tokens, rows, positions, table, forced, plan, levels, line)
    m, height = plan.shape[1], len(levels) - 1
    window = tokens.new_empty((len(rows), m + 1))
    last = 0 if forced is None else forced.shape[-1] - 1
    with launchable(tokens):
        _draft_tree[(len(rows),)](
            tokens, rows, positions.contiguous(), table, forced, plan, levels, window,
            m, tokens.shape[1], line, table.shape[1], height, positions.shape[1],
            last + 1 if forced is not None and forced.ndim == 2 else 0, last,
            LINES=line > 0, FORCED=forced is not None, BLOCK=max(32, triton.next_power_of_2(m)), num_warps=1,
        )  # fmt: skip
    return window


@draft_tree.register_fake
def _(
    tokens: Tensor, rows: Tensor, positions: Tensor, table: Tensor, forced: Tensor | None, plan: Tensor, levels: Tensor,
    line: int,
) -> Tensor:  # fmt: skip
    return tokens.new_empty((rows.shape[0], plan.shape[1] + 1))
