"""Acceptance rules: each follows its formula, is exact at zero, and stays within the bound that it reports.

`test_bound_holds` compares joint distributions over 81 sequences of 4 tokens from 60,000 rows. The bound is per token
and the first token is never drafted, so a joint may lie 3 bounds and the noise (limit about 0.015) from the target.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from batch_runs import run
from relaxed_rules import CODEBOOK, RELAXED, SETTINGS, V, decode
from torch import Tensor

import mmspec.codebook
import mmspec.methods.lantern
import mmspec.sampling.rejection
from mmspec.codebook import Codebook, kmeans, nearest, similar
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import bind_features
from mmspec.errors import ArgumentError, UnknownNameError
from mmspec.methods.judge.head import Judge
from mmspec.recipes import parse
from mmspec.registry import RULES
from mmspec.rules import Rule
from mmspec.sampling.acceptance import FeatureRule
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import ratio
from mmspec.testing.exactness import ExactnessResult, check
from mmspec.testing.toys import FEATURES, ToyTarget


def probs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """p, q [2, 3, V] and drafts sampled from q [2, 3]."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(2, 2, 3, V, generator=generator) * 2).softmax(-1)
    return p, q, torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(2, 3)


def by_hand(name: str, p: list[float], q: list[float], x: int, slot: int) -> float:
    """The acceptance probability of one slot under `SETTINGS`, from the formula in the papers."""
    points = CODEBOOK.vectors.tolist()
    order = sorted((t for t in range(V) if t != x), key=lambda t: math.dist(points[t], points[x]))
    if name in ("lantern", "lantern++"):
        budget, lent = (0.2 if name == "lantern" else p[x]), 0.0
        for neighbor in order[:2]:
            if lent + p[neighbor] > budget:
                break
            lent += p[neighbor]
        return (p[x] + lent) / q[x]
    if name == "gsd":
        ranked = sorted(range(V), key=lambda t: -p[t])
        at = ranked.index(x)
        group = [t for t in ranked[max(at - 1, 0) : at + 2] if abs(p[t] - p[x]) < 0.5]
        return sum(p[t] for t in group) / sum(q[t] for t in group)
    if name == "pcg":
        members = {t: [u for u in row if u >= 0] for t, row in enumerate(similar(CODEBOOK, 2, 0.0).tolist())}
        if members[x] == [x]:
            return p[x] / q[x]
        chances = []
        for center in members[x]:
            mass = [sum(probs[t] / len(members[t]) for t in members[center]) for probs in (p, q)]
            chances.append(min(mass[0] / mass[1], 1.0))
        return sum(chances) / len(chances)
    ratio = p[x] / q[x]
    if name == "beta":
        return ratio + 0.1
    if name == "ensemble":
        return 0.8 * ratio + 0.2
    if name == "omega":
        return max(1.5 * math.exp(-0.2 * slot), 1.0) * ratio
    if name == "typical":
        entropy = -sum(a * math.log(a) for a in p)
        return 1.0 if p[x] >= min(0.4, 0.3 * math.exp(-entropy)) else ratio
    if name == "clusters":
        cluster = kmeans(CODEBOOK, 2).tolist()
        group = [t for t in range(V) if cluster[t] == cluster[x]]
        return sum(p[t] for t in group) / sum(q[t] for t in group)
    if name == "fallback":
        return 1.0 if max(q) > 0.5 and p[x] >= 0.05 else ratio
    assert name == "top-m"
    return 1.0 if p[x] == max(p) else ratio


@pytest.mark.parametrize("name", [name for name in RELAXED if not RULES[name].takes_features])
def test_formula(name: str) -> None:
    recipe = parse(f"{name}:{SETTINGS[name]}")
    accept = recipe.rule.build(recipe.knobs, CODEBOOK)
    for seed in range(20):
        p, q, x = probs(seed)
        chance = accept(p, q, x)
        assert chance.shape == x.shape
        for row in range(2):
            for slot in range(3):
                expected = by_hand(name, p[row, slot].tolist(), q[row, slot].tolist(), int(x[row, slot]), slot)
                assert min(float(chance[row, slot]), 1.0) == pytest.approx(min(expected, 1.0), abs=1e-5)


def test_a_judge_accepts_by_its_score_what_is_possible() -> None:
    head = Judge(4, 2, "toy")
    with torch.no_grad():
        head.weight.copy_(torch.tensor([1.0, 0.0]))
    recipe = parse("judge:leniency=0.5")
    accept = recipe.rule.build(recipe.knobs, None, {"judge": head})
    assert isinstance(accept, FeatureRule)
    p, q = torch.tensor([[[0.5, 0.5, 0.0, 0.0]]]).expand(1, 3, 4), torch.tensor([[[1.0, 0, 0, 0]]]).expand(1, 3, 4)
    scores = torch.tensor([[[9.0, 0.0], [-9.0, 0.0], [9.0, 0.0]]])
    assert accept.accept(p, q, torch.tensor([[0, 0, 0]]), scores).tolist() == [[1.0, 0.5, 1.0]]
    assert accept.accept(p, p, torch.tensor([[2, 2, 2]]), scores).nan_to_num(0.0).tolist() == [[0.0, 0.0, 0.0]]
    with pytest.raises(ArgumentError, match="needs a judge.*mmspec train-judge"):
        recipe.rule.build(recipe.knobs, None)


