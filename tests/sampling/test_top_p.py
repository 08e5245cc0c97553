"""Top-p without a sort of the whole vocabulary, and the tensors that a sampler makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.truncation import keep_top_p


def sorted_top_p(p: Tensor, top_p: Tensor) -> Tensor:
    """`keep_top_p` by a stable sort of all tokens."""
    ordered, index = p.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill((before >= top_p) & (before > 0), 0.0)
    kept = torch.zeros_like(p).scatter_(-1, index, ordered)
    return torch.where(top_p < 1, kept / kept.sum(-1, keepdim=True), p)


@pytest.mark.parametrize("vocab_size", [5, 2048, 2049, 9000])
@pytest.mark.parametrize("ties", [None, 2, 0])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 8.0])
def test_the_result_is_that_of_a_full_sort(vocab_size: int, ties: int | None, spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for limit in (1e-6, 0.3, 0.9, 0.9999999):
        z = torch.randn(2, 3, vocab_size, generator=generator) * spread
        if ties is not None:
            z = (z * 4**ties).round() / 4**ties
        truncated = z.masked_fill(z < z.topk(min(vocab_size, 50)).values[..., -1:], -torch.inf)
        top_p = torch.tensor([limit, 1.0])[:, None, None]
        for p in (z.softmax(-1), truncated.softmax(-1)):
            expected = sorted_top_p(p, top_p)
            assert torch.equal(keep_top_p(p, top_p), expected)
            assert torch.equal(keep_top_p(p.clone(), top_p, inplace=True), expected)


def test_of_equally_likely_tokens_the_first_are_kept() -> None:
    p = torch.full((1, 4000), 1 / 4000)
    assert keep_top_p(p, torch.tensor([[0.1]])).nonzero()[:, 1].tolist() == list(range(400))
    p = torch.tensor([[0.1, 0.2, 0.2, 0.1, 0.2, 0.2]])
    assert keep_top_p(p, torch.tensor([[0.5]])).nonzero()[:, 1].tolist() == [1, 2, 4]


def test_what_is_not_a_distribution_stays_invalid() -> None:
    p = torch.full((2, 3000), torch.nan)
    p[1] = 1 / 3000
    found = keep_top_p(p, torch.tensor([[0.9], [0.9]]))
    assert found[0].isnan().all() and found[1].isfinite().all()


def test_gradients_are_those_of_a_full_sort() -> None:
    gradients = list[Tensor]()
    for keep in (keep_top_p, sorted_top_p):
        z = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0)).requires_grad_()
        keep(z.softmax(-1), torch.tensor([[0.7], [1.0]]))[:, ::7].square().sum().backward()
        assert z.grad is not None
        gradients.append(z.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-7)


class Written(TorchDispatchMode):
    """Counts the new float tensors of at least `size` entries that operations return."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.seen = set[int]()
        self.count = 0

    def watch(self, tensor: Tensor) -> None:
        self.seen.add(tensor.untyped_storage().data_ptr())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() >= self.size:
                place = leaf.untyped_storage().data_ptr()
                self.count += place not in self.seen
                self.seen.add(place)
        return found


@pytest.mark.parametrize("guided", [False, True], ids=["unguided", "guided"])
@pytest.mark.parametrize(
    "params",
    [SamplingParams(0.7, top_k=100), SamplingParams(0.7, top_p=0.9), SamplingParams(), SamplingParams(0.5)],
    ids=["top_k", "top_p", "plain", "temperature"],
)
def test_a_sampler_makes_at_most_three_tensors_of_the_vocabularys_size(
    params: SamplingParams, guided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (2, 4, 3000)
    size = 2 * 4 * 3000
    generator = torch.Generator().manual_seed(0)
    cond, uncond = (torch.randn(shape, generator=generator) * 4 for _ in range(2))
    kept = [cond.clone(), uncond.clone()]
    settings = SamplingParams(params.temperature, params.top_k, params.top_p, 3.0 if guided else 1.0)
    sampler = TokenSampler([settings] * 2, None, torch.device("cpu"))
    written = Written(size)

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(array: Any, *args: Any, **kwargs: Any) -> Any:
            found = function(array, *args, **kwargs)
            if found.size >= size:
                written.count += 1
                written.seen.add(found.ctypes.data)
            return found

        return call

    for name in ("partition", "sort"):
        monkeypatch.setattr(np, name, counting(getattr(np, name)))
    with torch.inference_mode(), written:
        written.watch(cond)
        written.watch(uncond)
        sampler(Logits(cond, uncond if guided else None), Numbers(np.tile(np.arange(4), (2, 1))))
    assert 1 <= written.count <= 3
    assert torch.equal(cond, kept[0]) and torch.equal(uncond, kept[1])  # the model's logits are not overwritten
