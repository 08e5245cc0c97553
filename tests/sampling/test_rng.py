"""Random numbers: known answers of Philox4x32-10, and the keys of each number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mmspec.sampling.rng
from mmspec.decoding.rows import select_rows
from mmspec.sampling.rng import CounterRNG, philox, round_keys

CPU = torch.device("cpu")
# Counter, key, block: the known-answer vectors published with the algorithm.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], block: list[int]) -> None:
    words = np.array(counter, dtype=np.uint64)[:, None]
    even, odd = philox(
        words[::2], words[1::2], round_keys(np.array([key[0] | key[1] << 32], dtype=np.uint64).view(np.int64))
    )
    assert [int(even[0, 0]), int(odd[0, 0]), int(even[1, 0]), int(odd[1, 0])] == block


def test_numbers_depend_on_seed_position_stream_and_iteration_only() -> None:
    rng = CounterRNG([7, -3, 2**63], CPU)
    positions = np.array([[0, 1, 2], [5, 6, 7], [1, 2, 3]])
    together = torch.stack(rng.uniforms(positions, 4))
    alone = torch.stack(CounterRNG([-3], CPU).uniforms(positions[1:2], 4))
    assert torch.equal(together[:, 1:2], alone)
    select_rows(rng, [2], 3)
    assert torch.equal(torch.stack(rng.uniforms(positions[2:], 4)), together[:, 2:])
    assert together.unique().numel() == together.numel()
    assert not torch.isin(torch.stack(CounterRNG([7], CPU).uniforms(positions[:1], 5)), together).any()
    each = np.array([[4, 9, 11]])
    per_position = torch.stack(CounterRNG([7], CPU).uniforms(positions[:1], each))
    assert torch.equal(per_position[:, :, 0], together[:, :1, 0])


def test_uniforms_are_uniform_and_streams_independent() -> None:
    u = torch.cat(CounterRNG(range(50_000), CPU).uniforms(np.full((50_000, 1), 3), 8), dim=1)
    assert (u >= 0).all() and (u < 1).all()
    counts = torch.stack([torch.histc(stream, 20, 0, 1) for stream in u.T])
    # Chi-square of 19 degrees of freedom: 60 is exceeded once in 300,000 trials.
    assert ((counts - 2500) ** 2 / 2500).sum(1).max() < 60
    assert (torch.corrcoef(u.T) - torch.eye(4)).abs().max() < 0.025


def test_gumbel_noise_is_fixed_per_position(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = CounterRNG([5, 6], CPU)
    first = rng.gumbel(np.array([[0, 1, 2], [4, 5, 6]]), 7)
    again = rng.gumbel(np.array([[1, 2, 3], [3, 4, 5]]), 7)
    assert torch.equal(first[0, 1:], again[0, :2]) and torch.equal(first[1, :2], again[1, 1:])
    assert first.unique().numel() == first.numel()
    for word in (0, 2**32 - 1):  # the extreme words give finite noise
        monkeypatch.setattr(mmspec.sampling.rng, "philox", lambda even, odd, keys, w=word: (even * 0 + w, odd * 0 + w))
        assert rng.gumbel(np.zeros((2, 1), dtype=np.int64), 5).isfinite().all()
    monkeypatch.undo()
    many = CounterRNG(range(2000), CPU).gumbel(np.zeros((2000, 1), dtype=np.int64), 50)
    assert many.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert many.var().item() == pytest.approx(np.pi**2 / 6, abs=0.05)
