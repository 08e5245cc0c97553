"""The kernels around the attention of draft heads, against their references and the torch code of the heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run

from mmspec.decoding.kv_cache import KVCache
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters import head_attention
from mmspec.recipes import parse
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.tree import Tree
from mmspec.testing.toys import ToyTarget, toy_eagle3, toy_heads

pytest.importorskip("triton")

from mmspec.kernels import head_window

STARTS = np.array([3, 0, 9])


@pytest.fixture(autouse=True)
def wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory holds numbers that are wrong."""
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *a, **k: t.fill_(torch.nan) if (t := empty(*a, **k)).is_floating_point() else t
    )


def both_ways(monkeypatch: pytest.MonkeyPatch, work: Any) -> tuple[Any, Any, Any]:
    """By the kernel, by its reference and by the code that runs without kernels."""
    ours = work()
    with monkeypatch.context() as patch:
        patch.setattr(head_window, "chosen", lambda tensor: "torch")
        reference = work()
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    return ours, reference, work()


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("starts", [STARTS, STARTS * 0 + 5, STARTS + 300])
@pytest.mark.parametrize("recent", [None, 1, 5, 8, 1000])
def test_tokens_attend_up_to_themselves(
    device: torch.device,
    starts: np.ndarray,
    width: int,
    factor: int,
    recent: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dtype = torch.bfloat16 if width == 1 else torch.float32
    ours, reference, theirs = both_ways(
        monkeypatch, lambda: head_attention.bias_of_window(Numbers(starts), 2, 3 * factor, width, dtype, device, recent)
    )
    if ours is None:
        assert width == 1 and reference is None and theirs is None and (starts == 5).all()
        assert recent is None or recent >= 8  # all that there is
        return
    own = torch.from_numpy(starts).repeat(factor)[:, None] + 2 + torch.arange(width)
    assert torch.equal((ours[:, 0].cpu() == 0).sum(-1), (own + 1).clamp(max=recent or 1000))
    assert torch.equal((ours[:, 0].cpu() == 0).int().cumsum(-1).argmax(-1), own)  # the last one is its own slot
    assert ours.shape == (3 * factor, 1, width, starts.max() + 2 + width) and ours.dtype == dtype
    assert torch.equal(ours, reference) and torch.equal(ours, theirs)


@pytest.mark.parametrize("rows_of_tree", [1, 3])
@pytest.mark.parametrize("recent", [None, 1, 5])
def test_nodes_attend_to_their_ancestors(
    device: torch.device, rows_of_tree: int, recent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second level of a tree, whose first nodes have been read, with guidance."""
    parents = np.array([[0, 0, 1, 1, 2], [0, 0, 2, 1, 2], [0, 0, 2, 2, 2]])[:rows_of_tree]
    sees, end = Tree(parents, device).sees[:, 3:6, 1:6], int(STARTS.max()) + 1 + 6
    ours, reference, theirs = both_ways(
        monkeypatch,
        lambda: head_attention.bias_of_nodes(Numbers(STARTS), 1, sees, 6, end, torch.float32, device, recent),
    )
    assert torch.equal(ours, reference) and torch.equal(ours, theirs) and ours.shape == (6, 1, 3, end)
    assert (ours == 0).sum() < ours.numel() and not torch.equal(ours[0], ours[1])
    seen = torch.from_numpy(STARTS).repeat(2)[:, None] + 2
    seen = seen.clamp(max=recent or 1000) + sees.cpu().sum(-1).repeat(6 // rows_of_tree, 1)
    assert torch.equal((ours[:, 0].cpu() == 0).sum(-1), seen)


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("starts", [STARTS, STARTS * 0 + 5])
def test_keys_and_values_are_written_to_their_slots(
    device: torch.device, starts: np.ndarray, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From memory of other strides; nothing else is written."""
    rows, heads, width, size = 3 * factor, 2, 3, 6
    k = torch.randn(rows, width, heads, size, device=device).transpose(1, 2)
    v = torch.randn(rows, heads, size, width, device=device).transpose(2, 3)

    def write() -> list[Any]:
        cache = KVCache(2, rows, heads, 20, size, torch.float32, device)
        return [*head_attention.written(cache, 1, k, v, Numbers(starts), 2), cache.keys, cache.values]

    for one, other, third in zip(*both_ways(monkeypatch, write), strict=True):
        assert torch.equal(one, other) and torch.equal(one, third) and int((one != 0).sum()) == k.numel()


HEADS = ["eagle:window=3", "tree-eagle:branch=2/1", "eagle-2:window=5,depth=2,top=2", "kangaroo:window=3"]


SLOW = [(name, False) for name in HEADS[1:]] + [(name, True) for name in HEADS[1:3]]


@pytest.mark.parametrize(
    ("recipe", "sliding"),
    [(HEADS[0], False), (HEADS[0], True), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
@torch.no_grad()
def test_tokens_of_a_head_are_those_without_kernels(
    device: torch.device, recipe: str, sliding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type != "cpu":
        pytest.skip("the toy model is on the CPU")
    found = []
    heads = dict(toy_heads(3, 3, 0))
    if sliding:
        head = heads["eagle"] = toy_eagle3(3, 0)
        head.sliding_window = 2
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        resources = DraftResources(heads=heads)
        out = run(ToyTarget(3, 3, 6, 0), parse(recipe), Layout(6, 3), [SamplingParams(0.9)] * 3, range(3), resources)
        found.append((out.tokens.tolist(), out.stats.target_calls, out.stats.acceptance))
    assert found[0] == found[1]
