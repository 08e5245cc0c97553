"""Draft trees: each recipe keeps the target distribution, and each known bias of tree decoding is caught.

Power: as in `test_exactness`. With 60,000 samples of 81 sequences an exact recipe fails once in a million runs at most,
and a bias of 0.02 in total variation is found nearly always.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import torch
from batch_runs import run
from hf_image_cases import CASES, GUIDANCE, arguments, job_of, ours
from numpy.typing import NDArray
from relaxed_rules import RELAXED, SETTINGS
from relaxed_rules import decode as decode_by_rule
from torch import Tensor

import mmspec.methods.dyspec.drafter
import mmspec.sampling.k_seq
import mmspec.sampling.tree_rejection
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import TreeTarget
from mmspec.drafters.ngram import NGramTable
from mmspec.drafters.tree import specinfer
from mmspec.drafters.tree.specinfer import SiblingSampler, sample_without_replacement
from mmspec.errors import ArgumentError
from mmspec.recipes import parse
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import ratio, residual, sample
from mmspec.sampling.rng import DRAFT, CounterRNG
from mmspec.sampling.tree import Chosen, Tree, TreeDraft, TreeDraws, WithoutReplacement
from mmspec.sampling.tree_rejection import verify_tree
from mmspec.testing.exactness import ExactnessResult, check
from mmspec.testing.toys import ToyTarget
from mmspec.vision.llamagen.target import LlamaGenTarget

CPU = torch.device("cpu")
GRID = Layout(length=4, width=2)


# --- Distribution ---------------------------------------------------------------------------------------------------


def decode(recipe: str, seeds: list[int], samplings: list[SamplingParams], draft_seed: int = 6) -> Any:
    v, layout = 4, Layout(length=6, width=3)
    guided = any(s.guidance_scale != 1 for s in samplings)
    table = NGramTable(torch.randint(v, (v + 1, v), generator=torch.Generator().manual_seed(2)))
    rows = len(seeds)
    resources = DraftResources(table, lambda: ToyTarget(rows, v, 6, draft_seed), [SamplingParams()] * rows)
    return run(ToyTarget(rows, v, 6, 5, guided), parse(recipe), layout, samplings, seeds, resources)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.3, top_p=0.9, guidance_scale=1.5)])
def test_a_tree_without_branches_is_a_window(sampling: SamplingParams) -> None:
    seeds = list(range(50))
    tree, window = (decode(recipe, seeds, [sampling] * 50) for recipe in ("tree:branch=1/1/1", "draft:window=4"))
    assert torch.equal(tree.tokens, window.tokens)
    assert tree.stats.target_calls == window.stats.target_calls and tree.stats.acceptance == window.stats.acceptance


def test_drafts_of_the_target_itself_are_accepted_whole() -> None:
    stats = decode("tree:branch=2/1/1/1", list(range(30)), [SamplingParams()] * 30, draft_seed=5).stats
    assert stats.target_calls == 2 and stats.acceptance == [1.0] * 4 and stats.tokens_per_call == 3
    assert stats.draft_calls == 5


def test_siblings_raise_the_acceptance() -> None:
    calls = [
        check(recipe, SamplingParams(), samples=20_000, layout=GRID, seed=5).tokens_per_call
        for recipe in ("draft:window=3", "tree:branch=2/2", "tree:branch=3/3")
    ]
    assert calls == sorted(calls) and calls[2] > calls[0] + 0.4


# --- Acceptance rules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafting", ["tree", "tree-chains", "spectr", "tree-table", "tree-dynamic", "tree-sampled"])
@pytest.mark.parametrize("name", RELAXED)
def test_zero_is_exact_token_for_token(name: str, drafting: str) -> None:
    knob = next(iter(parse(name).rule.knobs))
    for sampling in (
        SamplingParams(),
        SamplingParams(temperature=1.7, top_p=0.95, guidance_scale=1.5),
        SamplingParams(temperature=0),
    ):
        tokens, _, bound = decode_by_rule(f"{drafting}+{name}:{knob}=0", sampling)
        assert torch.equal(tokens, decode_by_rule(drafting, sampling)[0])
        assert bound == 0


@pytest.mark.parametrize(
    ("drafting", "name"),
    [
        ("tree:branch=2/1", "lantern"),
        ("tree:branch=2/1", "omega"),
        ("tree-table:branch=2/1", "typical"),
        ("tree-sampled:window=4", "beta"),
        ("spectr:drafts=3,length=2", "ensemble"),
        ("spectr:drafts=4,length=3", "lantern++"),
    ],
)
def test_bound_holds(drafting: str, name: str) -> None:
    drafting, _, knobs = drafting.partition(":")
    strength = "factor=50" if name == "lantern++" else SETTINGS[name]
    sampling = SamplingParams(temperature=1.2)
    verdict = check(f"{drafting}+{name}:{strength},{knobs}", sampling, samples=60_000, layout=GRID, seed=5)
    assert 0 < verdict.tv_bound < 1
    assert verdict.tv < 4 * verdict.tv_bound + verdict.limit, verdict


def test_a_rule_gets_the_depth_as_its_slot() -> None:
    slots: list[int] = []

    def rule(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        assert p.shape == q.shape == (*x.shape, 3)
        slots.append(x.shape[1])
        return torch.ones(x.shape)

    tree = Tree.branching([2, 1, 2], CPU)
    p, m = torch.full((1, 10, 3), 1 / 3), tree.parents.shape[1]
    draft = TreeDraft(tree, torch.arange(m)[None] % 3, Chosen(3))
    verdict = verify_tree(p, draft, rule, torch.full((1, m), 0.5), torch.zeros(1, 4))
    assert slots == [1, 2, 3]
    assert verdict.accepted.tolist() == [3]


# --- The walk at its edges ------------------------------------------------------------------------------------------


def walk(p: list[list[float]], tokens: list[int], siblings: Any, accept_u: list[float], resample_u: list[float]) -> Any:
    tree = Tree.branching([len(tokens)], CPU)
    draft = TreeDraft(tree, torch.tensor([tokens]), siblings)
    return verify_tree(torch.tensor([p]), draft, ratio, torch.tensor([accept_u]), torch.tensor([resample_u]))


def test_a_repeated_sibling_is_ignored() -> None:
    p = [[0.5, 0.25, 0.25]] * 3
    for siblings in (Chosen(3), WithoutReplacement(torch.tensor([[[1.0, 0.0, 0.0]]]))):
        verdict = walk(p, [0, 0], siblings, [0.9, 0.0], [0.9, 0.9])
        assert verdict.accepted.tolist() == [0] and verdict.tokens[0, 0] == 2
        assert verdict.tested.tolist() == [1]


def test_a_second_sibling_is_tested_against_the_residual() -> None:
    p = [[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    for number, accepted in ((0.59, 1), (0.61, 0)):  # 0.3 / (0.3 + 0.2)
        verdict = walk(p, [0, 1], Chosen(3), [0.51, number], [0.0, 0.0])
        assert verdict.accepted.tolist() == [accepted]
        assert verdict.tokens[0, : accepted + 1].tolist() == ([1, 2] if accepted else [2])
        assert verdict.path.host.tolist() == [[2 if accepted else 1]]


def test_shape() -> None:
    tree = Tree.branching([2, 1, 2], CPU)
    assert tree.parents.tolist() == [[0, 0, 1, 2, 3, 3, 4, 4]]
    assert tree.depth.tolist() == [[0, 1, 1, 2, 2, 3, 3, 3, 3]] and tree.height == 3 and tree.widest == [2, 1, 2]
    assert tree.order.tolist() == [[0, 0, 1, 0, 1, 0, 1, 2, 3]]
    assert tree.children[0, 3].tolist() == [5, 6] and tree.children[0, 2].tolist() == [4, 0]
    assert tree.sees[0, 7].nonzero()[:, 0].tolist() == [0, 2, 4, 7]


def test_guesses_differ_as_long_as_there_are_some() -> None:
    table = NGramTable(torch.tensor([[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3], [0, 0, 0, 0], [1, 2, 3, 0]]))
    assert table.candidates(torch.tensor([2]), torch.tensor([1]), 4).tolist() == [[2, 3, 1, 2]]
    assert table.candidates(torch.tensor([2, 0]), torch.tensor([-1, 0]), 2).tolist() == [[3, 2], [1, 0]]
    assert table.candidates(torch.tensor([2]), torch.tensor([1]), 7).tolist() == [[2, 3, 1, 2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("tree:branch=3/0", "tree:branch=3/0 is not allowed; it must be children per depth such as 3/2/1"),
        ("tree:branch=a", "is not allowed"),
        ("tree:branch=40/40", "at most 1023 nodes in all"),
    ],
)
def test_bad_branches(recipe: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse(recipe)


def test_missing_resources_are_refused() -> None:
    class Windows:
        ROWS = ()

        def __init__(self, target: ToyTarget) -> None:
            self.vocab_size, self.device = target.vocab_size, target.device
            self.prefill, self.forward = target.prefill, target.forward

    for recipe in ("tree", "tree-chains", "spectr", "tree-table", "tree-dynamic", "tree-sampled"):
        with pytest.raises(ArgumentError, match="this model has none"):
            run(ToyTarget(1, 3, 3, 0), parse(recipe), Layout(3), [SamplingParams()], [0], DraftResources())
    resources = DraftResources(NGramTable(torch.zeros(4, 3, dtype=torch.int64)))
    with pytest.raises(ArgumentError, match="Windows reads windows only"):
        run(Windows(ToyTarget(1, 3, 3, 0)), parse("tree-table"), Layout(3), [SamplingParams()], [0], resources)


# --- Broken twins ---------------------------------------------------------------------------------------------------

Break = Callable[[pytest.MonkeyPatch], None]


def original_p_and_q(patch: pytest.MonkeyPatch) -> None:
    """Every sibling is tested with the p and q of the first one."""
    conditional, at_depth = WithoutReplacement.conditional, mmspec.sampling.tree_rejection.at_depth
    first: dict[str, Any] = {}

    def original_q(self: WithoutReplacement, entry: Tensor, tokens: Tensor) -> Tensor:
        first["new"] = tokens.shape[1] == 1
        return conditional(self, entry, tokens[:, :1])

    def original_p(rule: Accept, p: Tensor, q: Tensor, x: Tensor, depth: int, entry: Tensor) -> Tensor:
        if first["new"]:
            first["p"] = p
        return at_depth(rule, first["p"], q, x, depth, entry)

    patch.setattr(WithoutReplacement, "conditional", original_q)
    patch.setattr(mmspec.sampling.tree_rejection, "at_depth", original_p)
    patch.setattr(mmspec.sampling.tree_rejection, "residual", lambda p, q: residual(first["p"], q))


def stale_q(patch: pytest.MonkeyPatch) -> None:
    """Siblings sampled without replacement, tested as if sampled with replacement."""
    conditional = WithoutReplacement.conditional
    patch.setattr(
        WithoutReplacement, "conditional", lambda self, entry, tokens: conditional(self, entry, tokens[:, :1])
    )


def greedy_siblings_with_a_ratio(patch: pytest.MonkeyPatch) -> None:
    def most_likely(q: Tensor, u: Tensor) -> Tensor:
        return q.topk(u.shape[-1]).indices.flatten(1)

    patch.setattr(specinfer, "DISTINCT", SiblingSampler(most_likely, WithoutReplacement))


def selected_after_sampling(patch: pytest.MonkeyPatch) -> None:
    """One more sibling is sampled, and the least likely one dropped."""

    def best(q: Tensor, u: Tensor) -> Tensor:
        sampled = sample_without_replacement(q, torch.cat([u, (u[..., :1] + 0.37) % 1], dim=-1)).unflatten(
            1, (q.shape[1], -1)
        )
        likely = q.gather(-1, sampled)
        return sampled.gather(-1, likely.sort(dim=-1, descending=True).indices[..., :-1]).flatten(1)

    patch.setattr(specinfer, "DISTINCT", SiblingSampler(best, WithoutReplacement))


def node_sampled_twice(patch: pytest.MonkeyPatch) -> None:
    """Of two samples of a node the more likely one is verified."""

    def likelier(weights: Tensor, u: Tensor, fallback: Tensor | None = None) -> Tensor:
        one, other = sample(weights, u, fallback), sample(weights, (u + 0.37) % 1, fallback)
        rows = torch.arange(len(u))
        return torch.where(weights[rows, one] >= weights[rows, other], one, other)

    patch.setattr(mmspec.methods.dyspec.drafter, "sample", likelier)


def independent_drafts_with_a_ratio(patch: pytest.MonkeyPatch) -> None:
    """Each of several drafts is tested with min(1, p/q), the last residual being that of p and q."""
    patch.setattr(mmspec.sampling.k_seq, "smallest_rho", lambda p, q, count: torch.ones(len(p), 1))


def rejected_drafts_are_counted(patch: pytest.MonkeyPatch) -> None:
    left = mmspec.sampling.k_seq.unassigned

    def unassigned(p: Tensor, q: Tensor, rho: Tensor, count: Tensor) -> Tensor:
        return left(p, q, rho, torch.full_like(count, 4))

    patch.setattr(mmspec.sampling.k_seq, "unassigned", unassigned)


def shared_numbers(patch: pytest.MonkeyPatch) -> None:
    """Siblings share their random numbers."""

    def of_nodes(self: TreeDraws, stream: int) -> Tensor:
        return self.draws.source.uniforms(self.at.host, self.iteration.host)[stream]

    patch.setattr(TreeDraws, "of_nodes", of_nodes)


def shared_numbers_node_by_node(patch: pytest.MonkeyPatch) -> None:
    """The nodes of one depth share their random numbers."""
    uniforms = CounterRNG.uniforms

    def shared(self: CounterRNG, positions: NDArray[np.int64], iteration: Any, index: Any = 0) -> list[Tensor]:
        found = uniforms(self, positions, iteration, index)
        if np.size(index) > 1:
            found[DRAFT] = found[DRAFT][..., :1].expand_as(found[DRAFT])
        return found

    patch.setattr(CounterRNG, "uniforms", shared)


def no_roll_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ToyTarget, "settle", lambda self, at, path: None)


def wrong_mask(patch: pytest.MonkeyPatch) -> None:
    """The parent of an entry is replaced by the first entry of its depth."""
    forward = ToyTarget.forward_tree

    def first_of_depth(self: ToyTarget, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0) -> Logits:
        above = tree.depth[:, 1:, None] - 1 == tree.depth[:, None]
        return forward(self, tokens, at, Tree(above.argmax(-1), CPU), first)

    patch.setattr(ToyTarget, "forward_tree", first_of_depth)


TWINS: dict[str, tuple[Break, str]] = {
    "siblings with the original p and q": (original_p_and_q, "tree:branch=3/1"),
    "q with replacement": (stale_q, "tree:branch=3/1"),
    "greedy siblings with a ratio": (greedy_siblings_with_a_ratio, "tree:branch=2/2"),
    "selected after sampling": (selected_after_sampling, "tree:branch=2/1"),
    "q with replacement, node by node": (stale_q, "tree-sampled:window=5"),
    "a node sampled twice": (node_sampled_twice, "tree-sampled:window=4"),
    "independent drafts with a ratio": (independent_drafts_with_a_ratio, "spectr:drafts=3,length=2"),
    "rejected drafts are counted": (rejected_drafts_are_counted, "spectr:drafts=4,length=3"),
    "siblings share their numbers": (shared_numbers, "tree:branch=2/2"),
    "siblings share their numbers, node by node": (shared_numbers_node_by_node, "tree-sampled:window=6"),
    "no roll-back to the path": (no_roll_back, "tree:branch=2/2"),
    "wrong mask": (wrong_mask, "tree-dynamic:window=7,depth=3,top=2"),
}


def checked(recipe: str) -> ExactnessResult:
    return check(recipe, SamplingParams(temperature=1.6), samples=60_000, layout=GRID, seed=1)


unbroken = lru_cache(checked)


@pytest.mark.parametrize("twin", TWINS)
def test_twins_are_caught(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, recipe = TWINS[twin]
    assert unbroken(recipe).ok
    break_it(monkeypatch)
    verdict = checked(recipe)
    assert not verdict.ok, verdict
    print(f"{twin}: {verdict}")


# --- Models ---------------------------------------------------------------------------------------------------------

PARENTS = np.array([[0, 0, 1, 1, 2, 4, 3], [0, 1, 1, 0, 3, 3, 6]])


def trees_agree(make: Callable[[], TreeTarget], size: int) -> bool:
    """Whether tree entries, and windows after a settled path, have the logits of windows without branches."""
    generator = torch.Generator().manual_seed(3)
    x, drafts = torch.randint(size, (2, 2, 8), generator=generator)
    drafts = drafts[:, :7]
    wrong = 0

    def expect(got: Logits, column: int, sequences: list[Tensor]) -> None:
        """Compares the logits in a column with those after each row's sequence."""
        nonlocal wrong
        longest = max(map(len, sequences))
        padded = torch.stack([torch.nn.functional.pad(s, (0, longest - len(s))) for s in sequences])
        full = reference.forward(padded, np.zeros(2, dtype=np.int64))
        for row, sequence in enumerate(sequences):
            for side, other in zip(got, full, strict=True):
                if side is not None and other is not None:
                    wrong += not torch.allclose(side[row, column], other[row, len(sequence) - 1], atol=1e-4)

    def path(tree: Tree, row: int, entry: int) -> list[int]:
        parents = tree.parents[min(row, len(tree.parents) - 1)]
        return [] if entry == 0 else [*path(tree, row, int(parents[entry - 1])), entry]

    with torch.inference_mode():
        reference = make()
        reference.prefill()
        for at, parents in (([1, 3], PARENTS), ([2, 2], PARENTS), ([2, 2], PARENTS[:1]), ([3, 0], PARENTS[1:])):
            roots, tree = np.array(at), Tree(parents, CPU)
            target = make()
            target.prefill()
            target.forward(x[:, :6], np.zeros(2, dtype=np.int64))  # as if an earlier window had reached further
            window = torch.cat([x[torch.arange(2), at][:, None], drafts], dim=1)
            whole = target.forward_tree(window, roots, tree)
            for entry in range(8):
                ways = [[e - 1 for e in path(tree, row, entry)] for row in range(2)]
                expect(whole, entry, [torch.cat([x[row, : at[row] + 1], drafts[row, ways[row]]]) for row in range(2)])
            for first, last in ((1, 3), (3, 8)):  # again, in parts
                part = target.forward_tree(window[:, first:last], roots, tree, first)
                wrong += not torch.allclose(part.cond, whole.cond[:, first:last], atol=1e-4)
            deepest = [path(tree, row, int(tree.depth[min(row, len(parents) - 1)].argmax())) for row in range(2)]
            kept = min(map(len, deepest))
            target.settle(roots, np.array([way[:kept] for way in deepest]))
            following = target.forward(x[:, 6:8], roots + 1 + kept)
            for column in range(2):
                chosen = [drafts[row, [e - 1 for e in deepest[row][:kept]]] for row in range(2)]
                expect(
                    following,
                    column,
                    [torch.cat([x[r, : at[r] + 1], chosen[r], x[r, 6 : 7 + column]]) for r in range(2)],
                )
    return wrong == 0


