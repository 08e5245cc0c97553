"""Statistics of a decoding run: `Stats`, and the `Meter` that collects them."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rows import put_host_rows

if TYPE_CHECKING:
    from mmspec.sampling.tree_rejection import Outcome

PARTS = ("target", "drafter", "rule", "other")
# A lower bound on the probabilities in `nll`: a relaxed rule may emit a token that top-k has excluded.
_MIN_PROB = 2.0**-40


@dataclass(frozen=True)
class RowStats:
    """The statistics of one row; see `Stats`.

    Attributes:
        target_calls: Target calls that the row took part in.
        truncated: Whether the row reached the length limit before a token that ends it; False for sequences of a fixed
            length.
    """

    tokens: int
    target_calls: int
    tv_bound: float
    entropy: float | None
    nll: float | None
    truncated: bool = False


def no_tokens(measured: bool) -> RowStats:
    """The statistics of a row that was not decoded; `measured` says whether the run measured entropies."""
    bits = 0.0 if measured else None
    return RowStats(0, 0, 0.0, bits, bits)


@dataclass
class Stats:
    """The cost of one run.

    Attributes:
        target_calls: Target calls, the prefill included; a call serves every row that is still running.
        tokens: Emitted tokens of all rows.
        tokens_per_call: Emitted tokens over the target calls that their row took part in; 1.00 for plain decoding at
            any batch size.
        acceptance: For each slot of the window, accepted over tested drafts; None if none was tested.
        draft_calls: Calls of the drafter's own model.
        seconds: Wall-clock time of decoding.
        seconds_by_part: Seconds in the target, in the drafter, in sampler and acceptance rule ("rule"), and in the
            rest; a CUDA graph that verifies and drafts counts as the rule. Encoding the text of the prompt and decoding
            the tokens to pixels or audio are not included.
        peak_memory: Bytes: of the CUDA device, or of the process so far on a CPU.
        tv_bound: For a relaxed rule, an estimate of an upper bound of the total variation between the distribution of
            an emitted token and the target distribution: |relaxed - exact| acceptance probability of the tested drafts,
            per token. 0 for an exact rule.
        entropy: Mean entropy of the target distribution along the emitted tokens, in bits per token; None unless
            measured.
        nll: Mean negative log-probability of the emitted tokens under the target distribution, in bits per token (at
            most 40 for one token). Measured with `entropy`; its expectation is the entropy if the rule is exact. None
            for tokens that are not ids.
        rows: The same statistics of each row.
        tested: For each slot of the window, the number of tested drafts.
        window: Tokens of the recipe's widest window; 0 where it has none, and for several batches.
    """

    target_calls: int
    tokens: int
    tokens_per_call: float
    acceptance: list[float | None]
    draft_calls: int
    seconds: float
    seconds_by_part: dict[str, float]
    peak_memory: int
    tv_bound: float = 0.0
    entropy: float | None = None
    nll: float | None = None
    rows: list[RowStats] = field(default_factory=list)
    tested: list[int] = field(default_factory=list)
    window: int = 0

    @property
    def nfe(self) -> int:
        """`target_calls`, by its old name."""
        return self.target_calls

    def followed_by(self, other: Self) -> Self:
        """The statistics of two runs over different rows, one run after the other."""
        mine, theirs = self.tokens, other.tokens
        total = max(mine + theirs, 1)

        def per_token(a: float | None, b: float | None) -> float | None:
            return None if a is None or b is None else (a * mine + b * theirs) / total

        slots = zip_longest(self.acceptance, self.tested, other.acceptance, other.tested)
        accepted = [(a or 0.0) * (n or 0) + (b or 0.0) * (m or 0) for a, n, b, m in slots]
        tested = [n + m for n, m in zip_longest(self.tested, other.tested, fillvalue=0)]
        rows = self.rows + other.rows
        return replace(
            self,
            target_calls=self.target_calls + other.target_calls,
            tokens=mine + theirs,
            tokens_per_call=(mine + theirs) / max(sum(row.target_calls for row in rows), 1),
            acceptance=[a / n if n else None for a, n in zip(accepted, tested, strict=False)],
            draft_calls=self.draft_calls + other.draft_calls,
            seconds=self.seconds + other.seconds,
            seconds_by_part={part: self.seconds_by_part[part] + other.seconds_by_part[part] for part in PARTS},
            peak_memory=max(self.peak_memory, other.peak_memory),
            tv_bound=(self.tv_bound * mine + other.tv_bound * theirs) / total,
            entropy=per_token(self.entropy, other.entropy),
            nll=per_token(self.nll, other.nll),
            rows=rows,
            tested=tested,
        )

    def over(self, rows: Sequence[RowStats]) -> Self:
        """The same statistics, with the tokens, bounds and entropies of these rows in place of those so far."""
        tokens, calls = sum(row.tokens for row in rows), sum(row.target_calls for row in rows)

        def per_token(values: Sequence[float | None]) -> float | None:
            if any(value is None for value in values):
                return None
            return sum((value or 0.0) * row.tokens for value, row in zip(values, rows, strict=True)) / max(tokens, 1)

        return replace(
            self,
            tokens=tokens,
            tokens_per_call=tokens / max(calls, 1),
            tv_bound=per_token([row.tv_bound for row in rows]) or 0.0,
            entropy=per_token([row.entropy for row in rows]),
            nll=per_token([row.nll for row in rows]),
            rows=list(rows),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values; `nfe` is `target_calls` by its old name."""
        return {**asdict(self), "nfe": self.target_calls}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds_by_part.items())
        return (
            f"{self.tokens} tokens in {self.target_calls} target calls ({self.tokens_per_call:.2f} tokens per call), "
            f"{self.seconds:.2f} s ({parts})"
        )


