"""Windows on a device, whose calls are launched before the host has read what the window before them has accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.decoding.ahead import Ahead, parts_ahead
from mmspec.decoding.batch import BatchState
from mmspec.decoding.drafter import UploadsWithWindow
from mmspec.decoding.stats import Meter
from mmspec.decoding.windows import NOTHING, LaunchedWindow, Windows
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree_rejection import Outcome


class DeviceWindows(Windows):
    """Windows whose next call is launched ahead of the host where the parts can (`mmspec.decoding.ahead`)."""

    goes_ahead = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._next: LaunchedWindow | None = None  # the next window, where its call was launched ahead
        self._is_written = False  # whether the device has committed the window
        self._uploads = isinstance(self.drafter, UploadsWithWindow)

    def launch(self, width: int, plain_draws: Iterator[WindowRNG]) -> LaunchedWindow:
        """The window that was launched ahead, or another one in its place."""
        window, self._next = self._next, None
        if window is not None and window.ids is self.state.ids and window.width == width:
            return window if width > 1 else replace(window, draws=next(plain_draws))
        if window is not None:
            self.given_up = True
            self.state.close()
        return super().launch(width, plain_draws)

    def verify(self, window: LaunchedWindow, next_width: int) -> Outcome:
        """Verifies a window; the call of the next one is launched before the wait, if it can be."""
        self._is_written, is_plain = False, window.draft is NOTHING
        ahead = parts_ahead(self.target, self.drafter, self.sampler, self.state)
        if ahead is None or (self._reads_features and not is_plain):
            return super().verify(window, next_width)
        if is_plain:
            return self._plain(ahead, window, next_width)
        state, meter = self.state, self.meter
        next_width = _next_width(state, window.width, next_width)
        p = self.sampler(window.logits, window.draws.positions)
        pending = ahead.sampler.verify_ahead(p, window.draft, self.rule, window.draws) if next_width else None
        if pending is None:
            return self._tested(p, window)
        meter.clock.lap("rule")
        self._next = _launch_next(ahead, pending.verdict, state, window.draws, next_width, meter)
        self._is_written = True
        return pending.read()

    def commit(self, verdict: Outcome) -> NDArray[np.int64]:
        """What the device has committed is only counted."""
        if self._is_written:
            self._latest = None
            return self.state.gain(verdict.tokens, verdict.accepted, verdict.on_host)
        return super().commit(verdict)

    def _begin(self, width: int, iteration: NDArray[np.int64]) -> WindowRNG:
        """As that of `Windows`; what the drafter needs of the host is copied with the numbers of the window."""
        if not self._uploads:
            return super()._begin(width, iteration)
        state, drafter = self.state, self.drafter
        self.meter.clock.lap("other")
        draws, arrays = state.window_with(width, iteration, drafter.host_arrays(state, width - 1, iteration))
        drafter.take_arrays(arrays)
        self.meter.clock.lap("drafter")
        return draws

    def _plain(self, ahead: Ahead, window: LaunchedWindow, next_width: int) -> Outcome:
        """Samples the token of a plain step; the call of the next one is launched before the wait."""
        state, meter = self.state, self.meter
        p: Probs = self.sampler(window.logits, window.draws.positions)
        pending = ahead.sampler.sample_ahead(p, window.draws)
        if pending is None:
            return self._tested(p, window)
        tokens = pending.tokens
        meter.clock.lap("rule")
        if next_width and state.remaining > 1:
            # Rows that the token ends are read as if they went on, and what is read is not used.
            read = tokens.clamp(min=0)  # -1 where there is no distribution
            logits = ahead.target.forward_ahead(read, Numbers(state.length - 1 + state.is_running))
            meter.clock.lap("target")
            self._next = None if logits is None else LaunchedWindow(1, state.ids, None, NOTHING, logits)
        on_host = pending.read()
        return Verdict(tokens, Numbers(np.zeros(len(p), dtype=np.int64)), p, NOTHING, on_host=on_host)


def _next_width(state: BatchState, width: int, wanted: int) -> int:
    """The width of the window after one of `width` tokens, if it is known before that one is read; else 0."""
    # It is where the longest row keeps enough tokens, whatever it gains. Windows past the end of a row are cut off.
    return wanted if wanted > 1 and state.remaining - width + 1 >= wanted else 0


def _launch_next(
    ahead: Ahead, verdict: Verdict, state: BatchState, draws: WindowRNG, width: int, meter: Meter
) -> LaunchedWindow | None:
    """Commits a window on the device and launches the next one; None if only the commit could be done."""
    next_draws = state.follow(verdict.tokens, verdict.counts.on(state.device), width)
    meter.clock.lap("other")
    draft = ahead.drafter.draft_ahead(verdict, state, draws, next_draws)
    meter.clock.lap("drafter")
    logits = None if draft is None or draft.window is None else ahead.target.forward_ahead(draft.window, state.before)
    meter.clock.lap("target")
    if draft is None or logits is None:
        state.close()
        return None
    return LaunchedWindow(width, state.ids, next_draws, draft, logits)
