"""Linear layers of a few rows: torch's own, for every way to split them."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from mmspec.kernels import linear
from mmspec.kernels.linear import MOST_ROWS, Tiling, can_multiply

# All of the weights held, some, none; an input width of 72 that no chunk divides.
TILINGS = (Tiling(16, 4, 16, 99, 1), Tiling(8, 4, 16, 1, 2), Tiling(32, 2, 32, 0, 3))
WIDTH = 72


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda t, *a, **k: empty(t, *a, **k).fill_(torch.nan if t.is_floating_point() else -1),
    )
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    torch.manual_seed(0)
    return str(request.param)


def close(one: Tensor, other: Tensor) -> None:
    # Triton's interpreter truncates where a device rounds to the nearest bfloat16.
    tolerance = 0.03 if one.dtype == torch.bfloat16 else 1e-5
    scale = float(other.nan_to_num().abs().max())
    torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize(("rows", "width"), [(2, 1), (3, 5)])
def test_products_are_those_of_torch(
    rows: int, width: int, tiling: Tiling, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 40 columns, which no tile divides."""
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("the kernels take 16-bit numbers there")
    monkeypatch.setattr(linear, "tiling_of", lambda *_: tiling)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    x, gate, up, norm, bias = (
        random(rows, width, WIDTH), random(40, WIDTH), random(40, WIDTH), random(WIDTH), random(40),
    )  # fmt: skip
    close(
        linear.swiglu_linear(x, norm, 1e-5, gate / 8, up / 8),
        linear.swiglu_linear_reference(x, norm, 1e-5, gate / 8, up / 8),
    )
    for added in (bias, None):
        found = random(rows, width, 40)
        wanted = found.clone()
        linear.add_linear(found, x, gate, added)
        linear.add_linear_reference(wanted, x, gate, added)
        close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize(("halves", "heads", "groups", "size"), [(False, 3, 3, 12), (True, 4, 2, 24), (True, 2, 1, 32)])
def test_queries_keys_and_values_are_those_of_torch(
    halves: bool, heads: int, groups: int, size: int, tiling: Tiling, dtype: torch.dtype, device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Rows at slots of their own; nothing else is written to the cache."""
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("the kernels take 16-bit numbers there")
    monkeypatch.setattr(linear, "tiling_of", lambda *_: tiling)
    x, norm = (torch.randn(*shape, device=device).to(dtype) for shape in ((2, 3, WIDTH), (WIDTH,)))
    lines = [n * size for n in (heads, groups, groups)]
    weights = [torch.randn(n, WIDTH, device=device).to(dtype) / 8 for n in lines]
    biases = [torch.randn(n, device=device).to(dtype) for n in lines] if groups < heads else []
    angle = torch.randn(2, 3, size, device=device)
    cos, sin = (one.to(dtype) if halves else one for one in (angle.cos(), angle.sin()))
    slots = torch.tensor([[4, 5, 6], [0, 2, 1]], device=device)
    found: list[tuple[Tensor, ...]] = []
    for product in (linear.qkv, linear.qkv_reference):
        keys, values = (torch.full((2, groups, 8, size), torch.nan, dtype=dtype, device=device) for _ in range(2))
        out = product(x, norm, 1e-5, weights, biases, cos, sin, slots, keys, values, halves)
        found.append((out, keys, values))
    for one, other in zip(*found, strict=True):
        close(one, other)
    assert int(found[0][1].isnan().sum()) == 2 * groups * 5 * size


@pytest.mark.parametrize("width", [2, 16])
def test_a_row_does_not_depend_on_the_others(width: int, device: str) -> None:
    """A window's tokens are bit for bit those of plain steps."""
    x, norm = (torch.randn(*shape, device=device).bfloat16() for shape in ((1, width, 64), (64,)))
    gate, up = torch.randn(2, 32, 64, device=device).bfloat16().unbind()
    together = linear.swiglu_linear(x, norm, 1e-5, gate, up)
    alone = [linear.swiglu_linear(x[:, i : i + 1], norm, 1e-5, gate, up) for i in range(0, width, 7)]
    assert torch.equal(together[:, ::7], torch.cat(alone, dim=1))


def test_what_the_kernels_take() -> None:
    x, weight = torch.zeros(2, 3, 64, dtype=torch.bfloat16), torch.zeros(32, 64, dtype=torch.bfloat16)
    others: list[tuple[Any, Any]] = [
        (x.float(), weight.float()), (x, weight.float()), (x.half(), weight.half()), (x[..., :40], weight[:, :40]),
        (x[..., :40], weight[:, :40].contiguous()), (x, weight.t().contiguous().t()),
        (x.repeat(1, MOST_ROWS, 1), weight),
    ]  # fmt: skip
    assert can_multiply(x, weight) and can_multiply(x, weight, *weight.chunk(2))
    assert not any(can_multiply(*other) for other in others)
    assert linear.pays(x, weight) and not linear.pays(x.repeat(1, 1, 21), weight.repeat(1, 21)), "cuBLAS is faster"
