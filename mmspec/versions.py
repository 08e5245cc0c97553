"""The releases of other packages that mmspec is tested with, and those that are installed."""

from __future__ import annotations

import re
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version

# The lowest and the newest release with which the suite has passed; docs/compatibility.md and pyproject.toml agree.
TESTED = {
    "torch": ("2.11", "2.14"),
    "torchaudio": ("2.11", "2.11"),
    "transformers": ("5.23", "5.24"),
    "diffusers": ("0.42", "0.42"),
    "huggingface_hub": ("1.32", "2.4"),
    "torchmetrics": ("1.9", "1.9"),
    "triton": ("3.6", "3.8"),
}


class UntestedVersionWarning(UserWarning):
    """An installed package lies outside of the range of releases that mmspec is tested with."""


def installed(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def tested_range(package: str) -> str:
    """The tested releases of a package, as in "5.23 to 5.24"."""
    lowest, newest = TESTED[package]
    return lowest if lowest == newest else f"{lowest} to {newest}"


def comparison(package: str) -> str:
    """What is installed of a package beside what is tested, for messages."""
    return f"{package} {installed(package)} is installed, and mmspec is tested with {tested_range(package)}"


def is_tested(package: str, number: str) -> bool:
    """Whether a version lies in the tested range; releases that differ in their third number are alike."""
    lowest, newest = TESTED[package]
    return _release(lowest) <= _release(number) <= _release(newest)


@cache
def warn_untested() -> None:
    """Warns, once per process, of the installed packages that lie outside of their tested range."""
    found = [name for name in TESTED if (number := installed(name)) is not None and not is_tested(name, number)]
    if found:
        message = "; ".join(map(comparison, found))
        # In the name of the package rather than of a line: no line of the caller's is to blame, and none is shown.
        warnings.warn_explicit(f"{message}; see docs/compatibility.md", UntestedVersionWarning, "mmspec", 0)


def _release(number: str) -> tuple[int, ...]:
    """The first two numbers of a version, (5, 24) for "5.24.0.dev0"."""
    return tuple(int(part) for part in re.findall(r"\d+", number)[:2])