def llamagen(padded: bool) -> Callable[[], TreeTarget]:
    gpt = tiny_llamagen.tiny(grid_size=4, qk_norm=padded, position_embedding=padded)
    condition = torch.randn(2, tiny_llamagen.T, tiny_llamagen.C, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, tiny_llamagen.T)
    if padded:
        mask[0, :2], mask[1, :3] = 0, 0
    return lambda: LlamaGenTarget(gpt, condition, gpt.unconditional(2), mask, slack=8)


@pytest.mark.parametrize("padded", [False, True])
def test_llamagen_supports_trees(padded: bool) -> None:
    assert trees_agree(llamagen(padded), tiny_llamagen.V)


@pytest.mark.parametrize(("name", "guided"), GUIDANCE)
def test_transformers_models_support_trees(name: str, guided: bool) -> None:
    model = CASES[name].model()
    job = job_of(model, arguments(name, model, guided))
    assert trees_agree(lambda: job.target(job.plan, slack=8), job.plan.backbone.vocab_size)


def test_a_lost_path_and_a_causal_mask_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LlamaGenTarget, "settle", lambda self, at, path: None)
        assert not trees_agree(llamagen(False), tiny_llamagen.V)
    bias = LlamaGenTarget._tree_bias

    def causal(self: LlamaGenTarget, root: Tensor, sees: Tensor, end: int) -> Tensor:
        first = sees.shape[2] - sees.shape[1]
        return bias(self, root, torch.ones_like(sees).tril(first), end)

    monkeypatch.setattr(LlamaGenTarget, "_tree_bias", causal)
    assert not trees_agree(llamagen(False), tiny_llamagen.V)


