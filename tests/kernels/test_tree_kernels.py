"""The kernels of tree drafts and of token recycling, against the torch code of the drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.adaptive_branching import FixedBranching
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.drafters.ngram import NGramTable
from mmspec.drafters.token_init import repeat_left, repeat_up
from mmspec.drafters.tree import specinfer
from mmspec.drafters.tree.ngram_tree import NGramTreeDrafter, tree_plan
from mmspec.methods.recycle.token_init import Recycle
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.tree import Tree

pytest.importorskip("triton")

from mmspec.kernels import fused_sampler, siblings, softmax_stats, token_init, tree
from mmspec.kernels.draft_tree import draft_tree
from mmspec.methods.recycle import kernel as recycle

VOCAB, LENGTH, CPU = 7, 30, torch.device("cpu")


def state_of(line: int, forced: str | None = None, lengths: Sequence[int] = (1, 9, 26)) -> BatchState:
    """A batch of rows with these numbers of tokens."""
    constraint = None
    if forced is not None:
        kinds = torch.zeros(LENGTH, dtype=torch.int64)
        kinds[[3, 12, 28]] = 1
        allowed = torch.ones(2, VOCAB, dtype=torch.bool)
        allowed[1] = torch.arange(VOCAB) == 6
        rows = torch.stack([kinds.roll(row) for row in range(len(lengths))])
        constraint = Constraint(kinds if forced == "all rows" else rows, allowed)
    state = BatchState(range(len(lengths)), Layout(LENGTH, line or None, constraint), 9, CPU)
    state._tokens[:] = torch.randint(VOCAB, state._tokens.shape)
    state._lengths[:] = lengths
    return state


@pytest.mark.parametrize("branch", [(2, 1), (6, 2, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize(
    ("line", "forced"), [(0, None), (1, None), (2, "each row"), (3, None), (8, "all rows")]
)  # a line of one token, lines shorter and longer than the tree
def test_a_tree_of_a_table_is_the_drafter_s(
    device: torch.device, line: int, forced: str | None, branch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few tokens in the table, so that candidates repeat and run out."""
    table = NGramTable(torch.randint(3, (VOCAB + 1, VOCAB)).to(torch.int32))
    state, iteration = state_of(line, forced), np.full((3, 1), 4)
    with monkeypatch.context() as patch:
        patch.setenv("MMSPEC_KERNELS", "torch")
        wanted = NGramTreeDrafter(table, FixedBranching(branch), VOCAB, CPU).propose(state, iteration).tokens
    assert len(set(wanted.flatten().tolist())) > 2, "a weak test: few tokens"
    constraint = state.layout.constraint
    must = None if constraint is None else torch.from_numpy(constraint.forced.tokens).to(device)
    plan, levels = tree_plan(Tree.branching(branch, device), branch, line, device)
    order = torch.tensor([2, 0, 1])
    storage, positions = state._tokens[[1, 2, 0]].to(device), torch.from_numpy(state.positions(len(branch) + 1))
    given = storage, order.to(device), positions.to(device), table.best.to(device), must, plan, levels, line
    found = draft_tree(*given)
    assert torch.equal(found[:, 1:].cpu(), wanted) and torch.equal(found[:, :1].cpu(), state.last())
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    assert torch.equal(draft_tree(*given), found)


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("vocab", [3, 300])
def test_siblings_are_those_of_the_core(
    device: torch.device, vocab: int, distinct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two levels; more children than tokens in the smaller vocabulary."""
    monkeypatch.setattr(siblings, "CHUNK", 128)
    batch, branch = 3, (4, 2)
    shape = Tree.branching(branch, device)
    logits = 2 * torch.randn(batch, 5, vocab)
    logits[0, 0, 1:] = -torch.inf  # one token alone
    probs = logits.softmax(-1)
    u = torch.rand(batch, 12)
    draw = specinfer.sample_without_replacement if distinct else specinfer.sample_independent
    wanted = [draw(probs[:, :1], u[:, None, :4]), draw(probs[:, 1:], u[:, 4:].unflatten(1, (4, 2)))]
    q = softmax_stats.stats_of_probs(probs.to(device))
    numbers = u.to(device)
    for mode in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", mode)
        window = torch.full((batch, 13), -1, device=device)
        written = torch.full((batch, 5, vocab), torch.nan, device=device)
        siblings.sample_siblings(q[:, :1], numbers, window, written, 1, 0, 4, distinct)
        siblings.sample_siblings(q[:, 1:], numbers, window, written, 5, 1, 2, distinct)
        assert torch.equal(window[:, 1:].cpu(), torch.cat(wanted, dim=1)) and (window[:, 0] == -1).all()
        assert torch.allclose(written.cpu(), probs, atol=1e-6)
    if distinct and vocab > 4:
        assert all(len(set(row.tolist())) == 4 for row in wanted[0][1:])
    assert shape.parents.shape == (1, 12)


def test_a_sibling_without_a_distribution_is_reported(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probability is NaN, which no random number is below: it would be passed over."""
    ones = torch.ones(1, 3, device=device)
    settings = fused_sampler.Settings(ones, ones[:, 0].contiguous(), None, None, None, None)
    logits = torch.zeros(1, 3, 9, device=device)
    p = fused_sampler.fused_sample(logits, None, settings, ones / 2).stats
    shape, u = Tree.branching((2,), device), torch.full((1, 2), 0.5, device=device)
    for broken in (False, True):
        if broken:
            logits[0, 0, 4] = torch.nan
        q = fused_sampler.fused_sample(logits[:, :1], None, settings._replace(scale=ones[:, :1]), ones[:, :1]).stats
        window, probs = torch.zeros(1, 3, dtype=torch.int64, device=device), torch.zeros(1, 1, 9, device=device)
        siblings.sample_siblings(q, u, window, probs, 1, 0, 2, True)
        assert bool(((window >= 0) & (window < 9)).all())
        branches = tree.Branches(window[:, 1:], shape.children, 1, tree.WITHOUT_REPLACEMENT, probs)
        clean = softmax_stats.stats_of_probs(torch.full((1, 3, 9), 1 / 9, device=device)) if broken else p
        for mode in ("triton", "torch"):
            monkeypatch.setenv("MMSPEC_KERNELS", mode)
            assert tree.walk_tree(clean, branches, u, u).found[0, 2] == broken
        monkeypatch.setenv("MMSPEC_KERNELS", "triton")


@pytest.mark.parametrize("line", [0, 1, 3, 8])
@pytest.mark.parametrize("width", [1, 6])
@pytest.mark.parametrize("ends", [False, True])
def test_recycled_tokens_are_the_core_s(
    device: torch.device, line: int, width: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two windows store, and the drafts that are made of it, with rows that end in the window or have ended."""
    fallback: Any = repeat_up if line else repeat_left
    kept, state = Recycle(3, VOCAB, fallback, CPU), state_of(line)
    state._limits[:] = state.length + [0, width + 1, 2] if ends else LENGTH
    table = torch.full(kept.table.shape, -1, dtype=torch.int32, device=device)
    order = torch.tensor([2, 0, 1], device=device)
    for _ in range(2):
        draws = state.rng.window(state.positions(width), 0)
        p = torch.randn(3, width, VOCAB).softmax(-1)
        drafts = torch.randint(3, (3, width - 1))  # repeated neighbors: the last of them is stored
        kept.update(Verdict(drafts, Numbers(np.zeros(3, dtype=np.int64)), p, Draft(drafts, p)), state, draws)
        ints = torch.zeros(3, width, 5, dtype=torch.int32)
        ints[..., softmax_stats.BEST] = p.argmax(-1)
        storage, positions = state._tokens[[1, 2, 0]].to(device), torch.from_numpy(draws.positions.host).to(device)
        wide = torch.cat([drafts, drafts], dim=1).to(device)[:, : width - 1]  # not contiguous
        given = storage, order, positions, torch.from_numpy(state.limits().host).to(device), wide, ints.to(device)
        again = table.clone()
        recycle.recycle(*given, table, line, VOCAB)
        with monkeypatch.context() as patch:
            patch.setenv("MMSPEC_KERNELS", "torch")
            recycle.recycle(*given, again, line, VOCAB)
        assert torch.equal(table.cpu(), kept.table) and torch.equal(again, table)
        assert bool((table[0] == -1).all()) == ends
    positions = torch.from_numpy(state.positions(6)).to(device)
    drafting: tuple[Any, ...] = storage, order, positions, None, token_init.RECYCLE, line, VOCAB, table
    found = token_init.draft_window(*drafting).window
    with monkeypatch.context() as patch:
        patch.setenv("MMSPEC_KERNELS", "torch")
        assert torch.equal(token_init.draft_window(*drafting).window, found)
    assert torch.equal(found[:, 1:].cpu(), drafted_by(kept, state, line))


def drafted_by(kept: Recycle, state: BatchState, line: int) -> Tensor:
    """The drafts of the torch code, int64 [3, 5]."""
    from mmspec.drafters.token_init import InitDrafter

    none = Draft(torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, 5, VOCAB))
    draws = state.rng.window(state.positions(6), 0)
    return InitDrafter(kept).extend(state, none, Numbers(np.zeros(3, dtype=np.int64)), draws).tokens
