"""Whether a window of Jacobi decoding reuses drafts or has new ones only, by what either has given so far.

Reused drafts agree with the tokens that they were drafted with. Where a target repeats its last token, they still
repeat the old one after another token has come: every call corrects one slot, while a guess from the new token would
have filled the window.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG

_FIRST_GAIN = 3.0  # tokens that a window of reused drafts is taken to give before any was seen
_MEMORY = 0.9  # of the running means: for each window, and for each guess
_MARGIN = 1.25  # a streak of short windows is no reason
_RISE = 1.02  # of the gain of reused drafts in every window without them, so that they are tried again


@runtime_checkable
class KnowsGuesses(Protocol):
    """A continuation drafter whose drafts are guesses from the tokens before them."""

    @property
    def learns(self) -> bool:
        """Whether guesses depend on rejected slots too: what is chosen by them would know of drafts that are kept."""
        ...

    def guesses(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
        """The guess at every slot of a window after the tokens that were read there, int64 [B, m + 1, *cell]."""
        ...


class Restarts:
    """Chooses for each row whether its next window reuses drafts.

    It knows committed tokens, their number, and target distributions at committed places; all of that is decided before
    the first draft that could be reused (docs/architecture.md, "What a policy may know").

    Args:
        guesses: What fills a window without reused drafts.
    """

    ROWS = ("_gain", "_hits", "_restarts", "_reused")

    def __init__(self, guesses: KnowsGuesses) -> None:
        self._guesses = guesses
        self._begin(0)

    def _begin(self, rows: int) -> None:
        self._gain = np.full(rows, _FIRST_GAIN)  # mean tokens of a window that reuses drafts
        self._hits = np.zeros(rows)  # mean probability of a guess
        self._restarts = np.zeros(rows, dtype=np.bool_)  # what is chosen
        self._reused = np.zeros(rows, dtype=np.bool_)  # whether the open window reuses drafts

    def after(self, accepted: Numbers, width: int) -> Numbers:
        """The slots of the last window, [B], after which each row reuses its drafts: the last one if it reuses none.

        Args:
            accepted: [B], the drafts that were accepted.
            width: Of that window.
        """
        after = np.where(self._restarts, width - 1, accepted.host)
        self._reused = after < width - 1
        return Numbers(after)

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Called after verification, before the batch advances: `state` still ends where the window began."""
        rows, width = verdict.p.shape[:2]
        if not len(self._gain):
            self._begin(rows)
        if width == 1:
            return
        own = state.own_slots(draws.positions).sum(1).numpy()  # a window is as wide as the longest row needs
        gained = verdict.accepted + 1
        guesses = self._guesses.guesses(verdict, state, draws)
        probs = dense(verdict.p).gather(-1, guesses[..., None]).flatten(2).prod(-1).numpy()
        committed = np.arange(width) < gained[:, None]
        forget = _MEMORY**gained
        self._hits = forget * self._hits + (1 - forget) * probs.sum(1, where=committed) / gained
        seen = _MEMORY * self._gain + (1 - _MEMORY) * gained
        self._gain = np.where(self._reused, seen, np.where(self._restarts, _RISE * self._gain, self._gain))
        chance = self._hits.clip(max=1 - 1e-6)
        self._restarts = (1 - chance**own) / (1 - chance) > _MARGIN * self._gain
        self._reused = np.zeros(rows, dtype=np.bool_)

    def before_join(self, other: Restarts, state: BatchState, other_state: BatchState) -> None:
        for one, rows in ((self, len(state.ids)), (other, len(other_state.ids))):
            if not len(one._gain):
                one._begin(rows)
