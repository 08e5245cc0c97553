"""The mutants in `mutants.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """A change of the source that tests must notice.

    Attributes:
        name: What the change does.
        file: Relative to the root of the checkout.
        old: A text that occurs in the file once.
        new: The text in its place.
        tests: "file" or "file -k expression" each, relative to tests/, in the order in which they run.
        lives: Why the mutant may survive; empty if it must be killed.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    lives: str = ""

    def apply(self, source: str) -> str:
        """The changed source.

        Raises:
            ValueError: If `old` does not occur exactly once.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"mutant {self.name!r}: the old text occurs {count} times in {self.file}")
        return source.replace(self.old, self.new)


def catalog() -> Iterator[Mutant]:
    """All mutants, in the order of the file."""
    for name, entry in tomllib.loads((ROOT / "tests" / "mutants" / "mutants.toml").read_text()).items():
        yield Mutant(name, entry["file"], entry["old"], entry["new"], tuple(entry["tests"]), entry.get("lives", ""))
