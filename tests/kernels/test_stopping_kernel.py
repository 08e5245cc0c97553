"""The kernel of chains that stop, against its reference and the torch code of the drafter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.methods.draft_stop.drafter import StoppingDrafter
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome

pytest.importorskip("triton")

from mmspec.kernels.softmax_stats import stats_of_probs
from mmspec.methods.draft_stop import kernel as stopping

VOCAB = 300


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "CHUNK", 128)


def test_drafts_are_those_of_the_reference(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that go on, that stop at once and later, with distributions of one token and of many, and an invalid one."""
    rows, m = 5, 3
    sharp = torch.tensor([8.0, 0.2, 3.0, 50.0, 1.0])[:, None]
    found = []
    for kernels in ("triton", "torch"):
        torch.manual_seed(1)
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        window = torch.full((rows, 1 + m), -7, device=device)
        floats = torch.full((rows, m, 5), torch.nan, device=device)
        ints, chances = torch.full((rows, m, 5), -7, dtype=torch.int32, device=device), torch.full((m + 1, rows), -7.0)
        chances, guesses = chances.to(device), torch.randint(VOCAB, (rows, m)).to(device)
        last = torch.arange(rows, device=device)[:, None]
        for slot in range(m):
            p = (sharp * torch.randn(rows, VOCAB)).softmax(-1)[:, None]
            p[3] = torch.nn.functional.one_hot(torch.tensor(4), VOCAB).float()
            p[4] = torch.nan if slot else p[4]
            sampled = torch.randint(-1, VOCAB, (rows, 1)).to(device)
            given = guesses, last, window, floats, ints, chances
            stopping.stop_draft(stats_of_probs(p.to(device)), sampled, *given, slot, 0.3)
        found.append((window, floats, ints, chances))
        assert (window >= 0).all() and (ints > -7).all() and not floats.isnan().any()
        chances[0] = 1.0
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one.float(), other.float(), atol=1e-5, equal_nan=True)
    stops = (found[0][3][:3] >= 0.3).sum(0)
    assert stops.min() == 1 and stops[3] == 3, "a weak test"


class Fixed:
    """A draft runner whose logits depend on the row and the token before."""

    calls = 0

    def __init__(self, device: torch.device) -> None:
        self._sampler = TokenSampler([SamplingParams(0.8, top_k=20)] * 3, None, device)
        self._logits = torch.randn(VOCAB, VOCAB, device=device) * torch.logspace(0, 1.3, VOCAB, device=device)[:, None]

    def root(self, state: BatchState) -> Probs:
        return self._probs(state.last(), state.positions(1))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        return self._probs(tokens, state.positions(first + 1)[:, first:])

    def _probs(self, tokens: Tensor, positions: np.ndarray) -> Probs:
        self.calls += 1
        return self._sampler(Logits(self._logits[tokens], None), Numbers(positions))

    def observe(self, verdict: Outcome, state: BatchState) -> None: ...


@pytest.mark.parametrize("line", [None, 3])
def test_drafts_are_those_of_the_drafter(
    device: torch.device, line: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, calls = [], []
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        torch.manual_seed(3)
        state = BatchState([1, 2, 3], Layout(30, line), 9, device)
        state.commit(torch.randint(VOCAB, (3, 8)).to(device), np.array([7, 3, 5]))
        runner = Fixed(device)
        drafter = StoppingDrafter(runner, 0.25, device)
        found.append(drafter.propose(state, 6, state.window(7, np.zeros((3, 1), dtype=np.int64))))
        calls.append(runner.calls)
    ours, theirs = found
    assert torch.equal(ours.tokens, theirs.tokens) and calls[0] == calls[1]
    assert ours.window is not None and torch.equal(ours.window[:, 1:], ours.tokens)
    q = dense(theirs.q)
    assert torch.allclose(dense(ours.q), q, atol=1e-5)
    certain = (q.gather(-1, theirs.tokens[..., None]) == 1).sum()
    assert 0 < certain < theirs.tokens.numel(), "a weak test: no row stops, or every row"
