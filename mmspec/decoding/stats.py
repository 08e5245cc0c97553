"""What a decoding run cost, and how that is measured."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.tree_rejection import Outcome

PARTS = ("target", "drafter", "rule", "other")
LEAST = (
    2.0**-40
)  # what a token counts as when the distribution gives it less, as relaxed rules may emit what top-k has cut off


@dataclass(frozen=True)
class RowStats:
    """One row's share of a run; see `Stats`. `calls`: target calls it took part in."""

    tokens: int
    calls: int
    tv_bound: float
    entropy: float | None
    nll: float | None


@dataclass
class Stats:
    """The cost of one run.

    Attributes:
        nfe: Target calls, the prefill included; a call serves every row still running.
        tokens: Emitted tokens, all rows together.
        tokens_per_call: Emitted tokens over the calls their row took part in; plain decoding has 1.00 at any batch.
        acceptance: For each slot of the window, accepted over tested drafts; None where none was tested.
        draft_calls: Calls of a drafter's own model.
        seconds: Wall-clock of the decoding.
        seconds_by_part: In the target, in the drafter, in distribution and acceptance rule, and in the rest. Reading
            the prompt's text and making pixels or sound of the tokens is not in it.
        tv_bound: Of a relaxed rule, an estimate of how far the distribution of a token lies at most from the target's,
            in total variation: |relaxed - exact| acceptance probability of the drafts tested, per token. 0 for an exact
            rule.
        peak_memory: Bytes, of the device (CUDA) or of the process so far (CPU).
        entropy: Bits per token of the target distribution along the emitted tokens; None unless asked for.
        nll: Bits per token, minus the logarithm of what that distribution gives the emitted tokens (at most 40 for
            one), measured with `entropy`, whose mean it has where the distribution is kept. None for tokens that are no
            ids.
        rows: The same of each row.
    """

    nfe: int
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

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds_by_part.items())
        return (
            f"{self.tokens} tokens in {self.nfe} target calls ({self.tokens_per_call:.2f} tokens per call), "
            f"{self.seconds:.2f} s ({parts})"
        )


class Clock:
    """Splits wall-clock time between parts. On CUDA it records events, so that nothing waits until the end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._events: list[tuple[str, torch.cuda.Event]] = []
        self._last = time.perf_counter()
        self._mark("other")

    def _mark(self, part: str) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events.append((part, event))

    def lap(self, part: str) -> None:
        """Charges the time since the last lap to `part`."""
        if self._cuda:
            self._mark(part)
            return
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds by part."""
        if self._cuda:
            torch.cuda.synchronize(self._device)
            self._seconds = dict.fromkeys(PARTS, 0.0)
            for (_, before), (part, event) in zip(self._events, self._events[1:], strict=False):
                self._seconds[part] += before.elapsed_time(event) / 1000
        return dict(self._seconds)


@dataclass
class Meter:
    """Counts while the loop runs."""

    device: torch.device
    rows: int
    measure_entropy: bool = False
    nfe: int = 0
    accepted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    tested: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    has_ids: bool = True

    def __post_init__(self) -> None:
        self.tokens, self.calls = np.zeros(self.rows, dtype=np.int64), np.zeros(self.rows, dtype=np.int64)
        self.excess, self.bits, self.surprise = np.zeros((3, self.rows))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.clock = Clock(self.device)

    def count(self, verdict: Outcome, gained: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """One target call, by which the rows `ids` of the request gained so many tokens."""
        p, accepted = verdict.p, verdict.accepted
        self.nfe += 1
        self.calls[ids] += 1
        self.tokens[ids] += gained
        drafts = p.shape[1] - 1
        if drafts > len(self.tested):
            grow = drafts - len(self.tested)
            self.accepted, self.tested = np.pad(self.accepted, (0, grow)), np.pad(self.tested, (0, grow))
        slots = np.arange(drafts)
        self.accepted[:drafts] += (slots < np.minimum(accepted, gained)[:, None]).sum(0)
        self.tested[:drafts] += (slots < np.minimum(verdict.tested, gained)[:, None]).sum(0)
        if verdict.excess is not None:
            tested = torch.from_numpy(slots < gained[:, None]).to(p.device)
            self.excess[ids] += (verdict.excess * tested).sum(1).double().cpu().numpy()
        if self.measure_entropy:
            self._measure(p, verdict.tokens, np.arange(p.shape[1]) < gained[:, None], ids)

    def count_plain(self, p: Tensor, tokens: Tensor, ids: NDArray[np.int64]) -> None:
        """One target call that gave each of the rows `ids` one token, [B, 1, *cell], under distributions `p` [B, 1, ...]."""
        self.nfe += 1
        self.calls[ids] += 1
        self.tokens[ids] += 1
        if self.measure_entropy:
            self._measure(p, tokens, np.ones((len(ids), 1), dtype=bool), ids)

    def _measure(self, p: Tensor, tokens: Tensor, emitted: NDArray[np.bool_], ids: NDArray[np.int64]) -> None:
        """Adds up entropy and surprise of the tokens [B, W, *cell] that were emitted, under distributions `p` [B, W, ...]."""
        counts = torch.from_numpy(emitted).to(p.device)
        bits = torch.special.entr(p).flatten(2).sum(-1) / np.log(2)
        self.bits[ids] += (bits * counts).sum(1).double().cpu().numpy()
        if tokens.is_floating_point() or p.dim() != tokens.dim() + 1:
            self.has_ids = False
            return
        given = p.gather(-1, tokens.clamp(0, p.shape[-1] - 1).unsqueeze(-1)).clamp(min=LEAST)
        surprise = -given.log2().flatten(2).sum(-1)
        self.surprise[ids] += (surprise * counts).sum(1).double().cpu().numpy()

    def stats(self, draft_calls: int) -> Stats:
        """The finished account."""
        parts = self.clock.seconds()
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        tokens = int(self.tokens.sum())
        entropy, nll = self.measure_entropy, self.measure_entropy and self.has_ids

        def per_token(values: NDArray[np.float64]) -> list[float]:
            return (values / np.maximum(self.tokens, 1)).tolist()

        columns = zip(per_token(self.excess), per_token(self.bits), per_token(self.surprise), strict=True)
        rows = [
            RowStats(int(n), int(calls), bound, bits if entropy else None, surprise if nll else None)
            for n, calls, (bound, bits, surprise) in zip(self.tokens, self.calls, columns, strict=True)
        ]
        return Stats(
            nfe=self.nfe,
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
        )
