"""Processed targets: every recipe keeps the distribution of the processors, and a stateful processor breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from batch_runs import run
from numpy.typing import NDArray
from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import LogitsProcessor, ProcessedTarget, guidance, normalised_guidance
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.drafters.ngram import NGramTable
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.logits_processors import MinP, RepetitionAware, RepetitionPenalty, one_by_one
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.testing.adapters import check_windows, joint_probs
from mmspec.testing.exactness import noise_floor
from mmspec.testing.toys import ToyTarget, toy_heads


@dataclass(frozen=True)
class EndFirst:
    """Forbids all tokens except `end` once its probability exceeds `least` (as in Bark)."""

    end: int
    least: float

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        stops = logits.softmax(-1)[:, self.end] > self.least
        only = torch.arange(logits.shape[-1], device=logits.device) != self.end
        return logits.masked_fill(stops[:, None] & only, -torch.inf)


CPU = torch.device("cpu")
V, N = 3, 5
LAYOUT = Layout(length=N)
ENDING = Layout(length=N, eos=frozenset({2}), pad=2)
PROMPT = [-1, 1]
RULES: dict[str, list[LogitsProcessor]] = {
    "repetition": [RepetitionPenalty(3.0)],
    "aware": [RepetitionAware(top_p=0.6, top_k=2, window=2, temperature=0.9)],
    "several": [one_by_one(NoRepeatNGramLogitsProcessor(3)), RepetitionPenalty(1.4), MinP(0.2, 0.9), EndFirst(2, 0.6)],
}
TARGET, DRAFTER = 1, 2


def toy(
    rules: list[LogitsProcessor], seed: int = TARGET, guided: bool = True, kind: type[ProcessedTarget] = ProcessedTarget
) -> Callable[[int, int], ProcessedTarget]:
    def make(batch_size: int, window: int) -> ProcessedTarget:
        prompt = torch.tensor(PROMPT).expand(batch_size, -1)
        return kind(ToyTarget(batch_size, V, N, seed, guided), rules, prompt, N + window, guidance(1.5))

    return make


def sampling_of(name: str) -> SamplingParams:
    return SamplingParams() if name == "aware" else SamplingParams(0.9, top_p=0.95)


def distance(
    recipe: str, name: str, samples: int, kind: type[ProcessedTarget] = ProcessedTarget
) -> tuple[float, float]:
    """The total variation of a recipe's samples from token-by-token decoding, and its limit for exact samples."""
    rules, sampling, wanted = RULES[name], sampling_of(name), parse(recipe)
    layout = ENDING if name == "several" else LAYOUT
    joint = joint_probs(toy(rules), layout, sampling)
    table = NGramTable(torch.randint(V, (V + 1, V), generator=torch.Generator().manual_seed(3)))
    draft_model = partial(toy(rules, DRAFTER, guided=False), samples, 16)
    resources = DraftResources(table, draft_model, [sampling] * samples, heads=dict(toy_heads(V, None, 0)))
    decoded = run(
        toy(rules, kind=kind)(samples, wanted.window), wanted, layout, [sampling] * samples, range(samples), resources
    )
    counted = torch.bincount((decoded.tokens * V ** torch.arange(N - 1, -1, -1)).sum(1), minlength=V**N)
    floor, spread = noise_floor(joint, samples)
    return float((counted / samples - joint).abs().sum() / 2), floor + 5 * spread


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        *product(["scd:window=4,start=random", "draft:window=3"], RULES),
        ("plain", "aware"),
        ("scd:window=3,coupling=gumbel,start=left", "repetition"),
        ("tree:branch=2/1", "repetition"),
        ("tree-table:branch=2/2", "aware"),
        ("eagle:window=3", "repetition"),
        ("medusa:window=4", "several"),
        ("block:window=4", "repetition"),
        ("scd:window=4,start=block", "aware"),
        ("tree-block:branch=2/1", "repetition"),
        ("eagle-2:window=5,depth=3,top=2", "repetition"),
    ],
)
def test_recipes_keep_the_distribution(recipe: str, name: str) -> None:
    found, limit = distance(recipe, name, 5_000 if "several" in name else 12_000)
    assert found < limit


@pytest.mark.parametrize("tree", [Tree.branching([1, 1, 1], CPU), Tree.branching([2, 2], CPU)], ids=["chain", "tree"])
def test_heads_draft_with_the_processors_of_the_target(tree: Tree) -> None:
    """The prefix of a draft is the prompt, the committed tokens and the drafts on its path, in rows of any length."""
    prefixes: list[Tensor] = []

    def record(prefix: Tensor, logits: Tensor) -> Tensor:
        prefixes.append(prefix)
        return logits

    target, rows = toy([record], guided=False)(2, 8), 2
    state = BatchState([1, 2], LAYOUT, 8, CPU)
    state.append(torch.tensor([[2], [1]]))
    state.commit(torch.tensor([[0, 1], [2, 2]]), np.array([1, 0]))
    sampler = HeadSampler(TokenSampler([SamplingParams()] * rows, None, CPU), target)
    committed = [[-1, 1, 2, 0, 1], [-1, 1, 1, 2]]
    count = tree.parents.shape[1]
    tokens = torch.randint(V, (rows, count), generator=torch.Generator().manual_seed(0))

    def logits(width: int) -> Logits:
        return Logits(torch.zeros(rows, width, V), None)

    sampler.root(state, logits(1))
    for row in range(rows):
        assert [x for x in prefixes[-1][row].tolist() if x != -1] == [x for x in committed[row] if x != -1]
    for first, last in ((1, 3), (3, count + 1)):
        sampler.nodes(state, tokens[:, first - 1 : last - 1], tree, first, logits(last - first))
        got = prefixes[-1].unflatten(0, (rows, -1))
        for row, entry in product(range(rows), range(first, last)):
            path, at = list[int](), entry
            while at:
                path.insert(0, int(tokens[row, at - 1]))
                at = int(tree.parents[0, at - 1])
            wanted = [x for x in committed[row] if x != -1] + path
            assert [x for x in got[row, entry - first].tolist() if x != -1] == wanted


