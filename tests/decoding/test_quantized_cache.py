"""KV caches of 8 and 4 bits: what they keep, and that recipes are exact for the target with such a cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import torch
from batch_runs import run
from tiny_targets import causal, llamagen
from torch import Tensor

import mmspec
import mmspec.audio.spoken.target
from mmspec.batching.async_engine import AsyncEngine
from mmspec.decoding.gear import Gear
from mmspec.decoding.layout import Layout
from mmspec.decoding.quantized_cache import (
    QuantizedStore,
    cache_bits,
    cache_distance,
    dequantize,
    quantize,
    quantized_cache,
)
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.rows import select_rows
from mmspec.errors import ArgumentError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

N = 16


@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_are_kept_to_half_a_step(bits: int) -> None:
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 2.5  # a vector of equal numbers
    codes, scale = quantize(x, bits)
    assert codes.dtype == torch.uint8 and codes.shape[-1] == 8 * bits // 8
    step = (x.amax(-1) - x.amin(-1)) / (2**bits - 1)
    error = (dequantize(codes, scale, bits, x.dtype) - x).abs().amax(-1)
    assert (error <= step / 2 + 1e-6).all()


@pytest.mark.parametrize(("bits", "gear"), [(8, None), (4, None), (4, Gear(2, 1))])
@pytest.mark.parametrize("make", [llamagen, causal])
def test_windows_with_roll_back_equal_single_tokens(make: Callable[[], Any], bits: int, gear: Gear | None) -> None:
    with torch.inference_mode(), quantized_cache(bits, gear):
        one, other = make(), make()
        assert one.prefill().cond.equal(other.prefill().cond)
        x, junk = torch.randint(tiny_llamagen.V, (2, 2, N), generator=torch.Generator().manual_seed(1))
        other.forward(junk[:, :5], np.zeros(2, dtype=np.int64))
        window = other.forward(x[:, :6], np.zeros(2, dtype=np.int64)).cond
        for n in range(6):
            single = one.forward(x[:, n : n + 1], np.full(2, n)).cond
            torch.testing.assert_close(single[:, 0], window[:, n], atol=1e-4, rtol=1e-3)
        for target in (one, other):
            select_rows(target, [1], 2)
        after = [target.forward(x[1:, 6:8], np.array([6])).cond for target in (one, other)]
        torch.testing.assert_close(*after, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("recipe", ["scd:window=5", "tree-chains:branch=2/1,layers=1", "short-cache:window=3,recent=2"])
def test_greedy_recipes_equal_plain_decoding_with_the_same_cache(recipe: str) -> None:
    settings = [SamplingParams(temperature=0, guidance_scale=2.0)] * 2

    def decode(name: str) -> Tensor:
        return run(llamagen(), parse(name), Layout(N, width=4), settings, [1, 2], DraftResources()).tokens

    with quantized_cache(8):
        assert torch.equal(decode(recipe), decode("plain"))


@pytest.mark.parametrize("make", [llamagen, causal])
def test_bytes_and_distance(make: Callable[[], Any]) -> None:
    tokens = torch.randint(tiny_llamagen.V, (2, N), generator=torch.Generator().manual_seed(2))
    target = make()
    sampler = Layout(N).sampler([SamplingParams(guidance_scale=2.0)] * 2, torch.device("cpu"))
    target.prefill()
    whole = target.cache_bytes
    distance = {}
    for bits in (8, 4):
        distance[bits] = cache_distance(make, sampler, tokens, bits)
        assert distance[bits].shape == (2, N)
        with quantized_cache(bits):
            target = make()
            target.prefill()
        # Vectors of these tiny heads are short: the two float32 of the scale are a large part.
        assert target.cache_bytes < whole
    assert 0 < distance[8].mean() < distance[4].mean() < 1


def test_a_cache_that_quantizes_with_the_window_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scale for all tokens of a call, as in caches that quantize by block: windows differ from single tokens."""

    def by_window(states: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        codes, scale = quantize(states.transpose(-1, -2).flatten(-2)[..., None, :], bits)
        width = states.shape[-2]
        codes = codes.unflatten(-1, (-1, width))[..., 0, :, :].transpose(-1, -2)
        return codes, scale.expand(*scale.shape[:-2], width, 2)

    monkeypatch.setattr("mmspec.decoding.quantized_cache.quantize", by_window)
    with pytest.raises(AssertionError):
        test_windows_with_roll_back_equal_single_tokens(llamagen, 8, None)


def test_a_matrix_over_the_tokens_of_a_window_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in GEAR: the error of a token is approximated with that of others, which may be rolled back."""
    honest = Gear.factors

    def over_tokens(self: Gear, error: Tensor) -> tuple[Tensor, Tensor]:
        left, right = honest(self, error.mean(2, keepdim=True))
        width = error.shape[2]
        return left.expand(-1, -1, width, -1), right.expand(-1, -1, width, -1)

    monkeypatch.setattr(Gear, "factors", over_tokens)
    with pytest.raises(AssertionError):
        test_windows_with_roll_back_equal_single_tokens(llamagen, 4, Gear(0, 1))


def test_outliers_and_low_rank() -> None:
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    x[..., 2] += 9

    def error(gear: Gear | None) -> float:
        with quantized_cache(4, gear):
            store = QuantizedStore.zeros(x.shape, 4, x.dtype)
        return float((store.decode(store.encode(x)) - x).square().mean())

    plain, outliers, rank = error(None), error(Gear(2, 0)), error(Gear(0, 1))
    assert outliers < plain / 4 and rank < plain * 0.6 and error(Gear(2, 1)) < outliers * 0.6
    with quantized_cache(4, Gear(2, 0)):
        store = QuantizedStore.zeros((1, 1, 1, 8), 4, torch.float32)
    wide = torch.tensor([0.0, 1, 2, 3, 4, 5, -1e6, 1e6]).view(1, 1, 1, 8)
    assert store.decode(store.encode(wide)).isfinite().all(), "outliers are kept in float16"
    assert error(Gear(0, 3)) < 1e-5 and error(Gear(0, 9)) < 1e-5  # as many as there are heads: 16 bits of the error


def test_streams_and_engines_decode_with_the_cache_of_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both decode in a thread of their own."""
    found: list[int | None] = []

    def observed() -> int | None:
        found.append(cache_bits())
        return found[-1]

    monkeypatch.setattr(mmspec.audio.spoken.target, "cache_bits", observed)
    pipe = mmspec.load("spoken")
    with quantized_cache(8):
        next(pipe.stream("yes", seed=1))
        engine = AsyncEngine(pipe)

    async def generate() -> None:
        async for _ in engine.generate("yes", seed=1):
            break

    asyncio.run(generate())
    engine.close()
    assert len(found) >= 2 and set(found) == {8}


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="bits=2 is not allowed; a KV cache holds 8 or 4 bits per number"):
        quantized_cache(2).__enter__()
    with pytest.raises(ArgumentError, match="outliers=3, rank=1 is not allowed; outliers must be even, and both 0"):
        Gear(3, 1)
    with pytest.raises(ArgumentError, match=r"outliers=2.0, rank=1 is not allowed"):
        Gear(2.0, 1)  # type: ignore[arg-type]
    with quantized_cache(4, Gear(8, 0)), pytest.raises(ArgumentError, match="this model's heads have 8 numbers"):
        QuantizedStore.zeros((1, 2, 4, 8), 4, torch.float32)
    with quantized_cache(4):
        assert cache_bits() == 4
    assert cache_bits() is None
