"""First tokens of frames that are forced by those before: drafts have them, and decoding stays exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.drafters.token_init import InitDrafter
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import WindowRNG
from mmspec.testing.exactness import check
from mmspec.testing.toys import ToyTarget

SAMPLING = SamplingParams(temperature=0.8, top_p=0.9, guidance_scale=1.5)


def next_of(self: ToyTarget, firsts: Tensor, counts: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """The token after the latest first one; free after 0. The toy's own tokens are others: a claim is a draft."""
    latest = firsts.numpy()[np.arange(len(firsts)), counts - 1]
    assert ((latest >= 0) & (latest < self.vocab_size)).all()
    return np.where(latest > 0, (latest + 1) % self.vocab_size, -1)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyTarget, "forces_firsts", True)
    monkeypatch.setattr(ToyTarget, "forced_firsts", next_of)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("recipe", ["scd:window=4", "sjd:window=3", "recycle:window=4"])
def test_forced_first_tokens_leave_the_distribution(recipe: str) -> None:
    result = check(recipe, SAMPLING, samples=20_000, layout=Layout(length=5))
    assert result.ok, result


@pytest.mark.usefixtures("forced")
def test_initial_drafts_have_what_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames have two tokens: at even positions, where a slot is new, the token after the latest first one."""
    found, real = [0, 0], InitDrafter.extend

    def extend(self: InitDrafter, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        made = real(self, state, draft, reused, draws)
        at = state.length - 1
        for row, tokens in enumerate(made.tokens.tolist()):
            latest = int(state.at((at // 2 * 2)[:, None])[row, 0])
            for slot, token in enumerate(tokens):
                if (at[row] + 1 + slot) % 2 == 0:
                    if slot >= reused.host[row] and latest > 0:
                        found[token == (latest + 1) % 3] += 1
                    latest = token
        return made

    monkeypatch.setattr(InitDrafter, "extend", extend)
    check("scd:window=4", SAMPLING, samples=200, layout=Layout(length=5), batch=100)
    assert found[0] == 0 < found[1]


@pytest.mark.usefixtures("forced")
def test_a_wrong_q_of_a_forced_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin that says that its drafts were sampled uniformly."""

    def uniform(ops: Any, q: Any, tokens: Tensor, first: int, is_new: Any, inplace: bool = False) -> Tensor:
        return torch.full((*tokens.shape, 3), 1 / 3)

    monkeypatch.setattr(TorchOps, "point_mass", uniform)
    assert not check("sjd:window=3", SAMPLING, samples=20_000, layout=Layout(length=5)).ok