class Stateful(ProcessedTarget):
    """A broken twin whose processors see the committed tokens, but not the drafts before a slot."""

    def _apply(self, logits: Logits, prefix: Tensor, committed: int) -> Logits:
        return super()._apply(logits, prefix[:, :1].expand_as(prefix), committed)


@pytest.mark.parametrize("name", ["repetition", "aware"])
def test_a_stateful_processor_is_wrong_at_drafted_positions(name: str) -> None:
    found, limit = distance("scd:window=4,start=random", name, 20_000, Stateful)
    assert found > 1.5 * limit


@pytest.mark.parametrize("name", RULES)
def test_windows_agree_with_single_tokens(name: str) -> None:
    assert check_windows(toy(RULES[name]), N) < 1e-4


def test_trees_agree_with_windows() -> None:
    """Every path of a tree that is read in two calls has the distributions of a window with its tokens."""
    rules, rows = RULES["repetition"], 2
    at: NDArray[np.int64] = np.array([1, 0])
    parents = np.array([[0, 0, 1, 2, 3], [0, 1, 1, 0, 4]])
    tree = Tree(parents, torch.device("cpu"))
    tokens = torch.tensor([[0, 1, 0, 1, 0, 1], [1, 0, 1, 1, 0, 0]])
    before = torch.tensor([[1], [0]])

    def start() -> ProcessedTarget:
        target = toy(rules)(rows, 8)
        target.prefill()
        target.forward(before, np.zeros(rows, dtype=np.int64))
        return target

    target = start()
    read = [target.forward_tree(tokens[:, :3], at, tree), target.forward_tree(tokens[:, 3:], at, tree, first=3)]
    got = torch.cat([logits.cond for logits in read], dim=1)
    for row, entry in product(range(rows), range(6)):
        path = [entry]
        while path[0]:
            path.insert(0, int(parents[row, path[0] - 1]))
        window = tokens[row, path].expand(rows, -1)
        expected = start().forward(window, at).cond[row, -1]
        torch.testing.assert_close(got[row, entry], expected)
    accepted: NDArray[np.int64] = np.array([[2, 4], [1, 3]])  # in each row; one more token follows
    target.settle(at, accepted)
    after = target.forward(torch.tensor([[1], [1]]), at + 3).cond
    for row in range(rows):
        chain = torch.cat([tokens[row, [0, *accepted[row]]], torch.tensor([1])]).expand(rows, -1)
        torch.testing.assert_close(after[row, 0], start().forward(chain, at).cond[row, -1])


def test_processors_agree_with_those_of_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 7, generator=generator)
    prefix = torch.randint(7, (4, 5), generator=generator)
    own = RepetitionPenaltyLogitsProcessor(1.6)
    torch.testing.assert_close(RepetitionPenalty(1.6)(prefix, logits), own(prefix, logits))
    torch.testing.assert_close(one_by_one(own)(prefix, logits), own(prefix, logits))
    torch.testing.assert_close(RepetitionPenalty(1.6)(prefix - 9, logits), logits)
    guided = normalised_guidance(2.0)(logits, logits.flip(0))
    torch.testing.assert_close(guided.softmax(-1), guidance(2.0)(logits, logits.flip(0)).softmax(-1))


@pytest.mark.parametrize("exclude", [True, False])
def test_repetition_aware_is_the_distribution_of_its_procedure(exclude: bool) -> None:
    """`RepetitionAware` against 200,000 samples of the two-step procedure that it replaces."""
    count = 200_000
    rule = RepetitionAware(top_p=0.7, top_k=3, window=3, limit=2, exclude=exclude)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(6, generator=generator)
    best = int(z.argmax())
    prefix = torch.tensor([[best, best, 5, best]])  # twice among the last three
    raw = z.softmax(-1)
    order = z.argsort(descending=True)
    before = raw[order].cumsum(0) - raw[order]
    kept = order[(before < 0.7) & (torch.arange(6) < 3)]
    first = kept[raw[kept].multinomial(count, replacement=True, generator=generator)]
    second = raw.clone()
    second[best] *= not exclude
    again = second.multinomial(count, replacement=True, generator=generator)
    sampled = torch.where(first == best, again, first)
    found = torch.bincount(sampled, minlength=6) / count
    probs = rule(prefix, z[None])[0].exp()
    assert float((found - probs).abs().max()) < 6 * 0.5 / count**0.5
    assert abs(float(probs.sum()) - 1) < 1e-6


def test_repetition_aware_where_a_repetitive_token_is_certain() -> None:
    """The second sample then is of the others, however unlikely they are."""
    logits = torch.tensor([[200.0, 1.0, 0.0, -1.0]])
    found = RepetitionAware(window=2)(torch.tensor([[0, 3]]), logits).softmax(-1)
    torch.testing.assert_close(found[0, 0], torch.tensor(0.0))
    close = torch.tensor([[60.0, 1.0, 0.0, -1.0]])
    found = RepetitionAware(window=2)(torch.tensor([[0, 0]]), close).softmax(-1)
    torch.testing.assert_close(found[0, 1:], close[0, 1:].softmax(-1), atol=1e-5, rtol=1e-4)
