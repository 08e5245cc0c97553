"""How long to draft: a policy that chooses each window from what windows have cost and brought so far.

It maximises expected tokens per second, as the stopping threshold of SpecDec++ (Huang et al. 2024) does for a known
ratio of costs; here the costs are measured on the device at hand, and a single step is one of the choices: where
drafting does not pay, what is left is plain decoding.
"""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import fmean, median
from weakref import WeakKeyDictionary

from mmspec.knobs import LARGEST

_START = 4
_TRIES = 2  # calls before a window is judged
_STALE = 48  # calls after which the windows beside the best one are tried again
_SHARE = 0.02  # of the time of a run that trying may lose
_STRETCH = 16  # steps in a row where nothing pays


class AdaptiveWindow:
    """Chooses windows of 1, 2, 4, ... tokens, at most `largest`; 1 is a step without drafts.

    Better windows are sought beside the best one known. Trying them may lose 2 % of a run's time in all, so that a run
    whose drafts never pay stays within 5 % of plain decoding. What was learned is kept for the next run.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self.widths = [2**n for n in range(largest.bit_length())]
        self._seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=9))
        self._gained: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=32))
        self._tried: dict[int, int] = {}
        self._calls = 0
        self.begin(1)

    def begin(self, length: int) -> None:
        """A run of so many tokens per row starts: what trying may lose is counted anew."""
        self._length = length
        self._lost = 0.0

    def rate(self, width: int) -> float:
        """Tokens of a row per second at this window, by what is known; 0 where nothing is."""
        seconds = self._seconds[width]
        return fmean(self._gained[width]) / median(seconds) if seconds else 0.0

    @property
    def best(self) -> int:
        """The window of most tokens per second."""
        return max(self.widths, key=self.rate)

    def choose(self) -> int:
        """The next window."""
        if self._known(_START) < _TRIES:
            return min(_START, self.widths[-1])
        if not self._known(1):
            return 1
        best = self.best
        for width in self._beside(best):
            young = self._known(width) and self._calls - self._tried[width] < _STALE
            if not young and self._lost + self._loss(width) <= _SHARE * self._length / self.rate(best):
                return width
            if self._known(width) == 1 and self._tried[width] == self._calls:
                return width  # one call alone says little
        return best

    def steps(self) -> int:
        """How many single steps come in a row: few while their cost is being learned."""
        return _STRETCH if self._known(1) else 3

    def record(self, width: int, seconds: float, gained: float, calls: int = 1) -> None:
        """`calls` calls of this window took `seconds` each and brought a row `gained` tokens each on average."""
        known, best = self._known(1) and self._known(width), self.best
        fastest = self.rate(best)
        self._calls += calls
        self._tried[width] = self._calls
        self._seconds[width].append(seconds)
        self._gained[width].append(gained)
        if fastest and (width != best or not known):
            self._lost += max(0.0, seconds - gained / fastest) * calls

    def _known(self, width: int) -> int:
        return len(self._seconds[min(width, self.widths[-1])])

    def _beside(self, best: int) -> list[int]:
        """The neighbours of the best window; of the single step, the best window that drafts."""
        if best == 1:
            drafting = [w for w in self.widths[1:] if self._known(w)]
            return [max(drafting, key=self.rate)] if drafting else []
        place = self.widths.index(best)
        return [w for w in (*self.widths[place + 1 : place + 2], self.widths[place - 1]) if w > 1]

    def _loss(self, width: int) -> float:
        """Seconds that one more try is likely to lose."""
        if not self._known(width):
            return 0.0
        return max(0.0, median(self._seconds[width]) - fmean(self._gained[width]) / self.rate(self.best))


AdaptiveWindows = dict[tuple[str, int, bool], AdaptiveWindow]

_WINDOWS: WeakKeyDictionary[object, AdaptiveWindows] = WeakKeyDictionary()


def adaptive_windows_of(model: object) -> AdaptiveWindows:
    """What runs of this model have taught so far, by recipe, number of rows and whether guidance was on."""
    return _WINDOWS.setdefault(model, {})
