"""A window policy that maximizes measured tokens per second (`window=auto`).

The stopping threshold of SpecDec++ (Huang et al. 2024) maximizes the same for a known ratio of draft cost to target
cost. Here both costs are measured on the device. A width of 1 is a step without drafts, so that where drafting does not
pay, decoding becomes plain.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cache
from math import sqrt
from statistics import NormalDist, fmean, median
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mmspec.decoding.window_policy import Committed
from mmspec.environment.setup_work import setups
from mmspec.knobs import LARGEST

if TYPE_CHECKING:
    from mmspec.decoding.adaptive_branching import AdaptiveBranching

_MIN_CALLS = 3  # measured calls before two widths are compared; fewer are forgotten at the end of a run
_MIN_STEPS = 2  # the same for sequences of single steps
_MIN_ROWS = 16  # in a batch, rows of these calls in all: the first call in which rows gain unequally is not undone
_DOUBT = 3  # in a batch, calls of each width that are taken to have gained one token
_FIRST_COST = 1.5  # single steps that a first window is taken to cost
_SLOW = 4  # times what a call is expected to take, beyond which it is taken to have met a slow start
_PRIOR = 0.8  # the chance to accept a draft that is hoped for, before anything is measured
_PRIOR_CALLS = 8  # measured calls that this hope is worth
_SHORT = 32  # tokens of a run whose steps all cost about the same
_MAX_AGE = 48  # calls after which the neighbors of the best width are measured again
_LOSS_SHARE = 0.01  # of plain decoding's time, what drafts may lose; of the best width's, what exploration may lose
# What drafts may lose beyond that while little is known: of the first run, of a later one, and in all runs together, in
# single steps.
_FIRST_PROBE_SHARE, _PROBE_SHARE, _PROBE_STEPS = 0.05, 0.005, 16.0
_RESERVE = 0.05  # of plain decoding's time, what the best width may lose of that which drafts saved in earlier runs
# The account of all runs: single steps that a new model may lose, the share of the tokens that it grows by, and the
# share of a run that it may hold beyond them, or owe.
_ACCOUNT, _GROWTH, _HELD = 8.0, 0.01, 0.12
_CHANCES = 200  # steps of a table of chances to accept a draft
_STEPS = 16  # consecutive single steps while drafting does not pay
# Tokens per second that drafts must gain over single steps: in a batch more than these lose once the rows stand at
# different positions.
_GAIN, _BATCH_GAIN = 1.03, 1.06
_CLEAR_GAIN = 1.2  # where drafts gain more, the single steps of earlier runs will do
_STEPS_AGE = 200  # calls after which single steps are measured anew even there: they may have met a busy machine
_DEVIATION = 0.15  # of the mean gain of n calls, the share that is hoped for beyond it, times the root of n
_NEIGHBOR_CALLS = 3  # measured calls that the gains of the neighboring widths are worth


class AdaptiveWindow:
    """A policy that chooses among widths of 1, 2, 4, ... tokens, at most `largest`.

    Implements `mmspec.decoding.window_policy.WindowPolicy`. It hopes for the best (the optimism of bandits): each width
    is taken to gain what drafts of which 0.8 are accepted would, until its own calls say otherwise, and a width that
    could beat the best one so far is tried. One call at a width of 2 and one of 4 tell what wider ones will cost; the
    next is the most promising width, not the neighbor, since drafts that are reused gain little in narrow windows.

    A balance of each run bounds what that may cost: the seconds that calls with drafts took beyond those of plain
    decoding for the same tokens. A width is tried only if the balance stays below 1 % of what plain decoding takes even
    if the call gains a single token. In the first run on a model it is 6 %, and in later ones 1.5 %, until the time of
    16 single steps is lost. So a run in which drafts never pay is not slower by more. Measurements are kept for later
    runs: where drafts gain more than a fifth, single steps are measured anew after 200 calls only. Where drafts have
    paid, the best width may lose another 5 %, of what earlier runs saved: images often begin with a streak of rejected
    drafts.

    That is reckoned call by call, from gains which a few unlucky rows of a batch end later than, and anew in each run.
    So a run is also settled when it is over: with the calls that it took, those with fewer rows included, against one
    step for each token. An account of all runs starts with 8 single steps and grows by 1 % of the tokens; after a run
    that overdraws it, single steps follow until it has recovered: 12 runs at most.

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
        self._gained: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=128))
        self._last_call: dict[int, int] = {}  # by width, the number of the latest call
        self._calls = 0
        self._setups = setups()
        self._slow: set[int] = set()  # widths whose first call was too slow to be believed
        self._credit = _PROBE_STEPS  # single steps that may be lost until widths are known
        self._saved = 0.0  # single steps that drafts saved in all runs before this one
        self._drafted, self._drafted_tokens = 0.0, 0.0
        self._account = _ACCOUNT
        self._rows, self._limit, self._length = 1, 1, 0
        self._spent = self._rest = self._decoded = self._passed = 0.0
        self.begin(1)

    def begin(self, length: int, rows: int = 1, fixed: bool = True) -> None:
        """Starts a run, with a new balance and a new exploration budget.

        Widths with few and bad measurements are forgotten: if these were unlucky, the width would never be tried again.

        Args:
            length: Tokens of each row.
            rows: Number of rows.
            fixed: Whether no row can end before that.
        """
        self._has_run = self._calls > 0
        self._settle(length)
        self._rows = rows
        self._slowest_rates: dict[int, float] = {}
        saved = self._saved - self._balance * self.rate(1)
        self._credit, self._saved = max(0.0, self._credit + min(0.0, saved)), max(0.0, saved)
        for width in self.widths:
            if self._seconds[width] and not self._measured(width) and self._hoped_rate(width) <= self.rate(1) / 2:
                self._seconds[width].clear()
                self._gained[width].clear()
        # Sequences of single steps that were measured in this run; of a short one, such as a frame, those before count.
        self._fresh = 0 if length > _SHORT else _MIN_STEPS
        self._limit, self._length = length, length if fixed else 0
        self._spent = self._rest = 0.0  # single steps that the calls of this run took, and those with fewer rows
        self._decoded = self._passed = 0.0  # tokens of the slowest rows, and what they would be without other rows
        self._lost = 0.0  # seconds lost to exploration in this run
        self._drafted = self._drafted_tokens = 0.0  # seconds, and tokens, of this run's calls with drafts
        self._first = True  # whether no call of this run has been recorded
        self._before = 0  # the width of the latest call
        self._repeats = 0  # calls of that width in a row

    def rate(self, width: int) -> float:
        """Tokens per row and second at a width, by its own calls and, of a window, by its neighbors'.

        0 if the width was never measured.
        """
        seconds, gained = self._seconds[width], self._gained[width]
        if not seconds or not gained:
            return 0.0
        near = [w for w in (width // 2, 2 * width) if width > 1 < w and len(self._gained[w]) > _NEIGHBOR_CALLS]
        mean = fmean(gained)
        if near:  # a few lucky calls make no width the best, nor do unlucky ones rule it out
            expected = _expected(fmean(_chance(fmean(self._gained[w]), w) for w in near), width)
            mean += (expected - mean) * _NEIGHBOR_CALLS / (_NEIGHBOR_CALLS + len(gained))
        return mean / _typical(seconds)

    @property
    def tried(self) -> frozenset[int]:
        """The widths of calls so far, also of those that tell nothing yet."""
        return frozenset(self._last_call.keys() | self._slow)

    @property
    def best(self) -> int:
        """The width with the most tokens per second; 1 if drafts gain too little over single steps."""
        fastest = self._fastest
        return fastest if self._slowest_rate(fastest) >= self._least_gain * self.rate(1) else 1

    @property
    def _fastest(self) -> int:
        """The width with the most tokens per second, be it a single step's."""
        return max((w for w in self.widths if self._measured(w)), key=self._slowest_rate, default=1)

    @property
    def _balance(self) -> float:
        """Seconds that this run's drafts took beyond those of plain decoding, by the latest cost of a single step."""
        return self._drafted - self._drafted_tokens / self.rate(1) if self._drafted else 0.0

    @property
    def _least_gain(self) -> float:
        """What drafts must gain over single steps, as a factor."""
        return _GAIN if self._rows == 1 else _BATCH_GAIN

    def choose(self) -> int:
        """The next width."""
        self._setups = setups()
        if not self._knows_steps:
            return 1  # what drafts are compared with, and the cheapest call where they do not pay
        if self._is_overdrawn:
            return 1
        best = self.best
        # The first call of a run is not measured.
        for width in () if self._first or len(self.widths) == 1 else self._candidates(best):
            if self._is_affordable(width, best):
                return width
        reserve = min(_RESERVE * max(self._length, self._decoded), self._saved) / self.rate(1)
        return best if best == 1 or self._balance <= self._allowed(1) + reserve else 1

    @property
    def _is_overdrawn(self) -> bool:
        """Whether drafts have lost too much in earlier runs. One of a server may last for hours: it recovers there."""
        return self._account + _GROWTH * max(0.0, self._decoded - self._limit) <= 0

    @property
    def _knows_steps(self) -> bool:
        """Whether single steps have been measured, in this run or lately, which drafts are compared with."""
        if self._samples(1) < _MIN_STEPS:
            return False
        fresh = 1 if self._rows == 1 else _MIN_STEPS  # more would cost one row more than they tell
        if self._fresh >= fresh:
            return True
        # Where drafts pay by far, three single steps would cost a short run more than they tell.
        is_recent = not self._fresh and self._calls - self._last_call[1] < _STEPS_AGE
        return is_recent and self._slowest_rate(self._fastest) > _CLEAR_GAIN * self.rate(1)

    def settled(self) -> int:
        """The next width without exploration."""
        return self.best if self._knows_steps and not self._is_overdrawn else self.choose()

    def together(self) -> bool:
        """Whether the rows of the next window should advance by the same number of tokens."""
        return self._rows > 1 and self.best == 1

    def next(self) -> int:
        """The width after the call in hand, if its measurement changes nothing; 0 where that is likely."""
        if self._first or self.together() or not self._knows_steps:
            return 0
        setups_before, self._calls = self._setups, self._calls + 1
        width = self.choose()
        self._setups, self._calls = setups_before, self._calls - 1
        return width

    def steps(self) -> int:
        """Consecutive single steps at width 1; few until their cost has been measured."""
        if self._knows_steps:
            return _STEPS
        return 1 if self._first else 3

    def record(self, width: int, committed: Committed) -> None:
        """Learns what the windows of a width cost and gained.

        The first call of a run is not measured, nor is one in which a kernel was compiled or a CUDA graph captured.
        """
        seconds, calls = committed.seconds, committed.calls
        gained = advanced = committed.gain if width > 1 else 1.0
        if committed.together:  # what rows gain alone
            gained = _expected(committed.accepted / max(committed.tested, 1), width)
        self._decoded += advanced * calls
        self._passed += gained * calls
        self._spent += advanced * calls if setups() != self._setups else self._in_steps(width, seconds) * calls
        if setups() != self._setups:
            self._first = False
            return
        if width > 1 and self.rate(1):
            # A known width is charged for what it takes, but not for what other processes take.
            usual = (1.5 if self._measured(width) else _SLOW) * self._cost(width)
            self._drafted += min(seconds, usual) * calls
            self._drafted_tokens += advanced * calls
            if seconds > usual and not self._seconds[width] and width not in self._slow and not self._first:
                self._slow.add(width)  # believed the second time
                return
        if self._first:
            # The beginning is like no other part: images begin with empty background.
            self._first = False
            return
        best = self.best
        fastest = self.rate(best)
        self._calls += calls
        if width == 1:
            if not self._fresh:  # a step costs more at the end of a run, where the cache is long
                self._seconds[1].clear()
            self._fresh += 1
        for near in (width // 2, width, 2 * width):
            self._slowest_rates.pop(near, None)
        self._seconds[width].append(seconds)
        self._last_call[width] = self._calls
        # Drafts that an earlier call refined gain more: the first call of a width says what it costs alone.
        is_new, self._repeats = width > max(1, self._before), self._repeats + 1 if width == self._before else 1
        self._before = width
        if not is_new:
            self._gained[width].append(gained)
        if fastest and width not in (1, best):
            self._lost += (seconds - advanced / fastest) * calls

    def rest(self, width: int, seconds: float, calls: int = 1) -> None:
        """Counts calls that are not recorded; see `mmspec.decoding.window_policy.WindowPolicy`."""
        self._passed += fmean(self._gained[width] or (1.0,)) * calls if width > 1 else calls
        self._rest += self._in_steps(width, seconds) * calls

    def _in_steps(self, width: int, seconds: float) -> float:
        """Single steps that a call took; what other processes take is left out."""
        if width == 1 or not self._seconds[1]:
            return 1.0
        usual = (1 if self._seconds[width] else _SLOW) * self._cost(width)
        return min(seconds, usual) / self._cost(1)

    def _settle(self, length: int) -> None:
        """Charges the account for the run before; of a batch that was left before its end, what is known of it."""
        is_over = self._rows > 1 and self._length and self._passed >= self._length - 1
        # Of rows that others have followed in the places of those that ended, as in a server, there are more.
        tokens = max(self._length - 1, self._decoded) if is_over else self._decoded
        self._account += (1 + _GROWTH) * tokens - self._spent - (self._rest if is_over else 0)
        self._account = min(max(self._account, -_HELD * length), _ACCOUNT + _HELD * length)

    def _slowest_rate(self, width: int) -> float:
        """Tokens per second at a width of the row that is expected to finish last, which a batch waits for."""
        if width not in self._slowest_rates:
            self._slowest_rates[width] = self._measured_slowest_rate(width)
        return self._slowest_rates[width]

    def _measured_slowest_rate(self, width: int) -> float:
        """What `_slowest_rate` keeps until the width is measured again."""
        if width == 1 or self._rows == 1 or not self._gained[width]:
            return self.rate(width)
        # Drawn to one token: rows that were taken to gain too much are apart afterwards, which is not undone.
        gained = (sum(self._gained[width]) + _DOUBT) / (self._samples(width) + _DOUBT)
        chance = _chance(gained, width)
        variance = sum((2 * i + 1) * chance**i for i in range(width)) - gained**2  # of a row's gain per call
        deficit = _expected_most(self._rows) * sqrt(max(0.0, variance))
        # n calls gain n gained - sqrt(n) deficit in the slowest row.
        calls = ((deficit + sqrt(deficit**2 + 4 * gained * self._limit)) / (2 * gained)) ** 2
        return self._limit / (calls * _typical(self._seconds[width]))

    def _samples(self, width: int) -> int:
        """The number of calls at a width whose gain was measured."""
        return len(self._gained[min(width, self.widths[-1])])

    def _measured(self, width: int) -> bool:
        """Whether a width has measurements enough to be compared."""
        if width == 1:
            return self._samples(1) >= _MIN_STEPS
        return self._samples(width) >= (_MIN_CALLS if self._rows == 1 else max(_MIN_CALLS, -(-_MIN_ROWS // self._rows)))

    def _candidates(self, best: int) -> list[int]:
        """Widths that are worth a measurement, the most urgent first."""
        drafting = self.widths[1:]
        timed = sum(bool(self._seconds[w]) for w in drafting)
        wanted = 2 if best == 1 else 3
        first_two = timed <= 2 and len(self._seconds[self._before]) == 1  # they tell what a token costs alone
        if self._before not in (0, 1, best) and self._repeats < wanted and not first_two:
            return [self._before]  # the first call does not tell what a width gains
        if timed < 2:  # what a token costs is not known, so that wider windows are too great a risk
            drafting = drafting[: timed + 1]
        hoped = {w: self._hoped_rate(w) for w in drafting}
        least = self._slowest_rate(best) if best > 1 else self._least_gain * self.rate(1)
        worth = hoped if best > 1 else {w: self._chances_per_loss(w) for w in drafting}
        better = sorted((w for w in drafting if w != best and hoped[w] > least), key=lambda w: -worth[w])
        if timed < 2 and drafting[-1] in better:
            return drafting[-1:]
        if best == 1:
            likely = max(drafting, key=lambda w: hoped[w])
            once = [w for w in drafting if len(self._seconds[w]) == 1]  # it may have been an unlucky call
            return better or once or ([likely] if self._is_due(likely) else [])
        index = self.widths.index(best)
        around = (*self.widths[index + 1 : index + 2], self.widths[index - 1])
        return better or [w for w in around if w > 1 and self._is_old(w)]

    def _is_old(self, width: int) -> bool:
        """Whether the latest call at a width, if any, was long ago."""
        return self._calls - self._last_call.get(width, -_MAX_AGE) >= _MAX_AGE

    def _is_due(self, width: int) -> bool:
        """Whether a visit to a width that lost, of two calls, would cost little of the time since the latest one."""
        risk = 2 * max(0.0, self._cost(width) * self.rate(1) - 1)  # single steps
        return self._is_old(width) and self._calls - self._last_call.get(width, 0) >= risk / _LOSS_SHARE

    def _is_affordable(self, width: int, best: int) -> bool:
        """Whether the balance allows calls at a width that gain one token each, and the exploration budget one call."""
        seconds = self._cost(width)
        # A width that is new needs two calls, but for the first two widths, which tell what a token costs.
        calls = 2 if width > max(4, self._before) else 1
        if self._balance + calls * (seconds - 1 / self.rate(1)) > self._allowed(1):
            return False
        if best == 1 or width == self._before:
            return True
        return self._lost + max(0.0, seconds - self._hope(width) / self.rate(best)) <= self._allowed(best)

    def _allowed(self, width: int) -> float:
        """Seconds that may be lost in this run to decoding at a width."""
        tokens = max(self._length, self._decoded)
        share = _PROBE_SHARE if self._has_run else _FIRST_PROBE_SHARE
        return (_LOSS_SHARE * tokens + min(share * tokens, self._credit)) / self.rate(width)

    def _cost(self, width: int) -> float:
        """Seconds of one call at a width, measured or predicted from the two widest narrower widths."""
        if self._seconds[width]:
            return _typical(self._seconds[width])
        known = [w for w in self.widths if w < width and self._seconds[w]][-2:]
        costs = [_typical(self._seconds[w]) for w in known]
        if len(known) < 2:
            return _FIRST_COST * costs[0]
        # Too much after a first width, whose cost includes what drafting costs at any width: the safe side.
        slope = (costs[1] - costs[0]) / (known[1] - known[0])
        wider = (_typical(self._seconds[w]) for w in self.widths if w > width and self._seconds[w])
        return min([costs[1] + max(0.0, slope) * (width - known[1]), *wider])

    def _hoped_rate(self, width: int) -> float:
        """Tokens per second that may be hoped for at a width."""
        if self._seconds[width] or sum(bool(self._seconds[w]) for w in self.widths[1:]) > 1:
            return self._hope(width) / self._cost(width)
        return self._hope(width) / max(_typical(self._seconds[w]) for w in self.widths if self._seconds[w])

    def _chances_per_loss(self, width: int) -> float:
        """Seconds that a call may be hoped to save, over those that it may lose."""
        seconds, plain = self._cost(width), 1 / self.rate(1)
        return (self._hope(width) * plain - seconds) / max(seconds - plain, plain / 100)

    def _hope(self, width: int) -> float:
        """Tokens per call that may be hoped for at a width."""
        chances = []
        if narrower := [w for w in self.widths[1:] if w < width and self._gained[w]]:
            # Drafts that are reused are better in wider windows.
            chance = self._hoped_chance(narrower[-1])
            chances.append(max(chance, min(_PRIOR, (1 + chance) / 2)))
        if wider := [w for w in self.widths if w > width and self._gained[w]]:
            chances.append(self._hoped_chance(wider[0]))
        hope = self._towards(min(chances, default=_PRIOR), width)
        calls = (_PRIOR_CALLS + len(self._gained[width])) * sqrt(self._rows)
        return min(float(width), hope * (1 + _DEVIATION / sqrt(calls)))

    def _hoped_chance(self, width: int) -> float:
        """The chance to accept a draft at a width that was measured, drawn to what was hoped for."""
        return _chance(self._towards(_PRIOR, width), width)

    def _towards(self, chance: float, width: int) -> float:
        """Tokens per call at a width: measured, drawn to those of a chance to accept each draft."""
        gained = self._gained[width]
        return (_PRIOR_CALLS * _expected(chance, width) + sum(gained)) / (_PRIOR_CALLS + len(gained))


@cache
def _expected_most(count: int) -> float:
    """The expected largest of so many standard normal numbers (Blom's approximation)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _expected(chance: float, width: int) -> float:
    """Tokens that a call of `width` tokens gains if each draft is accepted with `chance`."""
    return (1 - chance**width) / (1 - chance) if chance < 1 else float(width)


def _chance(gained: float, width: int) -> float:
    """The probability to accept each draft with which a call of `width` tokens gains `gained`, to half a percent."""
    return min(bisect(_gains(width), gained) / _CHANCES, 1.0)


@cache
def _gains(width: int) -> list[float]:
    """What a call of `width` tokens gains, by the chance to accept each draft, in ascending order."""
    return [_expected((n + 0.5) / _CHANCES, width) for n in range(_CHANCES)]


def _typical(seconds: Sequence[float]) -> float:
    """The median; of fewer than three measurements the smallest, since one of them may have met a slow start."""
    return median(seconds) if len(seconds) > 2 else min(seconds)


# By recipe, batch size and whether guidance is on.
AdaptiveWindows = dict[tuple[str, int, bool], "AdaptiveWindow | AdaptiveBranching"]

_WINDOWS: WeakKeyDictionary[object, AdaptiveWindows] = WeakKeyDictionary()


def adaptive_windows_of(model: object) -> AdaptiveWindows:
    """The policies of a model's earlier runs, by recipe, batch size and whether guidance is on."""
    return _WINDOWS.setdefault(model, {})
