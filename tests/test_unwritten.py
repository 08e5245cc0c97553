"""Decoding with the kernels gives the tokens that decoding without them gives, for the same seeds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.engine import run
from mmspec.errors import ModelError
from mmspec.law import Constraint, Law, Logits, Sampling
from mmspec.recipes import parse
from mmspec.target import Layout

pytest.importorskip("triton")

from mmspec.unwritten import Unwritten

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

VOCAB, LENGTH = 21, 5


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    return torch.device(request.param)


class Bigram:
    """Logits that depend on the last token alone, with an unconditional side; each row has a prompt token."""

    vocab_size = VOCAB

    def __init__(self, rows: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(3)
        self.device = device
        self.cond, self.uncond = (torch.randn(2, VOCAB, VOCAB, generator=generator) * 1.5).to(device)
        self.rows = rows

    def prefill(self) -> Logits:
        return self.forward(torch.zeros(self.rows, 1, dtype=torch.int64, device=self.device), np.zeros(self.rows))

    def forward(self, tokens: Tensor, at: Any) -> Logits:
        return Logits(self.cond[tokens], self.uncond[tokens])

    def keep(self, rows: list[int]) -> None:
        self.rows = len(rows)


def decoded(recipe: str, device: torch.device, kernels: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MMSPEC_KERNELS", kernels)
    samplings = [Sampling(0.8, guidance_scale=2.0, top_k=12, guidance_end=3), Sampling(0.0, guidance_scale=1.5)]
    allowed = torch.ones(2, VOCAB, dtype=torch.bool, device=device)
    allowed[1, ::2] = False
    kinds = torch.tensor([0, 0, 1, 0, 0], device=device)
    layout = Layout(LENGTH, 4, Constraint(kinds, allowed))
    return run(Bigram(2, device), parse(recipe), layout, samplings, [5, 6])


@pytest.mark.parametrize(
    "recipe",
    [
        "plain",
        "sjd:window=3,start=left",
        "scd:window=3,start=up",
        pytest.param("scd:window=3,coupling=gumbel", marks=pytest.mark.slow),
        pytest.param("beta:window=3", marks=pytest.mark.slow),
    ],
)
def test_the_same_tokens_with_and_without(recipe: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (decoded(recipe, device, kernels, monkeypatch) for kernels in ("triton", "torch"))
    assert torch.equal(ours.tokens, theirs.tokens)
    assert ours.stats.nfe == theirs.stats.nfe and ours.stats.acceptance == theirs.stats.acceptance


def test_nothing_of_a_window_is_written_out(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(self: Unwritten) -> Tensor:
        raise AssertionError("a law was written out")

    monkeypatch.setattr(Unwritten, "dense", written)
    for recipe in ("plain", "sjd:window=3,start=left"):
        decoded(recipe, device, "triton", monkeypatch)


def test_laws_that_are_not_written_are_tensors_to_all_others(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cond, positions = torch.randn(2, 3, VOCAB, device=device), np.zeros((2, 3), dtype=np.int64)
    law = Law([Sampling(0.7), Sampling(top_k=3)], None, device)
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    wanted = law(Logits(cond, None), positions)
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    p = law(Logits(cond, None), positions)
    assert isinstance(p, Unwritten) and p.shape == wanted.shape and len(p) == 2 and p.device == cond.device
    assert torch.allclose(torch.special.entr(p).sum(-1), torch.special.entr(wanted).sum(-1), atol=1e-5)
    assert torch.allclose(p[:, 1:] + 0, wanted[:, 1:], atol=1e-6) and torch.allclose(p[1, 0], wanted[1, 0], atol=1e-6)


def test_logits_that_are_not_numbers_are_an_error(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Bigram(1, device)
    target.cond[:] = torch.nan
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    for recipe in ("plain", "sjd:window=3,start=left"):
        with pytest.raises(ModelError, match="not numbers"):
            run(target, parse(recipe), Layout(LENGTH, 4), [Sampling()], [5])
