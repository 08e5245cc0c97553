"""Functions of p and q, where one is written out and kernels read the other: the results of two that are written out.

min-p and typical-p have no kernel, and drafts have parameters of their own, so that any two kinds may meet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.sampling.acceptance import Accept
from mmspec.sampling.coupling import couple_fresh, couple_maximally
from mmspec.sampling.k_seq import verify_drafts
from mmspec.sampling.likeliest import likeliest
from mmspec.sampling.logits import Logits
from mmspec.sampling.multi_codebook import couple_columns, verify_columns
from mmspec.sampling.rejection import Draft, Verdict, log_probs, one_hot, point_mass, ratio, residual, sample, verify
from mmspec.sampling.rng import CounterRNG
from mmspec.sampling.tree import Chosen, Independent, Tree, TreeDraft, WithoutReplacement
from mmspec.sampling.tree_rejection import verify_tree

pytest.importorskip("triton")

from mmspec.kernels.fused_sampler import Settings
from mmspec.methods.beta import Beta
from mmspec.sampling import lazy_trees, lazy_verification  # noqa: F401 (they add what verifies)
from mmspec.sampling.lazy_probs import LazyProbs

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

CPU, B, V, K = torch.device("cpu"), 4, 7, 2
# How p and q are given: in memory, as logits that no kernel has read yet, and as logits that one has.
MEMORY, LOGITS, READ = "memory", "logits", "read"
KINDS = [(MEMORY, LOGITS), (READ, MEMORY), (LOGITS, READ)]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The interpreter, where memory that nothing was written to is NaN, or a number beyond every index."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    torch.use_deterministic_algorithms(True)
    assert torch.zeros(2).new_empty(2).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def weights(*shape: int) -> tuple[Tensor, Tensor]:
    """p and q, float32 [B, *shape, V], of rows in which they are any, equal, disjoint, and p is certain."""
    p, q = (torch.randn(2, B, *shape, V, generator=torch.Generator().manual_seed(1)) * 1.5).softmax(-1)
    odd = torch.arange(V) % 2 == 1
    q[1] = p[1]
    p[2], q[2] = p[2].masked_fill(odd, 0.0), q[2].masked_fill(~odd, 0.0)
    p[3] = torch.eye(V)[V - 1]
    return p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)


def given(p: Tensor, kind: str) -> Tensor:
    """The distributions in one of the `KINDS`."""
    if kind == MEMORY:
        return p.clone()
    flat = p.flatten(1, -2)
    ones = torch.ones(flat.shape[:2])
    probs = LazyProbs.of(Logits(flat.log(), None), Settings(ones, torch.ones(len(p)), None, None, None, None))
    cells = probs.unflatten(1, p.shape[1:-1]) if p.ndim > 3 else probs
    if kind == READ:
        assert isinstance(cells, LazyProbs) and cells.stats is not None
    return cells


def uniforms(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def by_groups(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """A rule that no kernel knows: even and odd tokens are groups."""
    group = (torch.arange(V) % 2 == x[..., None] % 2).to(p)
    return (p * group).sum(-1) / (q * group).sum(-1)


def found(verdict: Any) -> list[Tensor]:
    own = [verdict.tokens[row, : 1 + count] for row, count in enumerate(verdict.accepted)]
    return [torch.from_numpy(np.array(verdict.accepted)), *own]


def window(p: Tensor, q: Tensor, x: Tensor, rule: Accept = ratio) -> Verdict:
    return verify(p, Draft(x, q), rule, uniforms(1, *p.shape[:2]), uniforms(2, *p.shape[:2]))


def coupled(p: Tensor, verdict: Verdict) -> list[Tensor]:
    """The tokens after the resampled one, which are those that are reused."""
    numbers = uniforms(1, *p.shape[:2]), uniforms(2, *p.shape[:2])
    found = couple_maximally(p, verdict, *numbers), couple_fresh(p, verdict, numbers[1])
    return [tokens[row, 1 + count :] for tokens in found for row, count in enumerate(verdict.accepted)]


def couple(p: Tensor, q: Tensor, x: Tensor) -> list[Tensor]:
    """With the draft as it is given, and as a verdict has it."""
    verdict = window(p, q, x)
    given = Verdict(torch.cat([x, x[:, :1]], dim=1), np.array([1, 3, 0, 2]), p, Draft(x, q))
    return coupled(p, given) + coupled(verdict.p, verdict)


WINDOWS: dict[str, Callable[[Tensor, Tensor, Tensor], list[Tensor]]] = {
    "ratio": lambda p, q, x: [ratio(p[:, :3], q, x)],
    # That of equal distributions is what rounding leaves.
    "residual": lambda p, q, x: [
        sample(residual(p[[0, 2, 3], :3], q[[0, 2, 3]]), uniforms(3, 3, 3), fallback=p[[0, 2, 3], :3])
    ],
    "point mass": lambda p, q, x: [point_mass(q, x, 1, np.eye(B, 2, dtype=bool)) + 0],
    "one-hot": lambda p, q, x: [one_hot(p, x) + 0],
    "log-probs": lambda p, q, x: [log_probs(p, 1) + 0],
    "likeliest": lambda p, q, x: [likeliest(q + 0, 3)[0]],
    "exact": lambda p, q, x: found(window(p, q, x)),
    "relaxed": lambda p, q, x: found(window(p, q, x, Beta(0.3))),
    "no kernel": lambda p, q, x: found(window(p, q, x, by_groups)),
    "alone": lambda p, q, x: found(window(p[:, :1], q[:, :0], x[:, :0])),
    "coupled": couple,
    "rows": lambda p, q, x: found(window(p[[2, 0]], q[[2, 0]], x[[2, 0]])),
    "groups": lambda p, q, x: [q[:, 1:].unflatten(1, (2, 1))[torch.tensor([3, 0]), torch.tensor([1, 0])] + 0],
    "joined": lambda p, q, x: [torch.cat([q[:, 1:2], p[:, :1], q[:, :1]], dim=1) + 0],
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    p, q = weights(4)
    q = q[:, :3]
    x = sample(q, uniforms(0, B, 3))
    check(lambda p, q: WINDOWS[name](p, q, x), p, q)


def check(function: Callable[[Tensor, Tensor], list[Tensor]], p: Tensor, q: Tensor) -> None:
    """A function of two distributions gives the same for all kinds as for two that are in memory."""
    wanted = function(p.clone(), q.clone())
    for kinds in KINDS:
        for one, other in zip(function(given(p, kinds[0]), given(q, kinds[1])), wanted, strict=True):
            if other.dtype.is_floating_point:
                assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), kinds
            else:
                assert torch.equal(one, other), kinds


SIBLINGS: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "distinct": (WithoutReplacement, verify_tree),
    "independent": (Independent, verify_tree),
    "chosen": (lambda q: Chosen(V), verify_tree),
    "k-seq": (Independent, verify_drafts),
}


@pytest.mark.parametrize("rule", [ratio, by_groups], ids=["exact", "no kernel"])
@pytest.mark.parametrize("name", SIBLINGS)
def test_trees(name: str, rule: Accept) -> None:
    """Trees of two nodes after the root, and one after each of them."""
    siblings, test = SIBLINGS[name]
    tree = Tree.branching([2, 1], CPU)
    p, q = weights(5)
    p, q = p.contiguous(), q[:, :3].contiguous()
    first = sample(q[:, :1].expand(-1, 2, -1), uniforms(0, B, 2))
    if name != "independent":
        first = likeliest(q[:, 0], 2)[0]  # two tokens
    tokens = torch.cat([first, sample(q[:, 1:], uniforms(1, B, 2))], dim=1)

    def verdict(p: Tensor, q: Tensor) -> list[Tensor]:
        return found(test(p, TreeDraft(tree, tokens, siblings(q)), rule, uniforms(2, B, 4), uniforms(3, B, 3)))

    check(verdict, p, q)


@pytest.mark.parametrize("rule", [ratio, Beta(0.3)], ids=["exact", "relaxed"])
def test_columns(rule: Accept) -> None:
    positions = np.arange(4) + np.array([[5], [9], [0], [2]])
    p, q = weights(4, K)
    q = q[:, :3].contiguous()
    x = sample(q, uniforms(0, B, 3, K))

    def verdict(p: Tensor, q: Tensor) -> list[Tensor]:
        rng = CounterRNG([1, 2, 3, 4], CPU).window(positions, 4)
        made = verify_columns(p, Draft(x, q), rule, rng, None)
        return [*found(made), couple_columns(p, Draft(x, q), rng), couple_columns(made.p, made.draft, rng)]

    check(verdict, p, q)
