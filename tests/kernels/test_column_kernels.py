"""The kernels of columns against the torch code of samplers and drafters, with forced cells of all rows or of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.drafters.columns.token_init import ColumnInitDrafter, RandomColumn, repeat_left
from mmspec.methods.recycle.columns import ColumnRecycle
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.multi_codebook import MAX_SAMPLES, couple_columns, entries, sample_columns, verify_columns
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.ops import TORCH
from mmspec.sampling.rejection import Draft, Verdict, point_mass, ratio, sample
from mmspec.sampling.rng import CounterRNG, WindowRNG

pytest.importorskip("triton")

from mmspec.kernels import column_drafts, columns, coupling, forced_cells, softmax_stats
from mmspec.kernels.columns import ColumnNumbers
from mmspec.kernels.token_init import Previous

pytestmark = pytest.mark.usefixtures("poison")
LENGTH, SEEDS = 30, [3, -4, 5]
FORCED = [None, "all rows", "each row"]


def cells_of(forced: str | None, cells: int, vocab: int) -> ForcedCells | None:
    """Some forced cells, one of which is outside the vocabulary; a whole column is forced as well."""
    if forced is None:
        return None
    table = np.full((LENGTH, cells), -1)
    table[2::3, 0], table[3::4, -1], table[5], table[28] = 1 % vocab, vocab + 3, 0, vocab - 1
    return ForcedCells(table if forced == "all rows" else np.stack([table, np.roll(table, 1, 0), np.roll(table, 2, 0)]))


def window_of(width: int) -> tuple[WindowRNG, ColumnNumbers]:
    """Windows at the beginning of a row, within one and past the end of one."""
    positions = np.array([[1], [9], [26]]) + np.arange(width)
    iterations = np.broadcast_to(np.array([[4], [0], [7]]), positions.shape).copy()
    rng = CounterRNG(SEEDS, torch.device("cpu")).window(positions, iterations)
    return rng, ColumnNumbers(torch.tensor(SEEDS), torch.from_numpy(positions), torch.from_numpy(iterations))


def there(given: Any, device: torch.device) -> Any:
    """Tensors, also within tuples, on a device."""
    if isinstance(given, Tensor):
        return given.to(device)
    return type(given)(*(there(one, device) for one in given)) if isinstance(given, tuple) else given


def both(function: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch, *given: Any) -> Any:
    """What a kernel returns, after a check that its reference returns the same."""
    given = tuple(there(one, device) for one in given)
    found = function(*given)
    with monkeypatch.context() as patch:
        patch.setenv("MMSPEC_KERNELS", "torch")
        again = function(*given)
    for one, other in zip(*(t if isinstance(t, tuple) else (t,) for t in (found, again)), strict=True):
        assert torch.equal(one, other)
    return found


@pytest.mark.parametrize(("cells", "forced"), [(1, None), (1, "all rows"), (2, "each row"), (9, "all rows")])
@pytest.mark.parametrize("kind", ["left", "random", "recycle"])
def test_drafts_are_those_of_the_drafter(
    kind: str, cells: int, forced: str | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that reuse 3, 0 and all drafts; one of them has a single column so far."""
    vocab, m, before = 11, 5, 7
    rng, numbers = window_of(m + 1)
    table = cells_of(forced, cells, vocab)
    state = BatchState([1, 2, 3], Layout(LENGTH, cell=(cells,), forced=table), 8, torch.device("cpu"))
    tokens = torch.randint(vocab + 4, (3, LENGTH + 8, cells))
    state._tokens[:] = tokens
    state._lengths[:] = [1, 9, 26]
    accepted = np.array([3, 6, 0])
    reused = np.minimum(before - accepted - 1, m)
    previous = torch.randint(vocab + 4, (3, before, cells))
    floats, ints = torch.rand(3, before, cells, 5), torch.randint(50, (3, before, cells, 5), dtype=torch.int32)
    held = torch.zeros(3, m, cells, dtype=torch.int64)
    for row, n in enumerate(reused):
        held[row, :n] = previous[row, accepted[row] + 1 :][:n]
    recycle = ColumnRecycle(3, cells, vocab, torch.device("cpu"))
    recycle.table.random_(vocab)
    init: Any = {"left": repeat_left, "random": RandomColumn(vocab), "recycle": recycle}[kind]
    wanted = (
        ColumnInitDrafter(init).extend(state, Draft(held, torch.zeros(3, m, cells, vocab)), Numbers(reused), rng).tokens
    )
    rows, code = torch.tensor([2, 0, 1]), ("left", "random", "recycle").index(kind)
    known = None if table is None else table.table(torch.device("cpu"))
    stored = recycle.table if kind == "recycle" else None
    given = tokens[[1, 2, 0]], rows, numbers, code, vocab, stored, known
    kept = Previous(previous, floats, ints, torch.from_numpy(accepted))
    found = both(column_drafts.draft_columns, device, monkeypatch, *given, kept)
    assert torch.equal(found.window[:, 1:].cpu(), wanted) and torch.equal(found.window[:, 0].cpu(), state.last()[:, 0])
    for row, n in enumerate(reused):
        source = slice(accepted[row] + 1, accepted[row] + 1 + n)
        assert torch.equal(found.floats[row, :n].cpu(), floats[row, source])
        assert torch.equal(found.ints[row, :n].cpu(), ints[row, source])
        point = found.ints[row, n:, :, softmax_stats.POINT].cpu().long()
        assert torch.equal(point, entries(wanted[row, n:], vocab)) and bool((found.floats[row, n:] == 1).all())
    alone = both(column_drafts.draft_columns, device, monkeypatch, *given)
    new = ColumnInitDrafter(init).extend(
        state, Draft(0 * held, torch.zeros(3, m, cells, vocab)), Numbers(np.zeros(3, dtype=np.int64)), rng
    )
    assert torch.equal(alone.window[:, 1:].cpu(), new.tokens)


