"""The loop of masked models: one step per call, or several steps that are drafted and verified in one call.

A step turns a state, the tokens with some of them masked, into the next one. With random numbers that belong to row and
step, the next state is a function of the state. Free Draft-and-Verification (FreeDave, arXiv 2510.00294) drafts the
states of later steps from the logits of the last call and reads all of them in one batch: a drafted state that the
model itself reaches has its logits already. Every state of the result is the model's own, so the tokens are those of
one step per call, for greedy and for sampled tokens alike. Only rounding may differ, because a call has other batch
sizes. What is saved is calls, not work: it pays where a call of a larger batch takes hardly longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.closed_batch import ClosedBatch
from mmspec.decoding.layout import Layout
from mmspec.decoding.step import UNWATCHED, Step, Watch
from mmspec.errors import ArgumentError

Ints = NDArray[np.int64]


class MaskedProcess(Protocol):
    """The steps of a masked model. R rows of a call are any rows of the batch, each in any state.

    Attributes:
        steps: The number of steps.
    """

    steps: int

    def start(self) -> Tensor:
        """The states of all rows before the first step, int64 [B, N]."""
        ...

    def logits(self, rows: Ints, states: Tensor, steps: Ints) -> Tensor:
        """The model's output with guidance, float32 [R, N, V].

        Args:
            rows: Host int64 [R], the rows that the states belong to.
            states: int64 [R, N].
            steps: Host int64 [R], the number of each state's step.
        """
        ...

    def advance(self, rows: Ints, states: Tensor, logits: Tensor, steps: Ints) -> Tensor:
        """The next states int64 [R, N]; the random numbers depend on row and step alone."""
        ...

    def missing(self, states: Tensor) -> Tensor:
        """The places without a token, bool [R, N]. A row ends when it has none."""
        ...


class MaskedBatch(ClosedBatch):
    """Rows of a masked model. A step is one call, in which each row takes a step of its schedule, or several.

    The tokens of a row are committed at its end, as they come at any places.

    Args:
        process: The model and its schedule.
        ahead: States of each row in a call: the present one, and drafts of the next ones. 1 drafts none.
        seeds: One per row.
        watch: What to show; the tokens of a `Step` are whole rows, with -1 at masked places.

    Raises:
        ArgumentError: If `ahead` is below 1.
    """

    def __init__(self, process: MaskedProcess, ahead: int, seeds: Sequence[int], watch: Watch = UNWATCHED) -> None:
        if ahead < 1:
            raise ArgumentError(f"ahead={ahead} is not allowed; it must be 1 or more states per call")
        self._tokens = tokens = process.start()
        super().__init__(seeds, Layout(tokens.shape[1]), tokens.device, watch)
        self._process, self._ahead = process, ahead
        self._steps = np.zeros(len(tokens), dtype=np.int64)
        self._filled = (~process.missing(tokens)).sum(1).cpu().numpy()
        self._drafts: list[list[Tensor]] = [[] for _ in tokens]

    def step(self) -> bool:
        """Makes one call; returns whether any row is running."""
        process, meter, tokens, step, drafts = self._process, self.meter, self._tokens, self._steps, self._drafts
        running = np.flatnonzero(self.state.is_running)
        rows = np.concatenate([np.full(1 + len(drafts[row]), row) for row in running])
        steps = np.concatenate([step[row] + np.arange(1 + len(drafts[row])) for row in running])
        states = torch.stack([state for row in running for state in (tokens[row], *drafts[row])])
        meter.clock.lap("other")
        logits = process.logits(rows, states, steps)
        meter.clock.lap("target")
        after = process.advance(rows, states, logits, steps)
        known, first = tokens.clone(), 0
        last = np.zeros(len(running), dtype=np.int64)
        for i, row in enumerate(running):
            slots = 1 + len(drafts[row])
            right = 0  # drafts that are the model's own states
            while right + 1 < slots and torch.equal(after[first + right], states[first + right + 1]):
                right += 1
            last[i] = first + right
            known[row] = after[last[i]]
            step[row] += right + 1
            first += slots
        self._tokens = tokens = known
        meter.clock.lap("rule")
        self._drafts = _drafts(process, running, tokens, logits[last], step, self._ahead)
        meter.clock.lap("drafter")
        missing = process.missing(tokens)
        now = (~missing).sum(1).cpu().numpy()
        meter.target_calls += 1
        meter.calls[running] += 1
        meter.tokens += now - self._filled
        self._filled = now
        ended = (step >= process.steps) | (now == tokens.shape[1])
        self.state.commit(tokens, np.where(ended, tokens.shape[1], 0) - 1)
        if self._on_step is not None:
            so_far = tokens.masked_fill(missing, -1)
            self._on_step(Step(meter.target_calls, int(now.sum()), tokens.numel(), list(so_far)))
        return bool(self.state.is_running.any())


def _unfinished(process: MaskedProcess, tokens: Tensor) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = process.missing(tokens).any(1).cpu().numpy()
    return found


def _drafts(
    process: MaskedProcess, running: Sequence[int] | Ints, tokens: Tensor, logits: Tensor, step: Ints, ahead: int
) -> list[list[Tensor]]:
    """The drafted states of each row, from the logits [rows, N, V] of its last verified state."""
    drafts: list[list[Tensor]] = [[] for _ in range(len(tokens))]
    rows, states = np.asarray(running), tokens[torch.as_tensor(running)]
    for offset in range(ahead - 1):
        # Drafts of steps past the last one, or of rows without masked places, would never be read.
        wanted = (step[rows] + offset + 1 < process.steps) & _unfinished(process, states)
        if not wanted.any():
            break
        kept = torch.from_numpy(wanted).to(states.device)
        rows, states, logits = rows[wanted], states[kept], logits[kept]
        states = process.advance(rows, states, logits, step[rows] + offset)
        for row, state in zip(rows, states, strict=True):
            drafts[row].append(state)
    return drafts
