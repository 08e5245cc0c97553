"""Attention that is split over the cache: torch's own attention, for every number of parts."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from mmspec.kernels import attention
from mmspec.kernels.attention import attend, attend_reference, can_attend, splits_of


@pytest.mark.parametrize(
    ("heads", "key_heads", "width", "size", "end", "splits"),
    [
        (4, 4, 1, 16, 130, 1),
        (6, 2, 3, 24, 200, 3),
        (4, 1, 5, 64, 65, 2),
        (7, 1, 2, 128, 300, 9),
        (64, 2, 5, 16, 90, 2),  # 160 queries per key head, read in three parts
    ],  # fmt: skip
)
def test_every_split_gives_the_attention_of_torch(
    heads: int, key_heads: int, width: int, size: int, end: int, splits: int, device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Rows at places of their own in a longer cache whose other slots hold NaN; a whole part of a row is masked."""
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *a, **k: t.fill_(torch.nan) if (t := empty(*a, **k)).is_floating_point() else t
    )
    monkeypatch.setattr(attention, "JOINED", 4)  # of parts as of a long cache
    torch.manual_seed(width)
    rows = 2
    q = torch.randn(rows, width, heads, size, device=device).transpose(1, 2)
    cache = torch.full((2, rows, key_heads, end + 9, size), torch.nan, device=device)
    cache[..., :end, :] = torch.randn(2, rows, key_heads, end, size, device=device)
    keys, values = cache[..., :end, :]
    slots = torch.tensor([end - width, width + 2], device=device)[:, None] + torch.arange(width, device=device)
    seen = torch.arange(end, device=device) <= slots[..., None]
    mask = torch.zeros(rows, 1, width, end, device=device).masked_fill(~seen[:, None], -torch.inf)
    assert can_attend(q, keys, mask)
    wanted = attend_reference(q, keys, values, mask, 0.3)
    assert torch.allclose(attend(q, keys, values, mask, 0.3, splits), wanted, atol=1e-5)
    for shared in (mask[:1], mask[:, :, -1:], mask[:1, :, -1:]):
        wanted = attend_reference(q, keys, values, shared, 0.3)
        assert torch.allclose(attend(q, keys, values, shared, 0.3, splits), wanted, atol=1e-5)


def test_what_the_kernel_does_not_take() -> None:
    q, keys, mask = torch.zeros(1, 4, 2, 16), torch.zeros(1, 2, 70, 16), torch.zeros(1, 1, 2, 70)
    assert can_attend(q, keys, mask)
    assert not can_attend(q.double(), keys.double(), mask.double())
    assert not can_attend(q.repeat(1, 1, 1, 16), keys.repeat(1, 1, 1, 16), mask), "more than 512 bytes per head"
    assert can_attend(q.repeat(1, 1, 1, 16).half(), keys.repeat(1, 1, 1, 16).half(), mask.half())
    assert not can_attend(q.repeat(1, 33, 1, 1), keys, mask), "66 query heads per key head"
    assert not can_attend(q[..., ::2], keys[..., :8], mask)
    assert not can_attend(q, keys, mask[..., :1]) and not can_attend(q, keys, mask == 0)


def test_how_many_parts() -> None:
    """About two programs per multiprocessor, of at least 128 slots each; a batch that fills the device is not split."""
    assert splits_of(16, 4224, 132) == 17
    assert splits_of(40, 416, 132) == 4
    assert splits_of(512, 4224, 132) == 1