_MOST_EVENTS = 4096  # of a clock, before it adds them up


class Clock:
    """Splits wall-clock time into `PARTS`. On CUDA it records events, so that the host does not synchronize."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._events: list[tuple[str | None, torch.cuda.Event]] = []  # None: the time before it belongs to no part
        self._last = time.perf_counter()
        self._mark(None)

    def _mark(self, part: str | None) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events.append((part, event))
            if len(self._events) > _MOST_EVENTS:
                self._add_up()

    def lap(self, part: str) -> None:
        """Charges the time since the last lap to `part`."""
        if self._cuda:
            self._mark(part)
            return
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now

    def skip(self) -> None:
        """Charges the time since the last lap to no part."""
        self._mark(None)
        self._last = time.perf_counter()

    def add(self, other: Clock) -> None:
        """Adds the laps of a clock that has run meanwhile, and goes on from now."""
        for part, seconds in other.seconds().items():
            self._seconds[part] += seconds
        self.skip()

    def seconds(self) -> dict[str, float]:
        """Seconds by part."""
        if self._cuda:
            self._add_up()
        return dict(self._seconds)

    def so_far(self) -> dict[str, float]:
        """Seconds by part that are known without waiting for the device; another thread may call it."""
        return dict(self._seconds)

    def _add_up(self) -> None:
        torch.cuda.synchronize(self._device)
        for (_, before), (part, event) in zip(self._events, self._events[1:], strict=False):
            if part is not None:
                self._seconds[part] += before.elapsed_time(event) / 1000
        del self._events[:-1]


@dataclass
class Meter:
    """Collects the statistics of a run.

    Args:
        device: Of the target.
        rows: Rows of the request.
        measure_entropy: Whether to measure `Stats.entropy` and `Stats.nll`.
        window: See `Stats`.
    """

    device: torch.device
    rows: int
    measure_entropy: bool = False
    target_calls: int = 0
    accepted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    tested: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    has_ids: bool = True
    window: int = 0

    def __post_init__(self) -> None:
        self.tokens, self.calls = np.zeros(self.rows, dtype=np.int64), np.zeros(self.rows, dtype=np.int64)
        self.excess, self.bits, self.surprise = np.zeros((3, self.rows))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.clock = Clock(self.device)

    def count(self, verdict: Outcome, gained: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Records one target call.

        Args:
            verdict: The result of the verification.
            gained: Host int64 [B], the tokens that each row gained; 0 for rows that had finished before.
            ids: Host int64 [B], the indices of the rows in the request.
        """
        p, accepted = verdict.p, verdict.accepted
        self.target_calls += 1
        self.calls[ids] += gained > 0
        self.tokens[ids] += gained
        if self.measure_entropy:
            self._measure(p, verdict.tokens, np.arange(p.shape[1]) < gained[:, None], ids)
        drafts = verdict.tokens.shape[1] - 1
        if not drafts:
            return
        if drafts > len(self.tested):
            grow = drafts - len(self.tested)
            self.accepted, self.tested = np.pad(self.accepted, (0, grow)), np.pad(self.tested, (0, grow))
        slots = np.arange(drafts)
        self.accepted[:drafts] += (slots < np.minimum(accepted, gained)[:, None]).sum(0)
        self.tested[:drafts] += (slots < np.minimum(verdict.tested, gained)[:, None]).sum(0)
        if verdict.excess is not None:
            tested = torch.from_numpy(slots < gained[:, None]).to(verdict.excess.device)
            self.excess[ids] += (verdict.excess * tested).sum(1).cpu().double().numpy()

    def count_steps(self, count: int, ids: NDArray[np.int64]) -> None:
        """Records `count` target calls without drafts, in each of which every row gained a token; measures nothing.

        Args:
            count: Calls.
            ids: Host int64 [B], the indices of the rows in the request.
        """
        self.target_calls += count
        self.calls[ids] += count
        self.tokens[ids] += count

    def iteration(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of target calls that each of the rows `ids` has taken part in, host int64 [B, 1].

        It numbers the iterations of random numbers: a row that joins a batch begins with 0.
        """
        return self.calls[ids][:, None]

    def take_rows(self, other: Meter, ids: Sequence[int], others: Sequence[int]) -> None:
        """Takes in the counts of another meter.

        Args:
            other: The meter; it must not be used any more.
            ids: For each of its rows, the index in the request of this meter; counts of an earlier row are lost.
            others: The indices of these rows in the request of `other`.
        """
        for name in ("tokens", "calls", "excess", "bits", "surprise"):
            setattr(self, name, put_host_rows(getattr(self, name), getattr(other, name)[others], ids))
        self.rows = len(self.tokens)
        self.target_calls += other.target_calls
        self.has_ids &= other.has_ids
        longest = max(len(self.tested), len(other.tested))
        for name in ("accepted", "tested"):
            ours, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, np.pad(ours, (0, longest - len(ours))) + np.pad(theirs, (0, longest - len(theirs))))
        self.clock.add(other.clock)

    def add(self, other: Meter) -> None:
        """Adds the counts of another run of the same rows, but not its acceptance, which describes a single run."""
        self.target_calls += other.target_calls
        for name in ("tokens", "calls", "excess", "bits", "surprise"):
            getattr(self, name)[:] += getattr(other, name)

    def _measure(self, p: Probs, tokens: Tensor, emitted: NDArray[np.bool_], ids: NDArray[np.int64]) -> None:
        """Adds entropy and NLL of `emitted` (host bool [B, W]) tokens [B, W, *cell]; p is [B, W, ...], ids [B]."""
        counts = torch.from_numpy(emitted).to(p.device)
        p = dense(p)
        bits = torch.special.entr(p).flatten(2).sum(-1) / np.log(2)
        self.bits[ids] += (bits * counts).sum(1).cpu().double().numpy()
        if tokens.is_floating_point() or p.dim() != tokens.dim() + 1:
            self.has_ids = False
            return
        probs = p.gather(-1, tokens.clamp(0, p.shape[-1] - 1).unsqueeze(-1)).clamp(min=_MIN_PROB)
        surprise = -probs.log2().flatten(2).sum(-1)
        self.surprise[ids] += (surprise * counts).sum(1).cpu().double().numpy()

    def row(self, index: int, truncated: bool = False) -> RowStats:
        """The statistics of one row of the request so far."""
        return self._rows(slice(index, index + 1), [truncated])[0]

    def _rows(self, ids: slice, truncated: list[bool]) -> list[RowStats]:
        tokens, none = self.tokens[ids], [None] * len(truncated)
        bounds, bits, surprise = (
            (a[ids] / np.maximum(tokens, 1)).tolist() for a in (self.excess, self.bits, self.surprise)
        )
        entropy = bits if self.measure_entropy else none
        nll = surprise if self.measure_entropy and self.has_ids else none
        return list(map(RowStats, tokens.tolist(), self.calls[ids].tolist(), bounds, entropy, nll, truncated))

    def stats(self, draft_calls: int, truncated: NDArray[np.bool_] | None = None) -> Stats:
        """The statistics of the run so far.

        Args:
            draft_calls: Calls of the drafter's own model.
            truncated: Host bool [rows], see `RowStats`; None is False for all.
        """
        parts = self.clock.seconds()
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        tokens = int(self.tokens.sum())
        entropy, nll = self.measure_entropy, self.measure_entropy and self.has_ids

        cut = [False] * self.rows if truncated is None else truncated.tolist()
        rows = self._rows(slice(self.rows), cut)
        return Stats(
            target_calls=self.target_calls,
            tokens=tokens,
            tokens_per_call=tokens / max(int(self.calls.sum()), 1),
            acceptance=[float(a / t) if t else None for a, t in zip(self.accepted, self.tested, strict=True)],
            draft_calls=draft_calls,
            seconds=sum(parts.values()),
            seconds_by_part=parts,
            peak_memory=peak,
            tv_bound=float(self.excess.sum()) / max(tokens, 1),
            entropy=float(self.bits.sum()) / max(tokens, 1) if entropy else None,
            nll=float(self.surprise.sum()) / max(tokens, 1) if nll else None,
            rows=rows,
            tested=self.tested.tolist(),
            window=self.window,
        )
