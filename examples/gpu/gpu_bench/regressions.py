"""What has changed between two records: times, memory, tests, and cases that could not be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# What is measured, and whether more of it is better.
MEASURED = {
    "device": False, "seconds_per_call": False, "seconds_per_token": False, "seconds_per_output": False,
    "memory": False, "bytes_per_second": True, "flops_per_second": True, "passed": True,
}  # fmt: skip
# What tells cases apart.
NAMES = (
    "case", "kind", "model", "part", "recipe", "kernel", "cut", "backend", "batch", "rows", "width", "end", "cudnn",
    "vocab_size", "guided", "dtype", "heads", "key_heads", "head_dim",
)  # fmt: skip
NOISE = 1.1  # machines of one kind varied by a tenth

Case = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Change:
    """A case that both records have.

    Attributes:
        case: What was measured.
        unit: One of `MEASURED`, or "error".
        before: In the last record.
        now: In this one; the error where it could not be measured any more.
        worse: How many times worse it is.
    """

    case: str
    unit: str
    before: float
    now: float | str
    worse: float

    @property
    def regressed(self) -> bool:
        """Whether it is worse by more than the noise."""
        return self.worse > NOISE


def changes(record: Mapping[str, Any], last: Mapping[str, Any]) -> list[Change]:
    """All cases of both records, the worst first."""
    before = dict(_measured(last))
    found = []
    for (case, unit), now in _measured(record):
        if (old := before.get((case, unit))) and now:
            found.append(Change(_text(case), unit, old, now, old / now if MEASURED[unit] else now / old))
    failed = {_case(one): one["error"] for one in _records(record) if "error" in one}
    for (case, unit), old in before.items():
        if case in failed:
            found.append(Change(_text(case), unit, old, failed[case], float("inf")))
    return sorted(found, key=lambda one: -one.worse)


def _records(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in record["parts"].values():
        yield from part["records"]


def _measured(record: Mapping[str, Any]) -> Iterator[tuple[tuple[Case, str], float]]:
    for one in _records(record):
        for unit in MEASURED:
            if "error" not in one and one.get(unit) is not None:
                yield (_case(one), unit), one[unit]


def _case(one: Mapping[str, Any]) -> Case:
    return tuple((name, one[name]) for name in NAMES if name in one)


def _text(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in case)
