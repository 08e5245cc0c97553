"""Drafting while the target verifies: the tokens are those of `draft`, in less time on a simulated clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from batch_runs import run
from torch import Tensor

import mmspec.methods.pearl
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.to_end import Decoded
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget

N = 13


def decode(recipe: str, target: Any, draft: Callable[[], Any], seeds: list[int], ends: bool = False) -> Decoded:
    rows = len(seeds)
    layout = Layout(N, eos=frozenset({1}) if ends else frozenset())
    resources = DraftResources(draft_model=draft, draft_sampling=[SamplingParams()] * rows)
    return run(target, parse(recipe), layout, [SamplingParams()] * rows, seeds, resources)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("other", [0, 9], ids=["equal models", "other models"])
def test_tokens_are_those_of_draft(other: int, rows: int, ends: bool) -> None:
    results = [
        decode(recipe, ToyTarget(rows, 2, N, 0), lambda: ToyTarget(rows, 2, N, other), list(range(rows)), ends)
        for recipe in ("draft:window=3", "pearl:window=3")
    ]
    assert torch.equal(results[0].tokens, results[1].tokens)
    assert results[0].stats.target_calls == results[1].stats.target_calls


def test_drafts_of_another_prefix_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmspec.methods.pearl._Ahead, "fits", lambda *_: True)
    results = [
        decode(recipe, ToyTarget(5, 2, N, 0), lambda: ToyTarget(5, 2, N, 9), list(range(5)))
        for recipe in ("draft:window=3", "pearl:window=3")
    ]
    assert not torch.equal(results[0].tokens, results[1].tokens)


def test_the_draft_model_runs_while_the_target_does() -> None:
    """Each waits for the other, which two calls in one thread could not."""
    both, met = threading.Barrier(2, timeout=30), list[str]()

    class Meeting(ToyTarget):
        def forward(self, *arguments: Any) -> Any:
            if threading.current_thread() is not threading.main_thread() and not met:
                both.wait()
                met.append("draft")
            return super().forward(*arguments)

    class Target(ToyTarget):
        def forward(self, *arguments: Any) -> Any:
            if not met:
                both.wait()
            return super().forward(*arguments)

    decode("pearl:window=3", Target(1, 2, N, 0), lambda: Meeting(1, 2, N, 9), [3])
    assert met == ["draft"]


def test_errors_of_the_draft_model_are_raised() -> None:
    class Broken(ToyTarget):
        def forward(self, *arguments: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("out of memory")
            return super().forward(*arguments)

    with pytest.raises(RuntimeError, match="out of memory"):
        decode("pearl:window=3", ToyTarget(1, 2, N, 0), lambda: Broken(1, 2, N, 9), [3])


class Clock:
    """Simulated seconds of two devices. Work that is submitted runs on the second one."""

    def __init__(self) -> None:
        self.now = 0.0

    def submit(self, work: Callable[[], None], /) -> Clock.Submitted:
        start = self.now
        work()
        self.now, end = start, self.now
        return Clock.Submitted(self, end)

    class Submitted:
        def __init__(self, clock: Clock, end: float) -> None:
            self._clock, self._end = clock, end

        def result(self) -> object:
            self._clock.now = max(self._clock.now, self._end)
            return None


class ClockedToy(ToyTarget):
    """A toy whose calls take time."""

    def __init__(self, clock: Clock, seconds: float, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock, self._seconds = clock, seconds

    def forward(self, tokens: Tensor, *arguments: Any) -> Any:
        self._clock.now += self._seconds
        return super().forward(tokens, *arguments)


def seconds(recipe: str, draft_seconds: float, other: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Simulated seconds of 40 images of `N` tokens, if a target call takes one second."""
    clock = Clock()
    monkeypatch.setattr(mmspec.methods.pearl, "ThreadPoolExecutor", lambda *arguments: clock)
    for seed in range(40):
        target = ClockedToy(clock, 1.0, 1, 2, N, 0)
        decode(recipe, target, lambda: ClockedToy(clock, draft_seconds, 1, 2, N, other), [seed])
    return clock.now


@pytest.mark.parametrize(("other", "least"), [(0, 1.25), (9, 1.02)], ids=["equal models", "other models"])
def test_it_saves_time_on_a_simulated_clock(other: int, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the draft model takes a third of one of the target, so that two of them take no time of their own."""
    draft, pearl = (seconds(f"{name}:window=3", 1 / 3, other, monkeypatch) for name in ("draft", "pearl"))
    print(f"draft {draft:.0f} s, pearl {pearl:.0f} s")
    assert draft / pearl > least
