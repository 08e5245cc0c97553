"""The kernels of dynamic trees, against their references and the torch code of the drafter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixed_runner import VOCAB, FixedRunner, trees_of_kernels_and_host
from torch import Tensor

from mmspec.drafters.tree.eagle2 import DynamicTreeDrafter
from mmspec.sampling.tree import Tree

pytest.importorskip("triton")

from mmspec.kernels import grow_tree, likeliest
from mmspec.kernels.softmax_stats import stats_of_probs
from mmspec.kernels.tree_shape import tree_shape


@pytest.mark.parametrize(("vocab", "count"), [(300, 5), (7, 7), (130, 1)])
def test_the_likeliest_tokens(device: torch.device, vocab: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many equal probabilities, of which the first ones are taken, and zeros."""
    monkeypatch.setattr(likeliest, "CHUNK", 128)
    weights = torch.randint(4, (3, 2, vocab)).float()
    p = stats_of_probs((weights / weights.sum(-1, keepdim=True)).to(device))
    found = likeliest.likeliest(p, count)
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    for ours, theirs in zip(found, likeliest.likeliest(p, count), strict=True):
        assert torch.equal(ours, theirs) if ours.dtype == torch.int64 else torch.allclose(ours, theirs)


def test_levels_and_nodes_are_those_of_the_reference(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three levels, with equally likely candidates and probabilities that are not numbers."""
    results = []
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        torch.manual_seed(2)
        rows, top, k = 3, 4, 3
        total, found = top + 2 * k * top, list[Tensor]()
        numbers = torch.zeros(2, rows, total, dtype=torch.int64, device=device)
        candidates = grow_tree.Candidates(numbers[0], torch.zeros(rows, total, device=device), numbers[1])
        beams, start, previous = None, 0, 0
        for level, n in enumerate((1, k, k)):
            probs = (torch.randint(1, 4, (rows, n, top)) / 4).to(device)
            if level == 1:
                probs[0, 1, 2] = torch.nan
            tokens = torch.randint(9, (rows, n, top)).to(device)
            width = k if level < 2 else 0
            beams = grow_tree.grow_level(tokens, probs, beams, candidates, start, previous, 5 * level, width)
            previous, start = start, start + n * top
            found += list(beams) if width else []
        last = torch.full((rows, 1), 7, device=device)
        window, parents = grow_tree.choose_nodes(candidates, last, 9)
        before = torch.tensor([3, 0, 11], device=device)
        shape = tree_shape(parents, before, 3, top)
        results.append([*found, *candidates, window, parents, *shape])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    sees, children, order, depth, after, at, parents = results[0][-7:]
    tree = Tree(parents.cpu().numpy(), torch.device("cpu"))
    assert torch.equal(sees.cpu(), tree.sees) and np.array_equal(depth.cpu().numpy(), tree.depth)
    assert torch.equal(children.cpu()[..., : tree.children.shape[2]], tree.children)
    assert np.array_equal(order.cpu().numpy(), tree.order[:, 1:]) and len(set(parents.flatten().tolist())) > 2
    assert torch.equal(after, before[:, None] + 1 + depth) and torch.equal(at, after[:, 1:] - 1)


@pytest.mark.parametrize(
    ("joints", "parents", "count", "chosen"),
    [
        # The likeliest candidate that is not chosen comes before a parent, after one, between nodes, and there is none.
        ([0.1, 0.9, 0.5, 0.4], [0, 0, 2, 2], 3, [0, 1, 1]),
        ([0.9, 0.1, 0.5, 0.4], [0, 0, 1, 1], 3, [0, 1, 1]),
        ([0.8, 0.2, 0.6, 0.1, 0.5], [0, 0, 1, 1, 3], 3, [0, 1, 2]),
        ([0.8, 0.6, 0.5], [0, 1, 2], 3, [0, 1, 2]),
        # Of equally likely ones the first are chosen: two before a parent, one of two, and none of those after it.
        ([0.2, 0.2, 0.9, 0.5], [0, 0, 0, 3], 2, [0, 1]),
        ([0.4, 0.4, 0.9, 0.5], [0, 0, 0, 3], 3, [0, 0, 2]),
        ([0.9, 0.9, 0.9, 0.9], [0, 0, 1, 2], 3, [0, 0, 1]),
        ([0.0, 0.0, 0.7, 0.7], [0, 0, 0, 3], 3, [0, 0, 2]),
    ],
)
def test_parents_beside_candidates_that_are_not_chosen(
    device: torch.device, joints: list[float], parents: list[int], count: int, chosen: list[int]
) -> None:
    numbers = torch.tensor([parents, parents], device=device)
    tokens = torch.arange(10, 10 + len(joints), device=device).expand(2, -1).contiguous()
    candidates = grow_tree.Candidates(tokens, torch.tensor([joints, joints], device=device), numbers)
    window, found = grow_tree.choose_nodes(candidates, torch.tensor([[7], [8]], device=device), count)
    wanted_window, wanted = grow_tree.choose_nodes_reference(candidates, torch.tensor([[7], [8]], device=device), count)
    assert found.tolist() == wanted.tolist() == [chosen, chosen] and torch.equal(window, wanted_window)


@pytest.mark.parametrize(
    ("nodes", "depth", "top", "kept"),
    [(8, 3, 3, 20), (5, 4, 2, 20), (3, 1, 4, 20), (12, 5, 1, 20), (20, 2, 4, 20), (2, 3, 2, 20), (20, 3, 4, 2)],
)
def test_trees_are_those_of_the_drafter(
    device: torch.device, nodes: int, depth: int, top: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where fewer tokens are kept than children are wanted, so that some are equally unlikely."""
    state, ours, theirs = trees_of_kernels_and_host(
        lambda: DynamicTreeDrafter(FixedRunner(device, kept), nodes, depth, top, VOCAB), device, monkeypatch
    )
    assert torch.equal(ours.tokens, theirs.tokens) and np.array_equal(ours.tree.parents, theirs.tree.parents)
    assert (
        np.array_equal(ours.tree.depth, theirs.tree.depth)
        and ours.tree.height == min(depth, nodes) >= theirs.tree.height
    )
    assert torch.equal(ours.tree.sees, theirs.tree.sees) and np.array_equal(ours.tree.order, theirs.tree.order)
    assert ours.window is not None and torch.equal(ours.window[:, 1:], ours.tokens) and ours.draws is not None
    numbers, _ = state.tree_draws(theirs.tree, np.zeros((3, 1), dtype=np.int64))
    for stream in range(4):
        assert torch.equal(ours.draws.of_nodes(stream), numbers.of_nodes(stream))
    there = ours.tree.positions(state.length - 1, 1, 1 + ours.tokens.shape[1])
    assert np.array_equal(there.host, (state.length - 1)[:, None] + theirs.tree.depth[:, 1:])