def distributions(
    cells: int, vocab: int, m: int, table: ForcedCells | None, rng: WindowRNG
) -> tuple[Tensor, Tensor, Tensor]:
    """p [B, m + 1, K, V] and q [B, m, K, V] with their forced cells, and drafts."""
    p = torch.randn(3, m + 1, cells, vocab).softmax(-1)
    q = (p[:, :m].log() + 0.7 / cells**0.5 * torch.randn(3, m, cells, vocab)).softmax(-1)
    x = sample(q, torch.rand(3, m, cells))
    if table is None:
        return p, q, x
    must = table.on(torch.device("cpu"), rng.positions)
    assert must is not None
    p = point_mass(p, entries(must, vocab), 0, must >= 0)
    before = must[:, :m]
    x = torch.where(before >= 0, before, x)
    return p, point_mass(q, entries(x, vocab), 0, before >= 0), x


@pytest.mark.parametrize(("cells", "vocab", "forced"), [(1, 5, None), (2, 150, "each row"), (9, 5, "all rows")])
def test_verified_and_coupled_columns_are_the_core_s(
    cells: int, vocab: int, forced: str | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk is less than the larger vocabulary. Every slot is coupled as if it were the first."""
    m = 3
    rng, numbers = window_of(m + 1)
    table = cells_of(forced, cells, vocab)
    p, q, x = distributions(cells, vocab, m, table, rng)
    monkeypatch.setattr(columns, "CHUNK", 128)
    p_stats, q_stats = (softmax_stats.stats_of_probs(one.flatten(1, 2)) for one in (p, q))
    p_stats, q_stats = (
        softmax_stats.SoftmaxStats(one.cond.to(device), None, None, one.floats.to(device), one.ints.to(device))
        for one in (p_stats, q_stats)
    )
    known = None if table is None else table.table(torch.device("cpu"))
    window = torch.cat([torch.full_like(x[:, :1], 99), x], dim=1)  # drafts follow another column of their row
    rest = window[:, 1:], known, numbers, MAX_SAMPLES
    found = both(columns.verify_columns, device, monkeypatch, p_stats, q_stats, *rest)
    wanted = verify_columns(p, Draft(x, q), ratio, rng, table)
    assert found.accepted.tolist() == wanted.accepted.tolist()
    for row, n in enumerate(wanted.accepted):
        assert torch.equal(found.tokens[row, : n + 1].cpu(), wanted.tokens[row, : n + 1])
    report = found.found.cpu()
    assert report[:, 0].tolist() == wanted.accepted.tolist() and not report[:, 1].any()
    assert torch.equal(report[:, 2:].long(), found.tokens.flatten(1).cpu())

    coupled = couple_columns(p, Draft(x, q), rng)
    coupled = coupled if table is None else table.put(coupled, rng.positions)
    assert torch.equal(both(columns.couple_columns, device, monkeypatch, p_stats, q_stats, *rest).cpu(), coupled)
    kept = (coupled[:, :m] == x).all(-1)
    assert kept.any() and not kept.all(), "a weak test"
    counts = torch.tensor([0, 1, m])
    some = both(columns.couple_columns, device, monkeypatch, p_stats, q_stats, *rest, counts).cpu()
    for row, n in enumerate(counts.tolist()):
        assert torch.equal(some[row, n + 1 :], coupled[row, n + 1 :]) and torch.equal(
            some[row, : n + 1][:m], x[row, : n + 1]
        )
    fresh = sample_columns(p, rng)
    fresh = fresh if table is None else table.put(fresh, rng.positions)
    nothing = None, None, known, numbers, MAX_SAMPLES
    assert torch.equal(both(columns.couple_columns, device, monkeypatch, p_stats, *nothing).cpu(), fresh)
    noisy = TORCH.couple_columns_by_noise(p, rng.source, rng.positions)
    noisy = noisy if table is None else table.put(noisy, rng.positions)
    given = p_stats, numbers.seeds, numbers.positions, cells, known
    assert torch.equal(both(coupling.couple_by_noise, device, monkeypatch, *given).cpu(), noisy.flatten(1))


def test_columns_without_a_distribution(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN in the next column, in a later one and in a draft are told apart; a forced cell needs no distribution."""
    rng, numbers = window_of(3)
    p, q = torch.full((3, 3, 2, 5), 0.2), torch.full((3, 2, 2, 5), 0.2)
    p_stats, q_stats = (softmax_stats.stats_of_probs(one.flatten(1, 2)) for one in (p, q))
    p_stats.cond[0, 4:] = torch.nan  # of the third column, which follows the two accepted drafts
    p_stats.floats[0, 4:, softmax_stats.TOTAL] = torch.nan
    q_stats.floats[1, 3, softmax_stats.TOTAL] = torch.nan
    drafts = torch.zeros(3, 2, 2, dtype=torch.int64)
    p_stats, q_stats = (
        softmax_stats.SoftmaxStats(*(None if t is None else t.to(device) for t in one.source()))  # type: ignore[arg-type]
        for one in (p_stats, q_stats)
    )
    rest = drafts, None, numbers, MAX_SAMPLES
    found = both(columns.verify_columns, device, monkeypatch, p_stats, q_stats, *rest)
    assert found.found[:, 1].tolist() == [3, 4, 0] and found.tokens[0, 2].tolist() == [-1, -1]
    table = torch.full((LENGTH, 2), -1)
    table[3] = 4
    found = both(columns.verify_columns, device, monkeypatch, p_stats, q_stats, drafts, table, *rest[2:])
    assert found.tokens[0, 2].tolist() == [4, 4] and int(found.found[0, 1]) == 2


@pytest.mark.parametrize("forced", FORCED[1:])
@pytest.mark.parametrize("cells", [1, 4])
def test_forced_cells_become_point_masses(
    cells: int, forced: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab = 6
    table = cells_of(forced, cells, vocab)
    assert table is not None
    rng, numbers = window_of(5)
    must = table.on(torch.device("cpu"), rng.positions)
    assert must is not None
    floats, ints = torch.rand(3, 5, cells, 5), torch.randint(50, (3, 5, cells, 5), dtype=torch.int32)
    tokens, results = torch.randint(vocab, (3, 5, cells)), []
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        probs, numbers_of, codes = (each.clone().to(device) for each in (floats, ints, tokens))
        known = table.table(torch.device("cpu")).to(device)
        forced_cells.force_cells(known, numbers.positions.to(device), probs, numbers_of, codes, vocab)
        results.append([probs.cpu(), numbers_of.cpu(), codes.cpu()])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    found, at = results[0], must >= 0
    assert torch.equal(found[2], torch.where(at, must, tokens)) and at.any() and not at.all()
    for one, before in zip(found[:2], (floats, ints), strict=True):
        assert torch.equal(one[~at], before[~at])
    for number in (softmax_stats.POINT, softmax_stats.BEST):
        assert torch.equal(found[1][at][:, number].long(), entries(must, vocab)[at])
    assert bool((found[0][at] == 1).all())


def test_recycled_codes_are_those_of_the_drafter(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes occur several times in a window; the last slot that a row has wins. The last row has ended."""
    vocab, cells = 3, 4
    state = BatchState([1, 2, 3], Layout(LENGTH, cell=(cells,)), 8, torch.device("cpu"))
    state._tokens[:, 0] = torch.randint(vocab + 2, (3, cells))
    state._lengths[:], state._limits[:] = 1, [LENGTH, 3, 1]
    draws = state.rng.window(state.positions(6), 0)
    positions, limits = (each.on(device) for each in (draws.positions, state.limits()))
    drafts, p = torch.randint(vocab + 2, (3, 5, cells)), torch.rand(3, 6, cells, vocab)
    recycle = ColumnRecycle(3, cells, vocab, torch.device("cpu"))
    before = recycle.table.clone()
    recycle.update(Verdict(drafts, Numbers(np.zeros(3, dtype=np.int64)), p, Draft(drafts, p[:, :5])), state, draws)
    ints = torch.randint(50, (3, 6, cells, 5), dtype=torch.int32)
    ints[..., softmax_stats.BEST] = p.argmax(-1)
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        table = before.clone().to(device)
        columns = torch.cat([state.last(), drafts], dim=1).to(device)
        column_drafts.recycle_columns(columns, positions, limits, ints.to(device), table)
        assert torch.equal(table.cpu(), recycle.table)
        assert [torch.equal(*each) for each in zip(table.cpu(), before, strict=True)] == [False, False, True]
