"""Values of the `config.json` of a published folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmspec.arguments import shown
from mmspec.errors import ModelError

LARGEST = 2**24


def integer_in(
    found: Mapping[str, Any],
    what: str,
    name: str,
    default: int | None = None,
    least: int = 0,
    file: str = "config.json",
) -> int:
    """An integer, such as a size or an id.

    Args:
        found: The content of the file, or of a mapping in it.
        what: The folder, for the error.
        default: Its value if it is missing or null; None if it is required.
        least: The smallest value that is allowed. All values are below `LARGEST`.
        file: The name of the file, for the error.

    Raises:
        ModelError: If it is missing or not allowed.
    """
    number = found.get(name)
    number = default if number is None else number
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number < LARGEST:
        raise ModelError(f"{what} has {name}={shown(number)} in its {file}, which is not allowed")
    return number
