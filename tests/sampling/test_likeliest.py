"""The likeliest tokens: those of a stable sort."""

from __future__ import annotations

import pytest
import torch

from mmspec.sampling.likeliest import likeliest


@pytest.mark.parametrize(("shape", "count"), [((3, 2, 300), 7), ((5,), 5), ((2, 1), 1), ((4, 130), 130)])
def test_of_equally_likely_tokens_the_first(shape: tuple[int, ...], count: int) -> None:
    """With many equal numbers, zeros, and numbers next to each other."""
    generator = torch.Generator().manual_seed(0)
    p = torch.randint(4, shape, generator=generator) / 4
    p = torch.where(torch.rand(shape, generator=generator) < 0.2, p.nextafter(torch.ones(())), p)
    tokens, probs = likeliest(p, count)
    wanted = p.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(tokens, wanted.indices[..., :count]) and torch.equal(probs, wanted.values[..., :count])
    strided = p[..., None].expand(*shape, 2)[..., 0]
    assert torch.equal(likeliest(strided, count)[0], tokens)
