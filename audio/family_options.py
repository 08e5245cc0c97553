"""The options of a model's family, as `config=` of `mmspec.load` gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from mmspec.arguments import shown
from mmspec.arguments.keywords import check_config
from mmspec.errors import ArgumentError

Options = TypeVar("Options")


def options_of(kind: type[Options], config: Mapping[str, Any], family: str, others: Sequence[str] = ()) -> Options:
    """The options in a `config`; their values are not checked.

    Args:
        kind: A dataclass with a field for each option.
        config: What the caller gave.
        family: The name of the models, for errors.
        others: Options that were taken out of `config` before, for errors.

    Raises:
        ArgumentError: If there is no such option.
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    check_config(config, family, (*others, *known))
    return kind(**config)


def check_integers(options: object, ranges: Iterable[tuple[str, int, int]], optional: Sequence[str] = ()) -> None:
    """Checks options that are whole numbers.

    Args:
        ranges: Their names, each with the least and the largest value.
        optional: Those that may be None.

    Raises:
        ArgumentError: If one of them is not an integer in its range.
    """
    for name, least, largest in ranges:
        value = getattr(options, name)
        if value is None and name in optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
            raise ArgumentError(f"{name}={shown(value)} is not allowed; it must be an integer, {least} to {largest}")


def check_texts(options: object, names: Sequence[str], optional: bool = False) -> None:
    """Checks options that are texts.

    Args:
        optional: Whether they may be None.

    Raises:
        ArgumentError: If one of them is not.
    """
    for name in names:
        value = getattr(options, name)
        if not isinstance(value, str) and not (optional and value is None):
            allowed = "a text, or None" if optional else "a text"
            raise ArgumentError(f"{name}={shown(value)} is not allowed; it must be {allowed}")
