"""Trees whose shape is chosen while decoding: exact, and close to the best fixed shape on a simulated clock."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmspec.decoding.adaptive_branching import AdaptiveBranching, Branches
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.knobs import nodes
from mmspec.recipes import parse
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import TreeVerdict
from mmspec.testing.exactness import check

AUTO = ["tree:branch=auto", "tree-chains:branch=auto", "tree-table:branch=auto", "tree-medusa:branch=auto"]


@pytest.mark.parametrize("recipe", AUTO)
def test_the_distribution_is_kept(recipe: str) -> None:
    """Of 8,000 samples of 81 sequences a bias of 0.03 towards the draft model is found nearly always."""
    result = check(recipe, SamplingParams(0.8, top_p=0.9), samples=8_000, layout=Layout(4, 2), seed=5)
    assert result.ok and result.tokens_per_call > 1, result


@pytest.mark.slow
@pytest.mark.parametrize("recipe", AUTO)
def test_the_distribution_is_kept_in_single_rows(recipe: str) -> None:
    """Batch size 1, where the shape depends on that row's own acceptances; power as in `test_exactness`."""
    result = check(recipe, SamplingParams(0.8), samples=600, vocab_size=2, layout=Layout(4), batch=1, seed=5)
    assert result.ok and result.tokens_per_call > 1, result


class Simulation:
    """Windows of a tree on a clock: siblings of rank i are accepted with `chance[i]`."""

    def __init__(self, chance: list[float], cost: tuple[float, float, float], seed: int = 0) -> None:
        self.now = 0.0
        self._chance, self._cost = chance, cost
        self._rng = np.random.default_rng(seed)
        self._state = BatchState([0], Layout(10_000), 32, torch.device("cpu"))

    def window(self, shape: Branches) -> TreeVerdict:
        """Verifies one tree, and lets its time pass."""
        path, order, level = [], 0, 1
        for depth, count in enumerate(shape):
            hits = [r for r in range(count) if self._rng.random() < self._chance[r]]
            if not hits:
                break
            order = order * count + hits[0]
            path.append(level + order)
            level += int(np.prod(shape[: depth + 1]))
        fixed, by_depth, by_node = self._cost
        self.now += (fixed + by_depth * len(shape) + by_node * nodes(shape)) * self._rng.uniform(0.95, 1.05)
        accepted = np.array([len(path)])
        whole = np.array([path + [len(shape)] * (len(shape) - len(path))], dtype=np.int64)
        return TreeVerdict(torch.empty(0), accepted, accepted, Numbers(whole), torch.empty(0))

    def rate(self, shape: Branches) -> float:
        """The expected tokens per second of a fixed shape."""
        hit = [1 - np.prod(1 - np.array(self._chance[:count])) for count in shape]
        fixed, by_depth, by_node = self._cost
        return float((1 + np.cumprod(hit).sum()) / (fixed + by_depth * len(shape) + by_node * nodes(shape)))

    def run(self, policy: AdaptiveBranching, windows: int) -> float:
        """Tokens per second."""
        tokens = 0
        for _ in range(windows):
            tokens += self.step(policy, policy.choose())
        return tokens / self.now

    def step(self, policy: AdaptiveBranching, shape: Branches) -> int:
        """Verifies a tree, and returns the tokens that it gains."""
        verdict = self.window(shape)
        policy.observe(verdict, self._state, shape)
        return 1 + int(verdict.accepted[0])


FIXED = [(1,), (1, 1, 1, 1), (1,) * 8, (3, 2, 1), (2, 2, 2, 1), (8,), (4, 2, 2), (3, 1, 1, 1, 1)]


@pytest.mark.parametrize("cost", [(1.0, 0.05, 0.01), (1.0, 0.4, 0.01), (1.0, 0.05, 0.1)])
@pytest.mark.parametrize("chance", [[0.9] + [0.5] * 7, [0.5] + [0.3] * 7, [0.2] + [0.15] * 7, [0.4] + [0.0] * 7])
def test_close_to_the_best_fixed_shape(chance: list[float], cost: tuple[float, float, float]) -> None:
    simulation = Simulation(chance, cost)
    rate = simulation.run(AdaptiveBranching(31, 8, lambda: simulation.now), 800)
    fixed = [simulation.rate(shape) for shape in FIXED]
    assert rate > 0.93 * max(fixed), (rate, fixed)


def test_acceptance_is_counted_by_rank() -> None:
    chance = [0.6, 0.4, 0.2] + [0.1] * 5
    simulation = Simulation(chance, (1.0, 0.05, 0.01))
    policy = AdaptiveBranching(31, 8, lambda: simulation.now)
    simulation.run(policy, 3000)
    assert policy.acceptance()[:2] == pytest.approx(chance[:2], abs=0.05)


def test_runs_in_other_threads_choose_shapes_meanwhile() -> None:
    """A tree is counted with its own shape, not with the one that was chosen last."""
    simulation = Simulation([0.9] * 8, (1.0, 0.05, 0.01))
    policy = AdaptiveBranching(31, 8, lambda: simulation.now)
    shape = policy.choose()
    while (others := policy.choose()) == shape:
        simulation.step(policy, others)
    assert set(shape) == {1} != set(others)
    before = policy._tested.copy()
    simulation.step(policy, shape)
    tested = policy._tested - before
    assert tested[0] >= 1 and not tested[1:].any()


def test_entries_of_a_tree_have_the_order_that_is_counted() -> None:
    tree = Tree.branching((3, 2, 1), torch.device("cpu"))
    assert tree.parents[0].tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9]


def test_the_recipe_has_the_largest_size() -> None:
    recipe = parse("tree:branch=auto")
    assert recipe.window == 32 and recipe.depth == 8 and str(recipe) == "tree:branch=auto"
