"""Drafts are as good as their drafter: a drafter that equals the target has all of its drafts accepted.

Drafts of any quality keep the target distribution, so that the checks of exactness see none of this.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from numpy.typing import NDArray
from torch import Tensor

from mmspec.continuous.jacobi import LatentJacobi
from mmspec.continuous.sampler import LatentSampler
from mmspec.decoding.adaptive_branching import FixedBranching
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.target import EarlyExit
from mmspec.drafters.tree.eagle2 import DynamicTreeDrafter
from mmspec.drafters.tree.specinfer import DISTINCT, StaticTreeDrafter
from mmspec.heads.eagle import EagleHead
from mmspec.methods.dyspec.drafter import DySpecDrafter
from mmspec.methods.hydra.head import HydraHeads
from mmspec.methods.medusa.head import MedusaHeads
from mmspec.methods.prompt.head import PromptTokens
from mmspec.recipes import parse
from mmspec.sampling.k_seq import smallest_rho
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree import Tree, TreeDraft
from mmspec.testing.latents import run_toy
from mmspec.testing.toys import FEATURES, ToyHead, ToyTarget

V, ROWS = 4, 200


def decode(recipe: str, length: int, target: type[ToyTarget] = ToyTarget) -> Stats:
    """Rows of a toy whose draft model is the toy itself, and whose heads predict the feature that they read."""
    resources = DraftResources(
        draft_model=lambda: target(ROWS, V, length, 5),
        draft_sampling=[SamplingParams()] * ROWS,
        heads={"medusa": MedusaHeads(V, FEATURES, 6), "eagle": copying_head(), "prompt": PromptTokens(V, FEATURES, 3)},
    )
    settings = [SamplingParams()] * ROWS
    return run(target(ROWS, V, length, 5), parse(recipe), Layout(length), settings, range(ROWS), resources).stats


def copying_head() -> EagleHead:
    """An EAGLE head that predicts the feature that it reads, as untrained Medusa heads do."""
    head = EagleHead(V, FEATURES, 24, 2, grid_size=None, prefix=0, max_position_embeddings=64)
    for p in head.parameters():
        torch.nn.init.zeros_(p)
    with torch.no_grad():
        head.fc.weight[:, FEATURES:] = torch.eye(FEATURES)
    return head


class Memoryless(ToyTarget):
    """A toy with the same distribution after every prefix."""

    def logits(self, length: Tensor, number: Tensor, early_exit: EarlyExit | None = None) -> Logits:
        return super().logits(torch.zeros_like(length), torch.zeros_like(number), early_exit)


@pytest.mark.parametrize(
    ("recipe", "depth"),
    [
        ("draft:window=4", 3),
        ("draft:window=3", 2),
        ("sjd:window=4,start=model", 3),
        ("scd:window=3,start=model", 2),
        ("tree:branch=2/1/1", 3),
        ("tree-chains:branch=3/1/1", 3),
        ("spectr:drafts=3,length=3", 3),
        ("spectr:drafts=2,length=2", 2),
    ],
)
def test_all_drafts_of_the_target_itself_are_accepted(recipe: str, depth: int) -> None:
    """After the first token every call gives all drafts of a path, and the bonus token."""
    assert decode(recipe, 1 + 2 * (1 + depth)).target_calls == 3


@pytest.mark.parametrize(
    "recipe", ["eagle:window=4", "medusa:window=4", "tree-eagle:branch=2/1/1", "tree-medusa:branch=2/1/1"]
)
def test_all_drafts_of_a_head_that_equals_the_target_are_accepted(recipe: str) -> None:
    assert decode(recipe, 9, Memoryless).target_calls == 3


@pytest.mark.parametrize("recipe", ["prompt:branch=1/1/1", "prompt:branch=2/1/1"])
def test_all_drafts_from_prompts_that_predict_as_the_target_does_are_accepted(recipe: str) -> None:
    """The drafts of the first tree are not: no prompts have been read. It gives a token at least, the others four."""
    assert decode(recipe, 10, Memoryless).target_calls == 4


class LastToken(ToyTarget):
    """A toy whose distribution depends on the last token alone."""

    def logits(self, length: Tensor, number: Tensor, early_exit: EarlyExit | None = None) -> Logits:
        return super().logits(length.clamp(max=1), number % self.vocab_size, early_exit)


class TrueHydra(HydraHeads):
    """Heads that know the distribution of `LastToken` after the last token that they read."""

    table = LastToken(1, V, 9, 5)._tables[0][0][1 : 1 + V]

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        return torch.nn.functional.pad(self.table[tokens[..., -1]], (0, FEATURES - V))


@pytest.mark.parametrize("recipe", ["hydra:window=4", "tree-hydra:branch=2/2/1"])
def test_hydra_heads_read_the_drafts_before_them(recipe: str) -> None:
    resources = DraftResources(heads={"hydra": TrueHydra(V, FEATURES, 8, 3)})
    settings = [SamplingParams()] * ROWS
    stats = run(LastToken(ROWS, V, 9, 5), parse(recipe), Layout(9), settings, range(ROWS), resources).stats
    assert stats.target_calls == 3


@pytest.mark.parametrize(
    "recipe", ["sjd:window=4,start=left", "scd:window=4,start=left", "scd:window=4,coupling=gumbel"]
)
def test_reused_drafts_of_a_target_without_memory_are_accepted(recipe: str) -> None:
    """Their q is p. Only drafts of new positions are rejected: 2.26 tokens per call; 1.6 if none were reused."""
    assert decode(recipe, 9, Memoryless).tokens_per_call > 2.2


@pytest.mark.parametrize("recipe", ["sjd+smoothed:window=3,sigma=0.3", "scd+smoothed:window=3,sigma=0.3"])
def test_latents_of_new_positions_come_from_the_last_output(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the output of the slot that gave the last committed token."""
    observe, extrapolate = LatentJacobi.observe, LatentSampler.extrapolate
    last: list[NDArray[np.int64]] = []
    matched: list[bool] = []

    def observed(self: LatentJacobi, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        last[:] = [verdict.accepted]
        observe(self, verdict, state, draws)

    def extrapolated(self: LatentSampler, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        matched.append(len(slots) < len(last[0]) or np.array_equal(slots, last[0]))
        return extrapolate(self, slots, positions)

    monkeypatch.setattr(LatentJacobi, "observe", observed)
    monkeypatch.setattr(LatentSampler, "extrapolate", extrapolated)
    run_toy(parse(recipe), range(9), 0, 2, 8, ToyHead(2), ToyHead(2))
    assert len(matched) > 3 and all(matched)


# --- Trees ----------------------------------------------------------------------------------------------------------


class Markov:
    """A draft runner whose distributions depend on the last token, float32 [V, V]."""

    calls = 0

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def root(self, state: BatchState) -> Tensor:
        return self.table[state.last()]

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        return self.table[tokens]

    def observe(self, verdict: Any, state: BatchState) -> None: ...


def markov(seed: int) -> tuple[Markov, BatchState]:
    """A runner, and rows with one token each."""
    table = (torch.randn(V, V, generator=torch.Generator().manual_seed(seed)) * 2).softmax(-1)
    state = BatchState(range(V), Layout(9), 8, torch.device("cpu"))
    state.append(torch.arange(V)[:, None])
    return Markov(table), state


def paths(draft: TreeDraft, row: int) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    found: list[tuple[int, ...]] = [()]
    parents = draft.tree.parents[min(row, len(draft.tree.parents) - 1)]
    for parent, token in zip(parents, draft.tokens[row].tolist(), strict=True):
        found.append((*found[parent], token))
    return found[1:]


@pytest.mark.parametrize("seed", range(3))
def test_a_dynamic_tree_has_the_most_likely_nodes(seed: int) -> None:
    """The sum of their joint probabilities is the expected number of accepted drafts if the drafter is the target."""
    runner, state = markov(seed)
    draft = DynamicTreeDrafter(runner, nodes=8, depth=3, top=V, vocab_size=V).propose(state, 0)
    for row in range(V):

        def joint(path: tuple[int, ...], row: int = row) -> float:
            return float(np.prod([runner.table[a, b] for a, b in zip((row, *path), path, strict=False)]))

        every = [path for depth in (1, 2, 3) for path in itertools.product(range(V), repeat=depth)]
        best = sorted(map(joint, every), reverse=True)[:8]
        assert sorted(map(joint, paths(draft, row)), reverse=True) == pytest.approx(best)
        assert len(set(paths(draft, row))) == 8


def test_siblings_that_are_sampled_without_replacement_are_distinct() -> None:
    runner, state = markov(0)
    for draft in (
        DySpecDrafter(runner, 7, 3).propose(state, 0),
        StaticTreeDrafter(runner, FixedBranching([3, 2]), DISTINCT, state.device).propose(state, 0),
    ):
        assert all(len(set(paths(draft, row))) == draft.tokens.shape[1] for row in range(V))


def test_a_sampled_tree_grows_where_it_is_likely_to_be_read() -> None:
    """In a chain of certain tokens, downwards; among equally likely tokens at the root, sideways."""
    certain = Markov(torch.eye(V).roll(1, 1) * 0.97 + 0.01)
    _, state = markov(0)
    assert DySpecDrafter(certain, 3, 3).propose(state, 0).tree.parents.tolist() == [[0, 1, 2]] * V
    flat = Markov(torch.full((V, V), 1 / V))
    assert DySpecDrafter(flat, 3, 3).propose(state, 0).tree.parents.tolist() == [[0, 0, 0]] * V


@pytest.mark.parametrize("count", [1, 2, 4])
def test_rho_is_the_smallest_that_is_exact(count: int) -> None:
    """A larger rho is exact as well, and accepts less often."""
    p, q = (torch.randn(2, 500, 8, generator=torch.Generator().manual_seed(1)) * 2).softmax(-1)
    drafts = torch.full((500, 1), count)
    rho = smallest_rho(p, q, drafts)

    def missing(rho: Tensor) -> Tensor:
        beta = torch.minimum(q, p / rho).sum(-1, keepdim=True)
        return 1 - (1 - beta) ** count - rho * beta

    assert float(missing(rho).max()) < 1e-5 and float(rho.max()) <= count
    inside = (rho > 1.001) & (rho < count - 0.001)
    assert (missing(rho * 0.999)[inside] > 0).all() and (count == 1 or inside.float().mean() > 0.9)
