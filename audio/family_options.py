"""The options of a model's family, as `config=` of `mmspec.load` gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from mmspec.errors import ArgumentError, did_you_mean

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
    for name in config:
        if name not in known:
            raise ArgumentError(
                f"config has {name!r}, which {family} does not have{did_you_mean(name, known)}; it may have "
                f"{', '.join(map(repr, (*others, *known)))}"
            )
    return kind(**config)
