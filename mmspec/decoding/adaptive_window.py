"""A window policy that maximizes measured tokens per second (`window=auto`).

The stopping threshold of SpecDec++ (Huang et al. 2024) maximizes the same for a known ratio of draft cost to target
cost. Here both costs are measured on the device. A width of 1 is a step without drafts, so that where drafting does not
pay, decoding becomes plain.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import fmean, median
from weakref import WeakKeyDictionary

from mmspec.knobs import LARGEST
from mmspec.setup_work import setups

_FIRST_WIDTH = 4  # the first width that is measured
_MIN_CALLS = 3  # measured calls before two widths are compared; fewer are forgotten at the end of a run
_MIN_STEPS = 2  # the same for sequences of single steps
_MAX_AGE = 48  # calls after which the neighbors of the best width are measured again
_EXPLORATION_SHARE = 0.012  # share of a run's time that exploration may lose
_LATE_SHARE = 0.95  # of a run's tokens
_STEPS = 16  # consecutive single steps while drafting does not pay
# Tokens per second that drafts must gain over single steps: more than the noise of the measurements, and in a batch
# more than single steps lose once the rows stand at different positions.
_GAIN, _BATCH_GAIN = 1.1, 1.2


class AdaptiveWindow:
    """A policy that chooses among widths of 1, 2, 4, ... tokens, at most `largest`.

    Implements `mmspec.decoding.loop.WindowPolicy`. It explores the neighbors of the best width so far. Exploration may
    lose at most 1.2 % of a run's time in all, so that a run whose drafts never pay stays within 3 % of plain decoding,
    on average; only the first run on a model, which knows nothing, may lose a few calls more. Measurements are kept for
    later runs.

    Args:
        largest: The widest window.

    Attributes:
        widths: The widths to choose from, ascending.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self.widths = [2**n for n in range(largest.bit_length())]
        # By width: seconds per call, and tokens per call of the slowest rows, of the latest calls.
        self._seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=9))
        self._gained: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=32))
        self._last_call: dict[int, int] = {}  # by width, the number of the latest call
        self._calls = 0
        self._setups = setups()
        self.begin(1)

    def begin(self, length: int, rows: int = 1) -> None:
        """Starts a run of `length` tokens in each of `rows` rows, with a new exploration budget.

        Widths with few measurements are forgotten: if these were unlucky, the width would never be tried again.
        """
        for width in self.widths:
            if self._samples(width) < (_MIN_STEPS if width == 1 else _MIN_CALLS):
                self._seconds[width].clear()
                self._gained[width].clear()
        self._length = length
        self._rows = rows
        self._decoded = 0.0  # tokens of the slowest rows in this run
        self._lost = 0.0  # seconds lost to exploration in this run
        self._first = True  # whether no call of this run has been recorded

    def rate(self, width: int) -> float:
        """Measured tokens per row and second at a width; 0 if it was never measured."""
        seconds = self._seconds[width]
        return fmean(self._gained[width]) / _typical(seconds) if seconds else 0.0

    @property
    def best(self) -> int:
        """The width with the most tokens per second; 1 if drafts gain too little over single steps."""
        fastest = max(self.widths, key=self.rate)
        least = _GAIN if self._rows == 1 else _BATCH_GAIN
        return fastest if self.rate(fastest) >= least * self.rate(1) else 1

    def choose(self) -> int:
        """The next width."""
        self._setups = setups()
        if self._samples(1) < _MIN_STEPS:
            return 1  # what drafts are compared with, and the cheapest call where they do not pay
        first = min(_FIRST_WIDTH, self.widths[-1])
        if self._samples(first) < _MIN_CALLS:
            return first
        best = self.best
        # After one window with drafts the rows of a batch stand at different positions, which makes all later steps
        # dearer: where single steps are best, drafts are measured again only near the end of a run.
        if best == 1 and self._rows > 1 and self._decoded < _LATE_SHARE * self._length:
            return 1
        for width in self._neighbors(best):
            recent = self._samples(width) and self._calls - self._last_call[width] < _MAX_AGE
            budget = _EXPLORATION_SHARE * self._length / self.rate(best)
            if not recent and self._lost + self._expected_loss(width) <= budget:
                return width
            if self._samples(width) == 1 and self._last_call[width] == self._calls:
                return width  # a single measurement is too noisy
        return best

    def settled(self) -> int:
        """The next width without exploration."""
        return self.best if self._samples(1) >= _MIN_STEPS else self.choose()

    def steps(self) -> int:
        """Consecutive single steps at width 1; few until their cost has been measured."""
        if self._samples(1) >= _MIN_STEPS:
            return _STEPS
        return 1 if self._first else 3

    def record(self, width: int, seconds: float, gained: float, calls: int = 1) -> None:
        """Records `calls` calls of `seconds` each; see `mmspec.decoding.loop.WindowPolicy`.

        The first call of a run is not measured, nor is one in which a kernel was compiled or a CUDA graph captured.
        """
        if self._first or setups() != self._setups:
            # The beginning is like no other part: images begin with empty background.
            self._first = False
            self._decoded += gained * calls
            return
        measured, best = self._samples(1) and self._samples(width), self.best
        fastest = self.rate(best)
        self._calls += calls
        self._decoded += gained * calls
        self._last_call[width] = self._calls
        self._seconds[width].append(seconds)
        self._gained[width].append(gained)
        if fastest and (width != best or not measured):
            self._lost += max(0.0, seconds - gained / fastest) * calls

    def _samples(self, width: int) -> int:
        """The number of measurements of a width."""
        return len(self._seconds[min(width, self.widths[-1])])

    def _neighbors(self, best: int) -> list[int]:
        """The widths next to the best one; if that is 1, the best width with drafts."""
        if best == 1:
            drafting = [w for w in self.widths[1:] if self._samples(w)]
            return [max(drafting, key=self.rate)] if drafting else []
        index = self.widths.index(best)
        return [w for w in (*self.widths[index + 1 : index + 2], self.widths[index - 1]) if w > 1]

    def _expected_loss(self, width: int) -> float:
        """Seconds that one more call at a width is expected to lose; 0 if it was never measured."""
        if not self._samples(width):
            return 0.0
        return max(0.0, _typical(self._seconds[width]) - fmean(self._gained[width]) / self.rate(self.best))


def _typical(seconds: Sequence[float]) -> float:
    """The median; of fewer than three measurements the smallest, since one of them may have met a slow start."""
    return median(seconds) if len(seconds) > 2 else min(seconds)


# By recipe, batch size and whether guidance is on.
AdaptiveWindows = dict[tuple[str, int, bool], AdaptiveWindow]

_WINDOWS: WeakKeyDictionary[object, AdaptiveWindows] = WeakKeyDictionary()


def adaptive_windows_of(model: object) -> AdaptiveWindows:
    """The window policies of a model's earlier runs, by recipe, batch size and whether guidance is on."""
    return _WINDOWS.setdefault(model, {})
