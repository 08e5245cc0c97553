"""`window=auto` in engines: drafts while few rows run, plain decoding where more rows make windows dear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.batching.engine import Engine
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.recipes import Recipe
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams

V, ROWS = 6, 32
MEMORY_BOUND = 16  # tokens that a call reads in the time of one


@dataclass
class Device:
    """A device with a clock of its own.

    Attributes:
        now: Seconds.
        calls: Rows and width of each call so far.
    """

    now: float = 0.0
    calls: list[tuple[int, int]] = field(default_factory=list)


class EasyTarget:
    """Tokens that are easy to draft, being independent. A call of more than `MEMORY_BOUND` tokens takes longer."""

    vocab_size = V
    device = torch.device("cpu")

    def __init__(self, rows: int, clock: Device) -> None:
        self.rows, self.clock = rows, clock
        self.table = torch.linspace(0, 3, V).expand(V, V)

    def prefill(self) -> Logits:
        return Logits(self.table[torch.zeros(self.rows, 1, dtype=torch.int64)], None)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        rows, width = tokens.shape
        self.clock.now += max(1.0, rows * width / MEMORY_BOUND)
        self.clock.calls.append((rows, width))
        return Logits(self.table[tokens.clamp(0, V - 1)], None)

    SAME = ()

    def select_rows(self, row_ids: list[int]) -> None:
        self.rows = len(row_ids)

    def join(self, other: EasyTarget, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        self.rows = max(self.rows, max(row_ids) + 1)


class TimedRows(PreparedRows):
    """Rows whose batch reads the clock of their device."""

    def batch(self, recipe: Recipe, seeds: Sequence[int], watch: Watch = UNWATCHED) -> RunningBatch:
        batch, target = super().batch(recipe, seeds, watch), self.target
        assert isinstance(target, EasyTarget)
        clock = target.clock
        batch._clock = lambda: clock.now
        return batch


class EasyPipe:
    """A pipeline whose prompts are numbers of tokens."""

    def __init__(self) -> None:
        self.config = {"recipe": "scd:window=auto"}
        self.clock, self.resources = Device(), DraftResources()

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        def finish(tokens: Sequence[Tensor], stats: Stats) -> int:
            return len(tokens[0])

        return PreparedRequest([RowPrompt(prompt, SamplingParams(), options["seed"])], finish, options["seed"])

    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedRows:
        target, limits = EasyTarget(len(rows), self.clock), [row.prompt for row in rows]
        return TimedRows(target, Layout(max(limits)), [row.sampling for row in rows], self.resources, limits)


def drafting(calls: Sequence[tuple[int, int]]) -> float:
    """The share of calls with drafts."""
    return sum(width > 1 for _, width in calls) / len(calls)


def test_a_loaded_engine_decodes_plainly_and_drafts_again_when_the_load_is_gone() -> None:
    pipe = EasyPipe()
    engine, calls = Engine(pipe, max_rows=ROWS), pipe.clock.calls
    engine.add(1500, seed=0, request_id="long")
    for _ in range(40):
        engine.step()
    assert drafting(calls[10:]) == 1 and engine.stats().tokens_per_call > 2
    alone = len(calls)
    for seed in range(1, ROWS):
        engine.add(200, seed=seed)
    while engine.stats().waiting or engine.stats().running == ROWS:
        engine.step()
    loaded = [call for call in calls[alone:] if call[0] == ROWS]
    # Windows are measured, the first of 2 tokens, until drafting is known to lose; each lasts as long as its tokens.
    assert len(loaded) > 100 and sum(width > 1 for _, width in loaded) <= 6
    assert drafting(loaded[10:]) < 0.02
    while engine.stats().running > 1:
        engine.step()
    before, found = len(calls), dict[str, Any]()
    while engine.has_unfinished:
        found |= {output.request_id: output.result for output in engine.step() if output.finished}
    assert found == {"long": 1500}
    assert drafting(calls[before:]) > 0.9


@pytest.mark.parametrize("rows", [1, 16])
def test_no_load_takes_much_longer_than_the_better_of_plain_and_drafted_decoding(rows: int) -> None:
    seconds = {}
    for recipe in ("plain", "scd:window=4", "scd:window=auto"):
        pipe = EasyPipe()
        engine = Engine(pipe, recipe, max_rows=rows)
        for seed in range(3 * rows):
            engine.add(150, seed=seed)
        while engine.has_unfinished:
            engine.step()
        seconds[recipe] = pipe.clock.now
    assert seconds["scd:window=auto"] < 1.1 * min(seconds.values())


def test_a_second_counts_once_however_many_batches_there_are() -> None:
    """Two batches take turns; while one is decoded, the clock of the other one stands still."""
    engine = Engine(EasyPipe(), "plain", max_rows=4)
    for i in range(4):
        engine.add(60, seed=i, recipe=["plain", "scd:window=4"][i % 2])
    while engine.has_unfinished:
        engine.step()
    found = engine.stats()
    assert 0 < sum(found.seconds_by_part.values()) <= found.seconds