def test_top_m_accepts_no_token_that_top_k_has_cut_off() -> None:
    p = torch.tensor([[[0.6, 0.4, 0.0, 0.0]]]).expand(1, 4, 4)
    q = torch.full((1, 4, 4), 0.25)
    recipe = parse("top-m:m=3")
    chance = recipe.rule.build(recipe.knobs, None)(p, q, torch.tensor([[0, 1, 2, 3]]))
    assert chance.clamp(max=1).tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize("drafting", ["draft", "table", "sjd", "scd"])
@pytest.mark.parametrize("name", RELAXED)
def test_zero_is_exact_token_for_token(name: str, drafting: str) -> None:
    knob = next(iter(RULES[name].knobs))
    for sampling in (
        SamplingParams(),
        SamplingParams(temperature=1.7, top_p=0.95, guidance_scale=1.5),
        SamplingParams(temperature=0),
    ):
        tokens, _, bound = decode(f"{drafting}+{name}:{knob}=0,window=3", sampling)
        assert torch.equal(tokens, decode(f"{drafting}:window=3", sampling)[0])
        assert bound == 0


@pytest.mark.parametrize("drafting", ["draft", "table", "scd"])
@pytest.mark.parametrize("name", RELAXED)
def test_bound_holds(name: str, drafting: str) -> None:
    layout, sampling = Layout(length=4, width=2), SamplingParams(temperature=1.2)
    verdict = check(f"{drafting}+{name}:{SETTINGS[name]},window=3", sampling, samples=60_000, layout=layout, seed=5)
    assert 0 < verdict.tv_bound < 1
    assert verdict.tv < 4 * verdict.tv_bound + verdict.limit, verdict


@functools.cache
def warm_check(recipe: str) -> ExactnessResult:
    layout, sampling = Layout(length=4, width=2), SamplingParams(temperature=1.2)
    return check(recipe, sampling, samples=60_000, layout=layout, seed=5)


@pytest.mark.parametrize("name", ["lantern", "beta", "ensemble", "omega", "top-m"])
def test_relaxation_is_detected(name: str) -> None:
    """A strong relaxation changes the distribution, and the exactness check finds it."""
    strong = {
        "lantern": "delta=0.6,k=2", "beta": "beta=0.5", "ensemble": "draft=0.7", "omega": "delta=4", "top-m": "m=2",
    }  # fmt: skip
    exact, relaxed = warm_check("draft:window=3"), warm_check(f"draft+{name}:{strong[name]},window=3")
    assert exact.ok and not relaxed.ok
    assert relaxed.tokens_per_call > exact.tokens_per_call


def test_zeroed_neighbourhood_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published residual subtracts the neighbors' probability even if they did not lend it."""
    recipe = "table+lantern:delta=0.02,k=2,window=3"
    layout, sampling = Layout(length=4, width=2), SamplingParams(temperature=1.2)

    def measure() -> tuple[float, float]:
        verdict = check(recipe, sampling, samples=60_000, layout=layout, seed=5)
        return verdict.tv, 4 * verdict.tv_bound + verdict.limit

    tv, allowed = measure()
    assert tv < allowed
    table: list[Tensor] = []
    find = nearest

    def remember(codebook: Codebook, k: int) -> Tensor:
        table[:] = [find(codebook, k)]
        return table[0]

    def zeroed(p: Tensor, q: Tensor) -> Tensor:
        left = (p - q).clamp(min=0)
        around = table[0][q.argmax(-1)].long()
        return left.scatter(-1, around, left.gather(-1, around) * (q.sum(-1, keepdim=True) == 0))

    monkeypatch.setattr(mmspec.methods.lantern, "nearest", remember)
    monkeypatch.setattr(mmspec.sampling.rejection, "residual", zeroed)
    tv, allowed = measure()
    assert tv > allowed


@pytest.mark.parametrize("drafting", ["draft:window=3", "tree:branch=2/2", "spectr:drafts=2,length=2"])
def test_a_feature_rule_gets_the_features_of_each_draft(drafting: str) -> None:
    """The features of the toy are its next logits: after an accepted draft they give the next distribution."""
    seen: list[tuple[Tensor, Tensor]] = []

    def accept(p: Tensor, q: Tensor, x: Tensor, h: Tensor) -> Tensor:
        assert h.shape == (*x.shape, FEATURES)
        seen.append((p, h[..., :V].softmax(-1)))
        return torch.ones_like(x, dtype=torch.float32)

    resources = DraftResources(draft_model=lambda: ToyTarget(2, V, 4, 6), draft_sampling=[SamplingParams()] * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "build", lambda *_: FeatureRule(accept))
        run(ToyTarget(2, V, 4, 5), parse(drafting), Layout(4), [SamplingParams()] * 2, [0, 1], resources)
    if drafting.startswith("draft"):
        (p, h) = seen[0]
        assert torch.allclose(p[:, 1], h[:, 0], atol=1e-6) and not torch.allclose(p[:, 0], h[:, 0], atol=1e-2)
    else:
        # The first sibling is accepted; a draft of the next depth is tested under the distribution after it.
        last = {"tree": 1, "spectr": 2}[drafting.partition(":")[0]]
        assert torch.allclose(seen[last][0][:, -1], seen[0][1][:, -1], atol=1e-6)
    with pytest.raises(ArgumentError, match="reads features, which Blind does not provide"):
        bind_features(FeatureRule(accept), Blind(), 1)
    assert bind_features(ratio, Blind(), 1) is ratio


