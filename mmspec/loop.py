"""The loop: every recipe runs through `decode`, plain decoding through `decode_plain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.law import Logits
from mmspec.noise import REDRAW, Draws
from mmspec.rows import Rows, Step
from mmspec.rules import Accept
from mmspec.rules.looking import look
from mmspec.stats import Meter
from mmspec.target import Target
from mmspec.verify import Draft, Verdict

OnStep = Callable[[Step], None]


class TokenLaw(Protocol):
    """What the loop knows of a kind of token: its law at a position, how it is drawn, how a draft of it is tested."""

    def __call__(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        """The law at each slot of a window, [B, W, ...], from what the target said there."""
        ...

    def sample(self, p: Tensor, draws: Draws, stream: int = REDRAW) -> Tensor:
        """A token of each law, [B, W, *cell], with the numbers of a stream."""
        ...

    def verify(self, p: Tensor, draft: Draft, rule: Accept, draws: Draws) -> Verdict:
        """Tests the drafts from left to right and redraws the first that fails, or the free slot behind the last."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        ...


class Drafter(Protocol):
    """Proposes tokens; knows neither the target nor the rule."""

    @property
    def calls(self) -> int:
        """Calls of a model of its own."""
        ...

    def propose(self, rows: Rows, count: int, draws: Draws) -> Draft:
        """Drafts the next `count` >= 1 tokens of each row.

        `draws` has `count + 1` positions; the streams DRAFT and START are the drafter's.
        """
        ...

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        """Learns what became of the draft; `rows` still stand where the window began."""
        ...

    def keep(self, rows: list[int]) -> None:
        """Drops all rows but these."""
        ...


NOTHING = Draft(torch.empty(0), torch.empty(0))


def decode(
    target: Target,
    drafter: Drafter,
    rule: Accept,
    law: TokenLaw,
    rows: Rows,
    window: int,
    meter: Meter,
    on_step: OnStep | None,
) -> None:
    """Draft and verify until every row is done.

    **Arguments:**

    - `target`, `drafter`, `rule`, `law`: which know nothing of each other.
    - `rows`: the batch; holds the result afterwards.
    - `window`: tokens in one target call, the last accepted one included; >= 1.
    - `meter`: counts calls, tokens and seconds.
    - `on_step`: called after every target call. What it raises leaves the loop.
    """
    going = decode_steps(target, law, rows, 1, meter, on_step, drafter)
    while going:
        going = decode_window(target, drafter, rule, law, rows, window, meter, on_step)


def decode_plain(target: Target, law: TokenLaw, rows: Rows, meter: Meter, on_step: OnStep | None) -> None:
    """One token per call: the baseline. Gives what `decode` gives with a window of 1."""
    decode_steps(target, law, rows, rows.layout.length, meter, on_step)


def decode_window(
    target: Target,
    drafter: Drafter,
    rule: Accept,
    law: TokenLaw,
    rows: Rows,
    window: int,
    meter: Meter,
    on_step: OnStep | None,
) -> bool:
    """One window: draft, one target call, verify, commit. Every row has a token already. Tells whether any runs on."""
    # One slot past the end stays: were it cut, the last position would be drafted or not depending on its mates.
    width = min(window, int((rows.layout.length - rows.length).max()) + 1)
    positions = rows.positions(width)
    draws = rows.noise.window(positions, meter.nfe)
    tokens, draft = rows.last(), NOTHING
    meter.clock.lap("other")
    if width > 1:
        draft = drafter.propose(rows, width - 1, draws)
        tokens = torch.cat([tokens, draft.tokens], dim=1)
        meter.clock.lap("drafter")
    logits = target.forward(tokens, rows.length - 1)
    meter.clock.lap("target")
    verdict = law.verify(law(logits, positions), draft, look(rule, target, len(rows.ids)), draws)
    meter.clock.lap("rule")
    drafter.observe(verdict, rows, draws)
    meter.clock.lap("drafter")
    gained = rows.commit(verdict.tokens, verdict.accepted)
    meter.count(verdict, gained, rows.ids)
    if on_step is not None:
        on_step(rows.step(meter.nfe))
    running = rows.running()
    if 0 < len(running) < len(gained):
        keep_all(running, rows, target, drafter, law)
    return bool(running)


def decode_steps(
    target: Target,
    law: TokenLaw,
    rows: Rows,
    count: int,
    meter: Meter,
    on_step: OnStep | None,
    drafter: Drafter | None = None,
) -> bool:
    """Up to `count` tokens of each row, one per call, the prefill where nothing was read. Tells whether any runs on."""
    positions = rows.positions(count)
    draws = rows.noise.window(positions, meter.nfe + np.arange(count))
    tokens = rows.last()
    for n in range(count):
        meter.clock.lap("other")
        logits = target.forward(tokens, rows.length - 1) if meter.nfe else target.prefill()
        meter.clock.lap("target")
        p, here = law(logits, positions[:, n : n + 1]), draws.slot(n)
        tokens = law.sample(p, here)
        meter.clock.lap("rule")
        if drafter is not None:
            drafter.observe(Verdict(tokens, np.zeros(len(p), dtype=np.int64), p, NOTHING), rows, here)
            meter.clock.lap("drafter")
        meter.count_plain(p, tokens, rows.ids)
        running = rows.append(tokens)
        if on_step is not None:
            on_step(rows.step(meter.nfe))
        if not running:
            return False
        if len(running) < len(tokens):
            keep_all(running, rows, target, drafter, law)
            draws.keep(running)
            positions, tokens = positions[running], tokens[running]
    return True


def keep_all(running: list[int], rows: Rows, target: Target, drafter: Drafter | None, law: TokenLaw) -> None:
    """Drops finished rows everywhere."""
    rows.keep(running)
    target.keep(running)
    law.keep(torch.tensor(running, device=target.device))
    if drafter is not None:
        drafter.keep(running)
