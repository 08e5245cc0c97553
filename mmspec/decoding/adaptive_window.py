"""A window policy that maximizes measured tokens per second (`window=auto`).

The stopping threshold of SpecDec++ (Huang et al. 2024) maximizes the same for a known ratio of draft cost to target
cost. Here both costs are measured on the device. A width of 1 is a step without drafts, so that where drafting does not
pay, decoding becomes plain.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cache
from math import sqrt
from statistics import NormalDist, fmean, median
from weakref import WeakKeyDictionary

from mmspec.decoding.adaptive_branching import AdaptiveBranching
from mmspec.knobs import LARGEST
from mmspec.setup_work import setups

_MIN_CALLS = 3  # measured calls before two widths are compared; fewer are forgotten at the end of a run
_MIN_STEPS = 2  # the same for sequences of single steps
_MIN_ROWS = 12  # in a batch, rows of these calls in all: the first call in which rows gain unequally is not undone
_FIRST_COST = 1.5  # single steps that a first window is taken to cost: runs of less than 25 tokens stay plain
_MAX_AGE = 48  # calls after which the neighbors of the best width are measured again
_LOSS_SHARE = 0.01  # of plain decoding's time, what drafts may lose; of the best width's, what exploration may lose
_STEPS = 16  # consecutive single steps while drafting does not pay
# Tokens per second that drafts must gain over single steps: more than the noise of the measurements, and in a batch
# more than single steps lose once the rows stand at different positions.
_GAIN, _BATCH_GAIN = 1.1, 1.2


class AdaptiveWindow:
    """A policy that chooses among widths of 1, 2, 4, ... tokens, at most `largest`.

    Implements `mmspec.decoding.window_policy.WindowPolicy`. It explores the neighbors of the best width so far, from a
    width of 2 on, and keeps a balance of each run: the seconds that calls with drafts took beyond those of plain
    decoding for the same tokens. A width is chosen only if the balance, with the loss that is expected of one more such
    call, stays below 1 % of what plain decoding takes, so that a run in which drafts never pay is not slower by more,
    the first one on a model included. Where drafts pay, exploration may lose 1 % of the run's time. Measurements are
    kept for later runs.

    The rows of a batch advance together while drafts have not been shown to pay: single steps cost more once rows stand
    at different positions.

    Args:
        largest: The widest window.

    Attributes:
        widths: The widths to choose from, ascending.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self.widths = [2**n for n in range(largest.bit_length())]
        # By width: seconds per call, and tokens per call of the slowest rows, of the latest calls.
        self._seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=9))
        self._gained: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=64))
        self._last_call: dict[int, int] = {}  # by width, the number of the latest call
        self._calls = 0
        self._setups = setups()
        self.begin(1)

    def begin(self, length: int, rows: int = 1, fixed: bool = True) -> None:
        """Starts a run, with a new balance and a new exploration budget.

        Widths with few and bad measurements are forgotten: if these were unlucky, the width would never be tried again.

        Args:
            length: Tokens of each row.
            rows: Number of rows.
            fixed: Whether no row can end before that.
        """
        self._rows = rows
        self._slowest_rates: dict[int, float] = {}
        for width in self.widths:
            if not self._measured(width) and self.rate(width) <= self.rate(1) / 2:
                self._seconds[width].clear()
                self._gained[width].clear()
        self._limit, self._length = length, length if fixed else 0
        self._decoded = 0.0  # tokens of the slowest rows in this run
        self._lost = 0.0  # seconds lost to exploration in this run
        self._balance = 0.0  # seconds that this run's drafts took beyond those of plain decoding
        self._first = True  # whether no call of this run has been recorded

    def rate(self, width: int) -> float:
        """Measured tokens per row and second at a width; 0 if it was never measured."""
        seconds = self._seconds[width]
        return fmean(self._gained[width]) / _typical(seconds) if seconds else 0.0

    @property
    def best(self) -> int:
        """The width with the most tokens per second; 1 if drafts gain too little over single steps."""
        fastest = max((w for w in self.widths if self._measured(w)), key=self._slowest_rate, default=1)
        least = _GAIN if self._rows == 1 else _BATCH_GAIN
        return fastest if self._slowest_rate(fastest) >= least * self.rate(1) else 1

    def choose(self) -> int:
        """The next width."""
        self._setups = setups()
        if self._samples(1) < _MIN_STEPS:
            return 1  # what drafts are compared with, and the cheapest call where they do not pay
        best = self.best
        # The first call of a run is not measured.
        for width in () if self._first else self._candidates(best):
            if self._is_affordable(width, best):
                return width
        return best if best == 1 or self._balance <= self._allowed() else 1

    def settled(self) -> int:
        """The next width without exploration."""
        return self.best if self._samples(1) >= _MIN_STEPS else self.choose()

    def together(self) -> bool:
        """Whether the rows of the next window should advance by the same number of tokens."""
        return self._rows > 1 and self.best == 1

    def next(self) -> int:
        """The width after the call in hand, if its measurement changes nothing; 0 where that is likely."""
        if self._first or self.together() or self._samples(1) < _MIN_STEPS:
            return 0
        setups_before, self._calls = self._setups, self._calls + 1
        width = self.choose()
        self._setups, self._calls = setups_before, self._calls - 1
        return width

    def steps(self) -> int:
        """Consecutive single steps at width 1; few until their cost has been measured."""
        if self._samples(1) >= _MIN_STEPS:
            return _STEPS
        return 1 if self._first else 3

    def record(self, width: int, seconds: float, gained: float, calls: int = 1, advanced: float | None = None) -> None:
        """Records `calls` calls of `seconds` each; see `mmspec.decoding.window_policy.WindowPolicy`.

        The first call of a run is not measured, nor is one in which a kernel was compiled or a CUDA graph captured.
        """
        advanced = gained if advanced is None else advanced
        self._decoded += advanced * calls
        if setups() != self._setups:
            self._first = False
            return
        if width > 1 and (plain := self.rate(1)):
            self._balance += (seconds - advanced / plain) * calls
        if self._first:
            # The beginning is like no other part: images begin with empty background.
            self._first = False
            return
        measured, best = self._samples(1) and self._samples(width), self.best
        fastest = self.rate(best)
        self._calls += calls
        self._last_call[width] = self._calls
        self._slowest_rates.pop(width, None)
        self._seconds[width].append(seconds)
        self._gained[width].append(gained)
        if fastest and (width != best or not measured):
            self._lost += max(0.0, seconds - advanced / fastest) * calls

    def _slowest_rate(self, width: int) -> float:
        """Tokens per second at a width of the row that is expected to finish last, which a batch waits for."""
        if width not in self._slowest_rates:
            self._slowest_rates[width] = self._measured_slowest_rate(width)
        return self._slowest_rates[width]

    def _measured_slowest_rate(self, width: int) -> float:
        """See `_slowest_rate`, which keeps it until the width is measured again."""
        if width == 1 or self._rows == 1 or not self._samples(width):
            return self.rate(width)
        gained = fmean(self._gained[width])
        chance = _chance(gained, width)
        variance = sum((2 * i + 1) * chance**i for i in range(width)) - gained**2  # of a row's gain per call
        deficit = _expected_most(self._rows) * sqrt(max(0.0, variance))
        # n calls gain n gained - sqrt(n) deficit in the slowest row.
        calls = ((deficit + sqrt(deficit**2 + 4 * gained * self._limit)) / (2 * gained)) ** 2
        return self.rate(width) * self._limit / (calls * gained)

    def _samples(self, width: int) -> int:
        """The number of measurements of a width."""
        return len(self._seconds[min(width, self.widths[-1])])

    def _measured(self, width: int) -> bool:
        """Whether a width has measurements enough to be compared."""
        if width == 1:
            return self._samples(1) >= _MIN_STEPS
        return self._samples(width) >= (_MIN_CALLS if self._rows == 1 else max(_MIN_CALLS, -(-_MIN_ROWS // self._rows)))

    def _candidates(self, best: int) -> list[int]:
        """Widths that are worth a measurement, the most urgent first."""
        drafting = [w for w in self.widths[1:] if self._samples(w)]
        if not drafting:
            return self.widths[1:2]
        if begun := [w for w in drafting if not self._measured(w)]:
            return begun
        if best == 1:
            # The next width if drafts could pay there were they for nothing, else the best one so far again.
            wider = next((w for w in self.widths if w > drafting[-1]), None)
            if wider and self._gain(wider) / _typical(self._seconds[drafting[-1]]) > self.rate(1):
                return [wider]
            # By what drafts of all widths were accepted: a width with few measurements may have been unlucky.
            chance = self._acceptance()
            likely = max(drafting, key=lambda w: _expected(chance, w) / self._cost(w))
            pays = _expected(chance, likely) / self._cost(likely) > self.rate(1)
            return [likely] if self._is_old(likely, _STEPS if pays else _MAX_AGE) else []
        index = self.widths.index(best)
        return [w for w in (*self.widths[index + 1 : index + 2], self.widths[index - 1]) if w > 1 and self._is_old(w)]

    def _is_old(self, width: int, age: int = _MAX_AGE) -> bool:
        """Whether the latest measurement of a width, if any, was `age` calls ago."""
        return not self._samples(width) or self._calls - self._last_call[width] >= age

    def _is_affordable(self, width: int, best: int) -> bool:
        """Whether one more call at a width keeps the balance and the exploration budget."""
        seconds, gained = self._cost(width), self._gain(width)
        if self.together():
            gained = _expected(_chance(gained, width) ** self._rows, width)
        if self._balance + max(0.0, seconds - gained / self.rate(1)) > self._allowed():
            return False
        budget = _LOSS_SHARE * max(self._length, self._decoded) / self.rate(best)
        return best == 1 or self._lost + max(0.0, seconds - gained / self.rate(best)) <= budget

    def _allowed(self) -> float:
        """Seconds that drafts may take beyond plain decoding."""
        return _LOSS_SHARE * max(self._length, self._decoded) / self.rate(1)

    def _cost(self, width: int) -> float:
        """Seconds of one call at a width, measured or predicted from the two widest narrower widths."""
        if self._samples(width):
            return _typical(self._seconds[width])
        known = [w for w in self.widths if w < width and self._samples(w)][-2:]
        costs = [_typical(self._seconds[w]) for w in known]
        if len(known) < 2:
            return _FIRST_COST * costs[0]
        # Too much after a first width, whose cost includes what drafting costs at any width: the safe side.
        slope = (costs[1] - costs[0]) / (known[1] - known[0])
        return costs[1] + max(0.0, slope) * (width - known[1])

    def _gain(self, width: int) -> float:
        """Tokens per call at a width, measured or predicted from what drafts of other widths were accepted."""
        if self._samples(width):
            return fmean(self._gained[width])
        return _expected(self._acceptance(), width)

    def _acceptance(self) -> float:
        """The acceptance rate of drafts at all widths, drawn to one half by two more drafts."""
        accepted, tested = 1.0, 2.0
        for width in self.widths[1:]:
            accepted += sum(gained - 1 for gained in self._gained[width])
            tested += sum(min(gained, width - 1) for gained in self._gained[width])
        return accepted / tested


@cache
def _expected_most(count: int) -> float:
    """The expected largest of so many standard normal numbers (Blom's approximation)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _expected(chance: float, width: int) -> float:
    """Tokens that a call of `width` tokens gains if each draft is accepted with `chance`."""
    return sum(chance**i for i in range(width))


def _chance(gained: float, width: int) -> float:
    """The probability to accept each draft with which a call of `width` tokens gains `gained`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if _expected(middle, width) < gained else (low, middle)
    return (low + high) / 2


def _typical(seconds: Sequence[float]) -> float:
    """The median; of fewer than three measurements the smallest, since one of them may have met a slow start."""
    return median(seconds) if len(seconds) > 2 else min(seconds)


# By recipe, batch size and whether guidance is on.
AdaptiveWindows = dict[tuple[str, int, bool], AdaptiveWindow | AdaptiveBranching]

_WINDOWS: WeakKeyDictionary[object, AdaptiveWindows] = WeakKeyDictionary()


def adaptive_windows_of(model: object) -> AdaptiveWindows:
    """The policies of a model's earlier runs, by recipe, batch size and whether guidance is on."""
    return _WINDOWS.setdefault(model, {})