class Blind:
    """A target without features."""


@pytest.mark.parametrize(
    ("recipe", "error", "message"),
    [
        ("lanten", UnknownNameError, "lantern"),
        ("plain+lantern", ArgumentError, "no drafts to accept"),
        ("lantern:delta=2", ArgumentError, "from 0.0 to 1.0"),
        ("table+lantern:coupling=gumbel", ArgumentError, "has no knob 'coupling'"),
        ("table+nothing", UnknownNameError, "table+nothing"),
    ],
)
def test_bad_recipes(recipe: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        parse(recipe)
    assert message in str(raised.value)


def test_rules_that_need_a_codebook_say_so() -> None:
    for name in ("lantern", "pcg", "gsd:distance=1", "clusters"):
        with pytest.raises(ArgumentError, match="codebook"):
            run(ToyTarget(1, 3, 3, 5), parse(name), Layout(3), [SamplingParams()], [0])
    run(ToyTarget(1, 3, 3, 5), parse("gsd"), Layout(3), [SamplingParams()], [0])


# --- Neighbors -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("MMSPEC_CACHE", str(folder))
    monkeypatch.setattr(mmspec.codebook, "_MAX_RECENT", 0)
    monkeypatch.setattr(mmspec.codebook, "_recent", {})
    return lambda: sorted(path.name for path in folder.iterdir())


def test_nearest_against_sorting() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors, tokens = torch.randn(50, 4, generator=generator), torch.randperm(80, generator=generator)[:50]
    table = nearest(Codebook(vectors, tokens, vocab_size=80), 7)
    assert table.shape == (80, 7) and table.dtype == torch.int32
    distance = torch.cdist(vectors.double(), vectors.double()).fill_diagonal_(torch.inf)
    assert torch.equal(table[tokens].long(), tokens[distance.argsort(1)[:, :7]])
    others = torch.tensor(sorted(set(range(80)) - set(tokens.tolist())))
    assert torch.equal(table[others], others.int()[:, None].repeat(1, 7))


def test_similar_is_symmetric() -> None:
    table = similar(CODEBOOK, 3, 0.1).tolist()
    groups = [{t for t in row if t >= 0} for row in table]
    assert all(token in group for token, group in enumerate(groups)) and max(map(len, groups)) > 1
    assert all(token in groups[other] for token, group in enumerate(groups) for other in group)


def test_clusters_lie_around_their_means() -> None:
    generator = torch.Generator().manual_seed(3)
    means = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
    vectors = means.repeat(8, 1) + torch.randn(32, 2, generator=generator) / 4
    tokens = torch.randperm(40, generator=generator)[:32]
    cluster = kmeans(Codebook(vectors, tokens, vocab_size=40), 8)
    assert cluster.shape == (40,) and cluster.dtype == torch.int32
    of_mean = [set(cluster[tokens[mean::4]].tolist()) for mean in range(4)]
    assert len(set(map(frozenset, of_mean))) > 1 and sum(map(len, of_mean)) <= 6  # a few blobs may share or be split
    alone = sorted(set(range(40)) - set(tokens.tolist()))
    assert cluster[alone].tolist() == alone
    assert len(set(cluster[tokens].tolist())) == 4


def test_large_tables_are_cached_on_disk(cache: Callable[[], list[str]]) -> None:
    codebook = Codebook(torch.randn(2100, 2))
    first = nearest(codebook, 3)
    assert len(cache()) == 1
    assert torch.equal(nearest(codebook, 3), first) and len(cache()) == 1
    nearest(Codebook(codebook.vectors + 1e-3), 3)
    assert len(cache()) == 2
    nearest(Codebook(torch.randn(20, 2)), 3)
    assert len(cache()) == 2


def test_damaged_table_is_recomputed(cache: Callable[[], list[str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    codebook = Codebook(torch.randn(2100, 2))
    first = nearest(codebook, 3)
    damaged = next(tmp_path_factory.getbasetemp().glob("cache*/*.safetensors"))
    damaged.write_bytes(b"cut off")
    assert torch.equal(nearest(codebook, 3), first)
    assert damaged.stat().st_size > 100


def test_codebook_must_be_finite() -> None:
    with pytest.raises(ArgumentError, match="finite"):
        Codebook(torch.tensor([[1.0, torch.nan]]))
