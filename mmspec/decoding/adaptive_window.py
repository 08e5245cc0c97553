"""A window policy that maximizes measured tokens per second (`window=auto`).

Two curves decide: what a call of each width takes, and how many tokens it gains. Tokens per call rise with the width,
but by less than the width does. So each width that was measured bounds all others, and few have to be tried. Drafts
that are reused are better the more calls they have been through: each width is judged by its own windows.
"""

from __future__ import annotations

from collections import defaultdict, deque
from math import sqrt
from statistics import median

from mmspec.decoding.window_policy import Committed
from mmspec.environment.setup_work import setups
from mmspec.knobs import LARGEST

_CHANCE, _CALLS = 0.8, 8.0  # the chance to accept a draft that is hoped for at first, and the calls that it is worth
_FORGET = 0.98  # of what a width has gained, what is left after each of its calls
_GAIN = 1.05  # tokens per second that drafts must gain over single steps
_APART, _DOUBT = 1.2, 0.6  # the same while rows advance together, and what one call's doubt adds: there is no way back
_STEPS, _TIMED = 16, 3  # consecutive single steps while drafting does not pay, and while their cost is unknown
_FIRST_COST = 1.5  # single steps that a first window is taken to cost
_SHORTEST = 1e-9  # seconds of a call: clocks may stand still, or be set back
_SLOW = 4  # times what a call is expected to take, beyond which the time is that of a slow start or of other processes
# The account, in single steps: a new model starts with 3 % of a run, at least 2.2 and at most 12. It grows by 1 % of
# the tokens up to that, and by what drafts save up to a fifth of a run more. A run begins in debt by a tenth at most.
_SHARE, _LEAST, _MOST, _GROWTH, _SAVED, _DEBT = 0.03, 2.2, 12.0, 0.01, 0.2, 0.1