@pytest.mark.parametrize("recipe", ["tree:branch=2/2/1", "tree-table", "tree-dynamic:window=9,depth=4,top=3"])
def test_llamagen_greedy_is_plain_greedy(recipe: str) -> None:
    layout, greedy = Layout(length=16, width=4), [SamplingParams(temperature=0, guidance_scale=2.0)] * 2
    table = NGramTable(torch.randint(tiny_llamagen.V, (tiny_llamagen.V + 1, tiny_llamagen.V)))
    condition = torch.randn(2, tiny_llamagen.T, tiny_llamagen.C, generator=torch.Generator().manual_seed(1))

    def draft_model() -> TreeTarget:
        return LlamaGenTarget(tiny_llamagen.tiny(spread=0.39, grid_size=4), condition, None, None, slack=16)

    resources = DraftResources(table, draft_model, [SamplingParams()] * 2)
    gpt = tiny_llamagen.tiny(grid_size=4)

    def tokens(recipe: str) -> Any:
        target = LlamaGenTarget(gpt, condition, gpt.unconditional(2), None, slack=32)
        return run(target, parse(recipe), layout, greedy, [0, 1], resources)

    ours, plain = tokens(recipe), tokens("plain")
    assert torch.equal(ours.tokens, plain.tokens)
    if recipe != "tree-table":
        assert ours.stats.tokens_per_call > 1


@pytest.mark.parametrize("name", ["janus", "emu3"])
def test_transformers_greedy_is_plain_greedy(name: str) -> None:
    model, draft = CASES[name].model(0), CASES[name].model(0, spread=0.31)
    call = arguments(name, model, True) | {"do_sample": False}
    plain = ours(model, call, recipe="plain", seed=0)
    for recipe in ("tree:branch=2/2/1", "tree-dynamic:window=9,depth=4,top=3"):
        assert torch.equal(ours(model, call, recipe=recipe, seed=0, draft_model=draft), plain)
