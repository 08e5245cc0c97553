"""The kernels of couplings and of the drafts of a window, against their references and the torch code of drafters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.window_inputs import WindowInputs
from mmspec.drafters.ngram import NGramTable
from mmspec.drafters.token_init import InitDrafter, RandomToken, TokenInit, repeat_left, repeat_up
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.numbers import Numbers, upload
from mmspec.sampling.ops import TORCH
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import INIT, CounterRNG

pytest.importorskip("triton")

from mmspec.kernels import commit, coupling, fused_sampler, residual, softmax_stats, token_init


@pytest.mark.parametrize("vocab", [9, 300])
def test_coupled_tokens_are_the_core_s(device: torch.device, vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, m = 3, 4
    p = (1.5 * torch.randn(batch, m + 1, vocab, device=device)).softmax(-1)
    q = (p[:, :m].log() + 0.7 * torch.randn(batch, m, vocab, device=device)).softmax(-1)
    x = torch.multinomial(q.flatten(0, 1), 1).view(batch, m)
    accept_u, resample_u = torch.rand(2, batch, m + 1, device=device)
    accepted = torch.tensor([0, 2, 4], device=device)
    tokens, sampled = torch.randint(vocab, (2, batch, m + 1), device=device)
    monkeypatch.setattr(residual, "CHUNK", 256)
    given = softmax_stats.stats_of_probs(p), softmax_stats.stats_of_probs(q), x, tokens, sampled, accepted
    found = coupling.couple_maximally(*given, accept_u, resample_u)
    with monkeypatch.context() as patch:
        patch.setenv("MMSPEC_KERNELS", "torch")
        assert torch.equal(found, coupling.couple_maximally(*given, accept_u, resample_u))
    verdict = Verdict(tokens, Numbers(accepted.cpu().numpy()), p, Draft(x, q))
    wanted = TORCH.couple_maximally(p, verdict, accept_u, resample_u)
    for row, n in enumerate(accepted.tolist()):
        assert torch.equal(found[row, : n + 1], tokens[row, : n + 1])
        assert torch.equal(found[row, n + 1 : m], wanted[row, n + 1 : m])
    assert found[0, m] == sampled[0, m]
    kept = (found == torch.nn.functional.pad(x, (0, 1)))[0, 1:m].sum() + (found[1, 3] == x[1, 3])
    assert 0 < int(kept) < 4, "a weak test: all drafts are kept, or none"


def test_a_slot_without_a_distribution_is_not_coupled(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its draft would be kept, as no random number is at least NaN, and the error would come a window later."""
    logits, q = torch.zeros(1, 3, 9, device=device), torch.full((1, 2, 9), 1 / 9, device=device)
    logits[0, 1, 4] = torch.nan
    ones = torch.ones(1, 3, device=device)
    settings = fused_sampler.Settings(ones, ones[:, 0].contiguous(), None, None, None, None)
    p = fused_sampler.fused_sample(logits, None, settings, ones / 2).stats
    x = torch.tensor([[2, 3]], device=device)
    tokens, u = torch.tensor([[5, 6, 7]], device=device), torch.full((1, 3), 0.5, device=device)
    given = p, softmax_stats.stats_of_probs(q), x, tokens, tokens
    accepted = torch.zeros(1, dtype=torch.int64, device=device)
    assert coupling.couple_maximally(*given, accepted, u, u).tolist() == [[5, -1, 7]]
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    assert coupling.couple_maximally(*given, accepted, u, u).tolist() == [[5, -1, 7]]