class AdaptiveWindow:
    """A policy that chooses among widths of 1, 2, 4, ... tokens, at most `largest`.

    Implements `mmspec.decoding.window_policy.WindowPolicy`. After some single steps and a call of 2 and of 4 tokens, it
    takes the width that promises the most tokens per second, if an account can bear the loss should that call gain a
    single token. A width of 1 is a step without drafts: where drafting does not pay, decoding becomes plain.

    The account holds what drafts have saved so far, in single steps, less what they have lost; while it is overdrawn,
    single steps follow. In a batch it counts the tokens of the slowest rows. A batch ends with its last row,
    though, so the row with the fewest tokens is counted too: it may be later than plain decoding by little, and after
    the run the account holds no more than that row has saved.

    The rows of a batch advance together while drafts have not been shown to pay: single steps cost more once rows stand
    at different positions. What was measured is kept for later runs.

    Args:
        largest: The widest window.

    Attributes:
        widths: The widths to choose from, ascending.
    """

    learns = True

    def __init__(self, largest: int = LARGEST) -> None:
        self.widths = [2**n for n in range(largest.bit_length())]
        self._seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=9))  # of the latest calls, by width
        self._calls: dict[int, float] = defaultdict(float)  # whose gain is known, by width; old ones count less
        self._tokens: dict[int, float] = defaultdict(float)  # that these calls have gained
        self._slow: set[int] = set()  # widths whose first call was too slow to be believed
        self._account = self._last_row = 0.0
        self._setups, self._is_new = setups(), True
        self.begin(1)

    def begin(self, length: int, rows: int = 1) -> None:
        """Starts a run of so many rows of so many tokens."""
        self._rows = rows
        self._start = max(_LEAST, min(_MOST, _SHARE * length))
        self._limit = self._start + _SAVED * length
        known = max(-_DEBT * length, min(self._account, self._limit, self._last_row))
        self._account = self._start if self._is_new else known
        self._last_row = self._account  # the account by the row with the fewest tokens, without limits
        self._first = True  # whether no call of this run has been recorded
        self._in_step = True  # whether all windows of this run were taken together
        self._before = 0  # the width of the latest call

    def rate(self, width: int) -> float:
        """Tokens per row and second at a width; 0 if it was never measured."""
        if not self._seconds[width] or (width > 1 and not self._calls[width]):
            return 0.0
        return (self._tokens[width] / self._calls[width] if width > 1 else 1.0) / self._cost(width)

    @property
    def tried(self) -> frozenset[int]:
        """The widths that were measured."""
        return frozenset(width for width, seconds in self._seconds.items() if seconds)

    @property
    def best(self) -> int:
        """The width with the most tokens per second; 1 if drafts gain too little over single steps."""
        known = (width for width in self.widths[1:] if self._calls[width] * self._rows > 1)
        fastest = max(known, key=self.rate, default=1)
        least = _GAIN
        if self._in_step and self._rows > 1:
            least = _APART + _DOUBT / max(1.0, self._calls[fastest])
        return fastest if self.rate(fastest) >= least * self.rate(1) else 1

    @property
    def _knows_steps(self) -> bool:
        """Whether single steps have been measured, which drafts are compared with."""
        return len(self._seconds[1]) > 1

    def choose(self) -> int:
        """The next width."""
        self._setups = setups()
        if self._first or not self._knows_steps:  # the first call of a run is not measured
            return self.settled()
        best = self.best
        candidates = [width for width in self.widths[1:] if width != best]
        unknown = [width for width in self.widths[1:3] if not self._seconds[width]]
        if unknown and not any(self._seconds[width] for width in self.widths[2:]):
            candidates = unknown[:1]  # two calls tell what a token costs
        hoped = {width: self._hope(width) / self._least_cost(width) for width in candidates}
        least = max(self.rate(best), _GAIN * self.rate(1))
        for width in sorted(hoped, key=hoped.__getitem__, reverse=True):
            if hoped[width] > least and self._is_affordable(width):
                return width
        return self.settled()

    def settled(self) -> int:
        """The next width without exploration."""
        return self.best if self._knows_steps and self._spare > 0 else 1

    def together(self) -> bool:
        """Whether the rows of the next window should advance by the same number of tokens."""
        return self._rows > 1 and self.best == 1

    def next(self) -> int:
        """The width after the call in hand, if its measurement changes nothing; 0 where that is likely."""
        if self._first or self.together() or not self._knows_steps:
            return 0
        before = self._setups
        width = self.choose()
        self._setups = before
        return width

    def steps(self) -> int:
        """Consecutive single steps at width 1; few until their cost has been measured."""
        if self._knows_steps:
            return _STEPS
        return 1 if self._first else _TIMED

    def record(self, width: int, committed: Committed) -> None:
        """Learns what the windows of a width cost and gained.

        The first call of a run is not measured, nor is one in which a kernel was compiled or a CUDA graph captured.
        """
        is_first, self._first, self._is_new = self._first, False, False
        if setups() != self._setups:
            return
        before, self._before = self._before, width
        self._in_step &= width == 1 or committed.together
        seconds = max(_SHORTEST, committed.seconds)
        self._pay(width, committed, committed.gain * committed.calls)
        if is_first:  # the beginning is like no other part: images begin with empty background
            return
        known = self._seconds[width] or width in self._slow or not self._seconds[1]
        if not known and seconds > _SLOW * self._cost(width):
            self._slow.add(width)  # believed the second time
            return
        self._seconds[width].append(seconds)
        gained = (committed.gain + committed.progress) / 2  # the last row of a batch ends it
        if committed.together:  # what rows gain alone
            gained = _expected(committed.accepted / max(committed.tested, 1), width)
        # Drafts that an earlier call refined gain more: the first call of a row says what a width costs alone.
        if width > 1 and (width <= before or committed.together):
            self._tokens[width] = self._tokens[width] * _FORGET + gained
            self._calls[width] = self._calls[width] * _FORGET + 1

    def rest(self, width: int, committed: Committed) -> None:
        """Pays for calls that are not measured."""
        self._pay(width, committed, committed.progress)

    def _pay(self, width: int, committed: Committed, tokens: float) -> None:
        """Settles calls that are taken to have gained so many tokens."""
        spent = 1.0
        if width > 1 and self._seconds[1]:
            spent = min(max(_SHORTEST, committed.seconds), _SLOW * self._cost(width)) / self._cost(1)
        grown = max(self._account, min(self._start, self._account + _GROWTH * tokens))
        self._account = min(grown + tokens - spent * committed.calls, self._limit)
        self._last_row += (1 + _GROWTH) * committed.progress - spent * committed.calls

    def _is_affordable(self, width: int) -> bool:
        """Whether the account can bear calls at a width that gain one token each."""
        calls = 1 if width in (self._before, *self.widths[1:3]) else 2  # the first one does not tell what it gains
        loss = calls * (self._cost(width) / self._cost(1) - 1)
        return loss <= self._spare

    @property
    def _spare(self) -> float:
        """Single steps that drafts may still lose: the last row half of what a new model starts with."""
        return min(self._account, self._last_row + self._start / 2)

    def _typical(self, width: int) -> float:
        """The median; of fewer than three measurements the smallest, since one of them may have met a slow start."""
        seconds = self._seconds[width]
        return median(seconds) if len(seconds) > 2 else min(seconds)

    def _cost(self, width: int) -> float:
        """Seconds of a call at a width that was measured, or the most that it may take."""
        if self._seconds[width]:
            return self._typical(width)
        narrower = [w for w in self.widths if w < width and self._seconds[w]][-2:]
        if len(narrower) < 2:
            return _FIRST_COST * self._typical(1)
        low, high = map(self._typical, narrower)
        slope = max(0.0, high - low) / (narrower[1] - narrower[0])
        wider = (self._typical(w) for w in self.widths if w > width and self._seconds[w])
        return min([high + slope * (width - narrower[1]), *wider])

    def _least_cost(self, width: int) -> float:
        """Seconds of a call at a width that was measured, or the least that it may take."""
        measured = [width] if self._seconds[width] else [w for w in self.widths if w < width and self._seconds[w]]
        return max(map(self._typical, measured))

    def _hope(self, width: int) -> float:
        """Tokens per call that may be hoped for at a width; what others have gained bounds it."""
        worth = _CALLS / sqrt(self._rows)  # a call of a batch tells more

        def hope(at: int, prior: float) -> float:
            return (worth * prior + self._tokens[at]) / (worth + self._calls[at])

        bounds = [_expected(_CHANCE, width)]
        for other in self.widths[1:]:
            if self._calls[other] and other != width:
                bounds.append(hope(other, _expected(_CHANCE, other)) * max(1.0, width / other))
        return hope(width, min(bounds))


def _expected(chance: float, width: int) -> float:
    """Tokens that a call of `width` tokens gains if each draft is accepted with `chance`."""
    return (1 - chance**width) / (1 - chance) if chance < 1 else float(width)
