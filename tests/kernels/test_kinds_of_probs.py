"""Functions of p and q, where one is written out and kernels read the other: the results of two that are written out.

min-p and typical-p have no kernel, and drafts have parameters of their own, so that any two kinds may meet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.sampling.acceptance import Accept
from mmspec.sampling.likeliest import likeliest
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.ops import TORCH, TorchOps
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Draft, Verdict, ratio, sample
from mmspec.sampling.rng import CounterRNG
from mmspec.sampling.tree import Chosen, Independent, Tree, TreeDraft, WithoutReplacement

pytest.importorskip("triton")

from mmspec.kernels.fused_sampler import Settings
from mmspec.methods.beta import Beta
from mmspec.sampling.kernel_ops import KERNELS
from mmspec.sampling.lazy_probs import LazyProbs

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


def given(p: Tensor, kind: str) -> Probs:
    """The distributions in one of the `KINDS`."""
    if kind == MEMORY:
        return p.clone()
    flat = p.flatten(1, -2)
    ones = torch.ones(flat.shape[:2])
    probs = LazyProbs.of(Logits(flat.log(), None), Settings(ones, torch.ones(len(p)), None, None, None, None))
    cells = probs.unflatten(1, p.shape[1:-1]) if p.ndim > 3 else probs
    assert kind != READ or cells.stats is not None
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


def window(ops: TorchOps, p: Probs, q: Probs, x: Tensor, rule: Accept = ratio) -> Verdict:
    return ops.verify(p, Draft(x, q), rule, uniforms(1, *p.shape[:2]), uniforms(2, *p.shape[:2]))


def coupled(ops: TorchOps, p: Probs, verdict: Verdict) -> list[Tensor]:
    """The tokens after the resampled one, which are those that are reused."""
    numbers = uniforms(1, *p.shape[:2]), uniforms(2, *p.shape[:2])
    found = ops.couple_maximally(p, verdict, *numbers), ops.couple_fresh(p, verdict, numbers[1])
    return [tokens[row, 1 + count :] for tokens in found for row, count in enumerate(verdict.accepted)]


def couple(ops: TorchOps, p: Probs, q: Probs, x: Tensor) -> list[Tensor]:
    """With the draft as it is given, and as a verdict has it."""
    verdict = window(ops, p, q, x)
    given = Verdict(torch.cat([x, x[:, :1]], dim=1), Numbers(np.array([1, 3, 0, 2])), p, Draft(x, q))
    return coupled(ops, p, given) + coupled(ops, verdict.p, verdict)


WINDOWS: dict[str, Callable[[TorchOps, Probs, Probs, Tensor], list[Tensor]]] = {
    "point mass": lambda ops, p, q, x: [dense(ops.point_mass(q, x, 1, np.eye(B, 2, dtype=bool)))],
    "one-hot": lambda ops, p, q, x: [dense(ops.one_hot(p, x))],
    "log-probs": lambda ops, p, q, x: [ops.log_probs(p, 1)],
    "sampled": lambda ops, p, q, x: [ops.sample(p, uniforms(3, B, 4)), ops.sample_draft(q, uniforms(3, B, 3))],
    "exact": lambda ops, p, q, x: found(window(ops, p, q, x)),
    "relaxed": lambda ops, p, q, x: found(window(ops, p, q, x, Beta(0.3))),
    "no kernel": lambda ops, p, q, x: found(window(ops, p, q, x, by_groups)),
    "alone": lambda ops, p, q, x: found(window(ops, p[:, :1], q[:, :0], x[:, :0])),
    "coupled": couple,
    "rows": lambda ops, p, q, x: found(window(ops, p[[2, 0]], q[[2, 0]], x[[2, 0]])),
    "groups": lambda ops, p, q, x: [dense(q[:, 1:].unflatten(1, (2, 1))[torch.tensor([3, 0]), torch.tensor([1, 0])])],
    "joined": lambda ops, p, q, x: [dense(ops.cat([q[:, 1:2], p[:, :1], q[:, :1]]))],
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    p, q = weights(4)
    q = q[:, :3]
    x = sample(q, uniforms(0, B, 3))
    check(lambda ops, p, q: WINDOWS[name](ops, p, q, x), p, q)


def check(function: Callable[[TorchOps, Probs, Probs], list[Tensor]], p: Tensor, q: Tensor) -> None:
    """A function of two distributions gives the same in torch and by kernels, for all kinds as for two in memory."""
    wanted = function(TORCH, p.clone(), q.clone())
    for ops, kinds in product((TORCH, KERNELS), KINDS):
        for one, other in zip(function(ops, given(p, kinds[0]), given(q, kinds[1])), wanted, strict=True):
            if other.dtype.is_floating_point:
                assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), (ops, kinds)
            else:
                assert torch.equal(one, other), (ops, kinds)


SIBLINGS: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "distinct": (WithoutReplacement, "verify_tree"),
    "independent": (Independent, "verify_tree"),
    "chosen": (lambda q: Chosen(V), "verify_tree"),
    "k-seq": (Independent, "verify_drafts"),
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

    def verdict(ops: TorchOps, p: Probs, q: Probs) -> list[Tensor]:
        draft = TreeDraft(tree, tokens, siblings(dense(q)))
        return found(getattr(ops, test)(p, draft, rule, uniforms(2, B, 4), uniforms(3, B, 3)))

    check(verdict, p, q)


@pytest.mark.parametrize("rule", [ratio, Beta(0.3)], ids=["exact", "relaxed"])
def test_columns(rule: Accept) -> None:
    positions = np.arange(4) + np.array([[5], [9], [0], [2]])
    p, q = weights(4, K)
    q = q[:, :3].contiguous()
    x = sample(q, uniforms(0, B, 3, K))

    def verdict(ops: TorchOps, p: Probs, q: Probs) -> list[Tensor]:
        rng = CounterRNG([1, 2, 3, 4], CPU).window(positions, 4)
        made = ops.verify_columns(p, Draft(x, q), rule, rng, None)
        return [*found(made), ops.couple_columns(p, Draft(x, q), rng), ops.couple_columns(made.p, made.draft, rng)]

    check(verdict, p, q)
