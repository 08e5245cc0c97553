"""What a decoding run cost, and how that is measured."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PARTS = ("target", "drafter", "rule", "other")


@dataclass
class Stats:
    """The cost of one run.

    - `nfe`: target calls, the prefill included; a call serves every row still running.
    - `tokens`: emitted tokens, all rows together.
    - `tokens_per_call`: emitted tokens over the calls their row took part in; plain decoding has 1.00 at any batch.
    - `acceptance`: for each slot of the window, accepted over tested drafts; None where none was tested.
    - `draft_calls`: calls of a drafter's own model.
    - `seconds`: wall-clock of the decoding, and `seconds_by_part`: in the target, in the drafter, in law and acceptance
      rule, and in the rest. Reading the prompt's text and making pixels or sound of the tokens is not in it.
    - `tv_bound`: of a relaxed rule, an estimate of how far the law of a token lies at most from the target's, in total
      variation: |relaxed - exact| acceptance probability of the drafts tested, per token. 0 for an exact rule.
    - `peak_memory`: bytes, of the device (CUDA) or of the process so far (CPU).
    - `entropy`: bits per token of the target's law along the emitted tokens; None unless asked for.
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


class Outcome(Protocol):
    """What is counted of a target call, of a window as of a tree: see `mmspec.verify.Verdict`."""

    p: Tensor
    accepted: NDArray[np.int64]
    excess: Tensor | None

    @property
    def tested(self) -> NDArray[np.int64]:
        """How many slots, or depths of a tree, were tested, host int64 [B]."""
        ...


@dataclass
class Meter:
    """Counts while the loop runs."""

    device: torch.device
    measure_entropy: bool = False
    nfe: int = 0
    tokens: int = 0
    row_calls: int = 0
    accepted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    tested: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    bits: float = 0.0
    excess: float = 0.0

    def __post_init__(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.clock = Clock(self.device)

    def count(self, verdict: Outcome, gained: NDArray[np.int64]) -> None:
        """One target call, by which each row gained so many tokens."""
        p, accepted = verdict.p, verdict.accepted
        self.nfe += 1
        self.row_calls += len(gained)
        self.tokens += int(gained.sum())
        drafts = p.shape[1] - 1
        if drafts > len(self.tested):
            grow = drafts - len(self.tested)
            self.accepted, self.tested = np.pad(self.accepted, (0, grow)), np.pad(self.tested, (0, grow))
        slots = np.arange(drafts)
        self.accepted[:drafts] += (slots < np.minimum(accepted, gained)[:, None]).sum(0)
        self.tested[:drafts] += (slots < np.minimum(verdict.tested, gained)[:, None]).sum(0)
        if verdict.excess is not None:
            tested = torch.from_numpy(slots < gained[:, None]).to(p.device)
            self.excess += float((verdict.excess * tested).sum())
        if self.measure_entropy:
            emitted = torch.from_numpy(np.arange(p.shape[1]) < gained[:, None]).to(p.device)
            self.bits += float((torch.special.entr(p).flatten(2).sum(-1) * emitted).sum()) / np.log(2)

    def count_plain(self, p: Tensor) -> None:
        """One target call that gave every row one token, under laws `p` [B, 1, V]."""
        self.nfe += 1
        self.row_calls += len(p)
        self.tokens += len(p)
        if self.measure_entropy:
            self.bits += float(torch.special.entr(p).sum()) / np.log(2)

    def stats(self, draft_calls: int) -> Stats:
        """The finished account."""
        parts = self.clock.seconds()
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return Stats(
            nfe=self.nfe,
            tokens=self.tokens,
            tokens_per_call=self.tokens / max(self.row_calls, 1),
            acceptance=[float(a / t) if t else None for a, t in zip(self.accepted, self.tested, strict=True)],
            draft_calls=draft_calls,
            seconds=sum(parts.values()),
            seconds_by_part=parts,
            peak_memory=peak,
            tv_bound=self.excess / max(self.tokens, 1),
            entropy=self.bits / max(self.tokens, 1) if self.measure_entropy else None,
        )
