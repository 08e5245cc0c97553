"""The loop of masked models, on a model whose joint distribution is in a table.

With one place per step the tokens follow the table. The total variation of 6000 samples is 0.02 on average; it exceeds
that by 0.034 once in a million runs at most (McDiarmid: sqrt(ln(1e6) / 12,000)).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from masked_table import LIMIT, ROWS, N, TableProcess, decode, distance
from torch import Tensor

from mmspec.decoding.step import Step, Watch
from mmspec.decoding.to_end import decode_to_end
from mmspec.errors import ArgumentError
from mmspec.masked.loop import Ints, MaskedBatch


def test_one_place_per_step_follows_the_joint_distribution() -> None:
    process = TableProcess(range(ROWS), N)
    assert distance(decode(process)[0], process) < LIMIT


@pytest.mark.parametrize(
    ("steps", "confidence", "measured"), [(2, 1.0, 0.173), (1, 1.0, 0.553), (4, 0.8, 0.079), (4, 0.5, 0.327)]
)
def test_the_loss_of_parallel_decoding_is_measured(steps: int, confidence: float, measured: float) -> None:
    """Several places at once are sampled as if they did not depend on each other."""
    process = TableProcess(range(ROWS), steps, confidence)
    assert distance(decode(process)[0], process) == pytest.approx(measured, abs=LIMIT)


@pytest.mark.parametrize("confidence", [1.0, 0.8])
@pytest.mark.parametrize("ahead", [2, 3, 8])
def test_steps_ahead_give_the_tokens_of_one_step_per_call(ahead: int, confidence: float) -> None:
    process = TableProcess(range(300), N, confidence, sharp=3.0)
    plain, drafted = decode(process), decode(process, ahead)
    assert torch.equal(plain[0], drafted[0])
    assert sum(row.target_calls for row in drafted[1].rows) < sum(row.target_calls for row in plain[1].rows)
    assert drafted[1].tokens == plain[1].tokens == 300 * N


def test_drafts_that_are_not_verified_change_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: every draft counts as right."""
    process = TableProcess(range(300), N)
    right = decode(process, 3)[0]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "equal", lambda a, b: True)
        wrong = decode(process, 3)[0]
    assert not torch.equal(wrong, right)


def test_random_numbers_by_call_change_the_tokens() -> None:
    """The twin: random numbers that belong to calls, so that a draft is not what its step would have sampled."""

    class ByCall(TableProcess):
        calls = 0

        def advance(self, rows: Ints, states: Tensor, logits: Tensor, steps: Ints) -> Tensor:
            self.calls += 1
            noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(self.calls))
            return super().advance(rows, states, logits + noise, steps)

    seeds = range(300)
    assert not torch.equal(decode(ByCall(seeds, N), 3)[0], decode(ByCall(seeds, N))[0])


def test_a_row_does_not_depend_on_its_batch() -> None:
    together = decode(TableProcess(range(20), N, 0.8), 3)[0]
    for seed in range(20):
        assert torch.equal(decode(TableProcess(range(seed, seed + 1), N, 0.8), 3)[0][0], together[seed])


def test_steps_are_reported_with_what_is_missing() -> None:
    seen: list[Step] = []
    decode_to_end(MaskedBatch(TableProcess(range(3), N), 1, range(3), Watch(seen.append)))
    assert [step.target_calls for step in seen] == [1, 2, 3, 4] and [step.committed for step in seen] == [3, 6, 9, 12]
    assert [int((torch.stack(list(step.tokens)) < 0).sum()) for step in seen] == [9, 6, 3, 0]


def test_a_call_without_states_is_refused() -> None:
    with pytest.raises(ArgumentError, match="ahead=0 is not allowed"):
        decode(TableProcess(range(1), N), 0)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
