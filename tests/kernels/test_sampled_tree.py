"""Trees that are sampled node by node with one call per depth, against those of one call whenever a node needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fixed_runner import FixedRunner, trees_of_kernels_and_host
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.methods.dyspec.drafter import DySpecDrafter
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.tree import WithoutReplacement
from mmspec.testing.exactness import ExactnessResult, check

pytest.importorskip("triton")

from mmspec.kernels.softmax_stats import stats_of_probs
from mmspec.methods.dyspec import kernel as sampled_tree
from mmspec.methods.dyspec.kernel import SampledTree, sample_depth

ROWS = 4


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(("vocab", "m"), [(300, 6), (5, 9), (128, 1)])
def test_depths_are_those_of_the_reference(
    device: torch.device, vocab: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With equal values, rows whose tokens are all children already, and a distribution that is not one."""
    monkeypatch.setattr(sampled_tree, "CHUNK", 128)
    results: list[list[Tensor]] = []
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        generator, tree = torch.Generator().manual_seed(7), None
        results.append([])
        for depth in range(3):
            n = m if depth else 1
            weights = torch.rand(ROWS, n, vocab, generator=generator) ** 8
            weights[1] = torch.nn.functional.one_hot(torch.arange(n) % vocab, vocab)
            weights[2] = 1.0 / 4 * (torch.arange(vocab) < 4)  # of equal tokens, and thus of entries of equal value
            weights[3, n // 2] = torch.nan
            p = stats_of_probs((weights / weights.sum(-1, keepdim=True)).to(device))
            u = torch.rand(ROWS, 3, m, generator=generator).to(device)[:, depth]
            tree = sample_depth(p, u, torch.full((ROWS, 1), 3, device=device), tree, depth)
            results[-1] += list(tree)
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.allclose(ours, theirs, atol=0, rtol=1e-5, equal_nan=True)
    written = [(~tree.isnan()).all(-1) for tree in results[0][3::4]]
    has_children = [(parents[..., None] == torch.arange(m, device=device)).any(1) for parents in results[0][1::4]]
    assert all(torch.equal(one[:3], other[:3]) for one, other in zip(written, has_children, strict=True))


LARGE = [pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((12, 5), (15, 8))]


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(("nodes", "depth"), [(7, 3), (5, 8), (3, 1), (9, 2), (1, 3), *LARGE])
def test_trees_are_those_of_the_host(
    device: torch.device, nodes: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same nodes in the same order, q of all that have children, and random numbers; in `depth` calls at most."""
    state, ours, theirs = trees_of_kernels_and_host(
        lambda: DySpecDrafter(FixedRunner(device), nodes, depth), device, monkeypatch
    )
    assert torch.equal(ours.tokens, theirs.tokens) and np.array_equal(ours.tree.parents, theirs.tree.parents)
    assert np.array_equal(ours.tree.depth, theirs.tree.depth) and np.array_equal(ours.tree.order, theirs.tree.order)
    assert ours.tree.height == min(depth, nodes) >= theirs.tree.height and torch.equal(ours.tree.sees, theirs.tree.sees)
    assert ours.window is not None and torch.equal(ours.window[:, 1:], ours.tokens) and ours.draws is not None
    assert isinstance(ours.siblings, WithoutReplacement) and isinstance(theirs.siblings, WithoutReplacement)
    q, wanted = ours.siblings.probs, theirs.siblings.probs
    for row, entry in zip(*np.nonzero((theirs.tree.children > 0).any(-1).cpu().numpy()), strict=True):
        assert torch.allclose(q[row, entry], wanted[row, entry], atol=1e-6)
    numbers, _ = state.tree_draws(theirs.tree, np.zeros((3, 1), dtype=np.int64))
    for stream in range(4):
        assert torch.equal(ours.draws.of_nodes(stream), numbers.of_nodes(stream))


# --- Exactness, with the torch reference of the kernel --------------------------------------------------------------

RECIPES = ["tree-sampled:window=6", "tree-sampled:window=8,depth=2,guidance=2", "tree-sampled:window=5,layers=1"]


def checked(recipe: str, patch: pytest.MonkeyPatch) -> ExactnessResult:
    patch.setattr(TorchOps, "by_kernels", True)
    return check(recipe, SamplingParams(temperature=1.6), samples=60_000, layout=Layout(length=4, width=2), seed=1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_call_per_depth_keeps_the_distribution(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = checked(recipe, monkeypatch)
    assert verdict.ok, verdict


def likelier_first(before: SampledTree, q: Tensor) -> SampledTree:
    """Siblings at the root in the order of their probability, as if that were the order in which they were sampled."""
    tokens = before.window[:, 1:]
    order = q[:, 0].gather(1, tokens).argsort(dim=1, descending=True, stable=True)
    return before._replace(window=torch.cat([before.window[:, :1], tokens.gather(1, order)], dim=1))


def displaced_by_their_own_token(before: SampledTree, q: Tensor) -> SampledTree:
    """The first node at the root is dropped if the next one is likelier."""
    tokens = before.window[:, 1:]
    unlikely = q[:, 0].gather(1, tokens[:, :1]) < q[:, 0].gather(1, tokens[:, 1:2])
    left = torch.where(unlikely, torch.cat([tokens[:, 1:], tokens[:, -1:]], dim=1), tokens)
    return before._replace(window=torch.cat([before.window[:, :1], left], dim=1))


@pytest.mark.parametrize("twin", [likelier_first, displaced_by_their_own_token])
def test_trees_of_depths_that_are_reordered_or_pruned_are_caught(twin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = sampled_tree.sample_depth

    def broken(q: Any, u: Tensor, last: Tensor, before: SampledTree | None, depth: int) -> SampledTree:
        found = own(q, u, last, before, depth)
        return twin(found, q.dense()) if depth == 0 else found

    monkeypatch.setattr(sampled_tree, "sample_depth", broken)
    verdict = checked(RECIPES[0], monkeypatch)
    assert not verdict.ok, verdict