def test_tokens_of_fixed_noise_are_the_core_s(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    p = torch.randn(2, 3, 300, device=device).softmax(-1)
    positions, rng = np.array([[3, 4, 5], [0, 1, 2]]), CounterRNG([5, -9], torch.device("cpu"))
    monkeypatch.setattr(residual, "CHUNK", 128)
    given = (
        softmax_stats.stats_of_probs(p),
        torch.from_numpy(rng.seeds).to(device),
        torch.from_numpy(positions).to(device),
    )
    wanted = TORCH.couple_by_noise(p.cpu(), rng, Numbers(positions))
    assert torch.equal(coupling.couple_by_noise(*given).cpu(), wanted)
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    assert torch.equal(coupling.couple_by_noise(*given).cpu(), wanted)


VOCAB, LENGTH = 7, 30
CASES: dict[str, tuple[int, TokenInit]] = {
    "left": (token_init.LEFT, repeat_left),
    "up": (token_init.UP, repeat_up),
    "random": (token_init.RANDOM, RandomToken(VOCAB)),
    "table": (token_init.TABLE, NGramTable(torch.randint(VOCAB, (VOCAB + 1, VOCAB)))),
}


@pytest.mark.parametrize(
    ("name", "line", "forced"),
    [
        ("left", 0, None),
        ("left", 3, "each row"),
        ("up", 3, None),
        ("up", 8, "all rows"),
        ("random", 8, None),
        ("table", 3, "each row"),
        ("table", 0, None),
    ],
)
def test_drafts_are_those_of_the_drafter(
    device: torch.device, name: str, line: int, forced: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that have reused 3, 0 and all drafts, at the beginning of a sequence, within it and near its end."""
    code, init = CASES[name]
    m, before = 5, 7
    state, tokens = state_of(line, forced)
    draws = state.rng.window(state.positions(m + 1), 4)
    accepted = np.array([3, 6, 0])  # of 7 slots: 3, 0 and 6 of them are left
    previous = torch.randint(VOCAB, (3, before))
    floats, ints = torch.rand(3, before, 5), torch.randint(50, (3, before, 5), dtype=torch.int32)
    reused = np.minimum(before - accepted - 1, m)
    held = torch.zeros(3, m, dtype=torch.int64)
    for row, n in enumerate(reused):
        held[row, :n] = previous[row, accepted[row] + 1 :][:n]
    q = torch.zeros(3, m, VOCAB)
    wanted = InitDrafter(init).extend(state, Draft(held, q), Numbers(reused), draws).tokens
    constraint = state.layout.constraint
    must = None if constraint is None else torch.from_numpy(constraint.forced.tokens).to(device)
    table = init.best.to(device) if isinstance(init, NGramTable) else None
    rows = torch.tensor([2, 0, 1])
    given: tuple[Any, ...] = (
        *(t.to(device) for t in (tokens[[1, 2, 0]], rows, torch.from_numpy(draws.positions.host), draws[INIT])),
        code, line, VOCAB, table, must,
        token_init.Previous(*(t.to(device) for t in (previous, floats, ints, torch.from_numpy(accepted)))),
    )  # fmt: skip
    found = token_init.draft_window(*given)
    assert torch.equal(found.window[:, 1:].cpu(), wanted)
    assert torch.equal(found.window[:, 0].cpu(), state.last()[:, 0])
    for row, n in enumerate(reused):
        source = slice(accepted[row] + 1, accepted[row] + 1 + n)
        assert torch.equal(found.floats[row, :n].cpu(), floats[row, source])
        assert torch.equal(found.ints[row, :n].cpu(), ints[row, source])
        assert torch.equal(found.ints[row, n:, softmax_stats.POINT].cpu().long(), wanted[row, n:])
        assert bool((found.floats[row, n:] == 1).all())
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    for one, other in zip(found, token_init.draft_window(*given), strict=True):
        assert torch.equal(one, other)


def state_of(line: int, forced: str | None) -> tuple[BatchState, Tensor]:
    """A batch of three rows with 1, 9 and 26 tokens, and these tokens."""
    constraint = None
    if forced is not None:
        kinds = torch.zeros(LENGTH, dtype=torch.int64)
        kinds[[4, 12, 28]] = 1
        rows = torch.stack([kinds, kinds.roll(1), kinds.roll(2)])
        allowed = torch.ones(2, VOCAB, dtype=torch.bool)
        allowed[1] = torch.arange(VOCAB) == 6
        constraint = Constraint(kinds if forced == "all rows" else rows, allowed)
    state = BatchState([1, 2, 3], Layout(LENGTH, line or None, constraint), 8, torch.device("cpu"))
    tokens = torch.randint(VOCAB, (3, LENGTH + 8))
    state._tokens[:] = tokens
    state._lengths[:] = [1, 9, 26]
    return state, tokens


def test_a_previous_window_is_not_needed(device: torch.device) -> None:
    tokens = torch.arange(6, device=device).view(1, 6)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    positions = torch.tensor([[3, 4, 5]], device=device)
    found = token_init.draft_window(tokens, zero, positions, torch.rand(1, 3, device=device), token_init.LEFT, 0, 9)
    assert found.window.tolist() == [[2, 2, 2]]


@pytest.mark.parametrize("following", [1, 4, 40])
def test_the_next_window_begins_where_the_host_would_begin_it(
    device: torch.device, following: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that gain some tokens, all, and fewer than they have accepted, as their end is near; against `commit`."""
    state, tokens = state_of(0, None)
    width, accepted = 6, np.array([0, 5, 5])
    window = torch.randint(VOCAB, (3, width))
    rows, limits = torch.tensor([1, 2, 0]), torch.tensor([LENGTH, LENGTH, LENGTH])
    positions = torch.from_numpy(state.positions(width))
    iterations = positions * 0 + torch.tensor([[4], [7], [9]])
    counts, ends, there = torch.from_numpy(accepted).to(device), limits.to(device), window.to(device)
    numbers = positions.to(device), iterations.to(device)
    storage, wanted = tokens[[2, 0, 1]].to(device), tokens[[2, 0, 1]].to(device)
    found = commit.begin_window(storage, rows.to(device), there, counts, *numbers, ends, following)
    with monkeypatch.context() as patch:
        patch.setenv("MMSPEC_KERNELS", "torch")
        again = commit.begin_window(wanted, rows.to(device), there, counts, *numbers, ends, following)
        assert torch.equal(found, again)
    state.commit(window, accepted)
    assert torch.equal(storage[rows.to(device)].cpu(), state._tokens) and torch.equal(storage, wanted)
    host = [state.length - 1, state.recent(commit.RECENT).host, state.positions(following)]
    parts = found.cpu().split([3, 3 * commit.RECENT, 3 * following, 3 * following])
    for part, known in zip(parts, [*host, np.array([[5], [8], [10]]).repeat(following, 1)], strict=True):
        assert part.tolist() == known.ravel().tolist()
    assert state.length.tolist() == [2, 15, LENGTH], "a weak test: no row is cut at its end"


@pytest.mark.parametrize("width", [2, 6, 40])
def test_a_window_is_read_again_with_the_tokens_after_its_resampled_one(
    device: torch.device, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of which nothing, a part and all was accepted; tokens that have no distribution are read as 0."""
    tokens, coupled = torch.randint(VOCAB, (2, 3, width), device=device)
    coupled[0, 1:] = -1
    last = torch.tensor([[5, 9], [-1, 9], [7, 9]], device=device)[:, :1]
    accepted = torch.tensor([0, (width - 1) // 2, width - 1], device=device)
    positions = torch.tensor([[4], [1], [9]], device=device) + torch.arange(width, device=device)
    found = commit.reread_window(last, tokens, coupled, accepted, positions)
    for row, count in enumerate(accepted.tolist()):
        expected = [last[row, 0], *tokens[row, : count + 1], *coupled[row, count + 1 :]][:width]
        assert found[row].tolist() == [*(max(int(x), 0) for x in expected), int(positions[row, 0]) - 1]
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    assert torch.equal(found, commit.reread_window(last, tokens, coupled, accepted, positions))


def test_a_row_that_a_plain_step_ends_stays_where_it_is() -> None:
    """Windows and plain steps alternate where widths are measured."""
    state = BatchState([1, 2], Layout(LENGTH, None, eos=frozenset({3})), 8, torch.device("cpu"))
    state._lengths[:] = [4, 4]
    window, accepted = torch.zeros(2, 4, dtype=torch.int64), np.array([2, 2])

    def following() -> list[int]:
        numbers = [state.length - 1, state.recent(commit.RECENT).host, state.positions(4), state.positions(4)]
        state._window = WindowInputs(*upload(numbers, state.device))
        state.follow(window, torch.from_numpy(accepted), 4)
        assert state._window is not None
        found: list[int] = (state._window.before.on(state.device) + 1).tolist()
        state.gain(window, accepted)
        return found

    assert following() == state.length.tolist() == [7, 7]
    state.append(torch.tensor([[3], [5]]))
    assert following() == state.length.tolist() == [8, 11]
