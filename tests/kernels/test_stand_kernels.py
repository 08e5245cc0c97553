"""The kernels of stochastic n-grams, against their references and the torch code of the drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.drafters.jacobi import Jacobi
from mmspec.drafters.token_init import repeat_left, repeat_up
from mmspec.methods.stand.drafter import StandDrafter
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import INIT, WindowRNG

pytest.importorskip("triton")

from mmspec.kernels import softmax_stats
from mmspec.methods.stand import kernel as stand

LENGTH, CPU = 30, torch.device("cpu")


def state_of(line: int, vocab: int, forced: str | None = None, lengths: Sequence[int] = (1, 9, 20)) -> BatchState:
    constraint = None
    if forced is not None:
        kinds = torch.zeros(LENGTH, dtype=torch.int64)
        kinds[[3, 12, 22]] = 1
        allowed = torch.ones(2, vocab, dtype=torch.bool)
        allowed[1] = torch.arange(vocab) == 6
        rows = torch.stack([kinds.roll(row) for row in range(len(lengths))])
        constraint = Constraint(kinds if forced == "all rows" else rows, allowed)
    state = BatchState(range(len(lengths)), Layout(LENGTH, line or None, constraint), 9, CPU)
    state._tokens[:] = torch.randint(3, state._tokens.shape)  # repeated neighbors
    state._lengths[:] = lengths
    return state


def stored_of(drafter: StandDrafter, device: torch.device) -> stand.Stored:
    return stand.Stored(drafter._tokens.to(device).clone(), drafter._probs.to(device).clone())


def close(ours: stand.Stored, theirs: stand.Stored) -> None:
    """Tokens without any probability are never sampled."""
    assert torch.allclose(ours.probs.cpu(), theirs.probs.cpu(), atol=1e-6)
    known = theirs.probs.cpu() > 0
    assert torch.equal(ours.tokens.cpu()[known], theirs.tokens.cpu()[known])


@pytest.mark.parametrize(
    ("line", "width", "vocab", "forced", "left"),
    [
        (0, 6, 7, None, (8, 2, 1)), (3, 5, 300, "each row", (9, 9, 9)), (8, 6, 40, "all rows", (0, 9, 4)),
        (0, 1, 20, None, (9, 9, 9)), (4, 6, 7, None, (9, 9, 9)),
    ],
)  # fmt: skip
def test_drafts_and_tables_are_those_of_the_drafter(
    device: torch.device, line: int, width: int, vocab: int, forced: str | None, left: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What two windows store, and what is drafted from it, with cuts that leave few tokens.

    The rows have `left` tokens more: some end in the window, or have ended.
    """
    fallback: Any = repeat_up if line else repeat_left
    drafter, state = StandDrafter(3, vocab, fallback, CPU), state_of(line, vocab, forced)
    state._limits[:] = state.length + left
    monkeypatch.setattr(stand, "CHUNK", 128)
    ours = stored_of(drafter, device)
    order = torch.tensor([2, 0, 1], device=device)
    storage = state._tokens[[1, 2, 0]].to(device)
    for _ in range(2):
        draws = state.rng.window(state.positions(width), 0)
        p = (2 * torch.randn(3, width, vocab)).softmax(-1)
        p = torch.where(p < p.topk(min(vocab, 20), dim=-1).values[..., -1:], 0.0, p)
        p[0] = torch.rand(width, vocab) * (torch.arange(vocab) >= vocab - 3)
        p /= p.sum(-1, keepdim=True)
        drafts = torch.randint(3, (3, width - 1))
        drafter.observe(Verdict(drafts, Numbers(np.zeros(3, dtype=np.int64)), p, Draft(drafts, p)), state, draws)
        positions, limits = (each.on(device) for each in (draws.positions, state.limits()))
        wide = torch.cat([drafts, drafts], dim=1).to(device)[:, : width - 1]  # not contiguous
        again = stand.Stored(*(one.clone() for one in ours))
        stats = softmax_stats.stats_of_probs(p.to(device))
        stand.store(stats, storage, order, positions, limits, wide, ours, line)
        with monkeypatch.context() as patch:
            patch.setenv("MMSPEC_KERNELS", "torch")
            stand.store(stats, storage, order, positions, limits, wide, again, line)
        close(ours, again)
        close(ours, stored_of(drafter, CPU))
    assert (ours.probs > 0).any()
    draws = state.rng.window(state.positions(9), 3)
    wanted, sampled = drafted_by(drafter, state, draws, vocab)
    constraint = state.layout.constraint
    must = None if constraint is None else torch.from_numpy(constraint.forced.tokens).to(device)
    given: tuple[Any, ...] = (
        storage, order, draws.positions.on(device), draws[INIT].to(device), ours, line, vocab, must,
    )  # fmt: skip
    found = stand.draft_stored(*given)
    assert torch.equal(found.window[:, 1:].cpu(), wanted.tokens) and 0 < sampled < wanted.tokens.numel()
    assert torch.equal(found.window[:, 0].cpu(), state.last()[:, 0])
    q = softmax_stats.SoftmaxStats(found.logits, None, None, found.floats, found.ints).dense().cpu()
    assert torch.allclose(q, dense(wanted.q), atol=1e-6)
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    for one, other in zip(found, stand.draft_stored(*given), strict=True):
        assert torch.allclose(one.float(), other.float(), atol=1e-6)


def drafted_by(drafter: StandDrafter, state: BatchState, draws: WindowRNG, vocab: int) -> tuple[Draft, int]:
    """The drafts of the torch code, and how many of them were sampled."""
    none = Draft(torch.zeros(3, 8, dtype=torch.int64), torch.zeros(3, 8, vocab))
    draft = drafter.extend(state, none, Numbers(np.zeros(3, dtype=np.int64)), draws)
    chance = dense(draft.q).gather(-1, draft.tokens[..., None])
    return draft, int((chance < 1).sum())


def test_equally_likely_tokens_are_stored_in_order(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand, "CHUNK", 32)
    p = torch.tensor([1.0, 2.0, 1.0]).repeat(50)[None, None].to(device)
    stored = stand.Stored(
        torch.zeros(1, 200, 16, dtype=torch.int32, device=device), torch.zeros(1, 200, 16, device=device)
    )
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    tokens, positions = torch.zeros(1, 5, dtype=torch.int64, device=device), torch.tensor([[2]], device=device)
    stand.store(softmax_stats.stats_of_probs(p / p.sum()), tokens, zero, positions, zero + 9, tokens[:, :0], stored, 0)
    assert stored.tokens[stored.probs[..., 0] > 0].tolist() == [list(range(1, 48, 3))]


def test_windows_with_reused_drafts_take_the_torch_path() -> None:
    drafter = StandDrafter(1, 5, repeat_left, CPU)
    assert Jacobi(drafter, None, 5)._kernel is drafter

    def coupling(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
        return verdict.tokens

    assert Jacobi(drafter, coupling, 5)._kernel is None
