"""Checks of arguments of public calls; each raises an error that names the argument, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from mmspec.errors import ArgumentError, PromptError


def check_callback(name: str, value: Any) -> None:
    """Checks that a callback is None or can be called.

    Raises:
        ArgumentError: If it is neither.
    """
    if value is not None and not callable(value):
        raise ArgumentError(f"{name}={value!r} is not allowed; it must be a function, or None")


def check_device(device: Any) -> None:
    """Checks that a device can be used.

    Raises:
        ArgumentError: If it cannot be used.
    """
    import torch

    if not isinstance(device, (str, torch.device)) or not str(device):
        raise ArgumentError(f"device={device!r} is not allowed; use a name such as 'cpu' or 'cuda:0'")
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # backends that are not built in raise anything: assertions, ImportError
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ArgumentError(f"device={str(device)!r} cannot be used: {reason}") from error


def check_flag(name: str, value: Any) -> None:
    """Checks that a value is True or False.

    Raises:
        ArgumentError: If it is neither.
    """
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={value!r} is not allowed; it must be True or False")


def check_integer(name: str, value: Any, least: int, most: int) -> None:
    """Checks that a value is an integer within bounds.

    Raises:
        ArgumentError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise ArgumentError(f"{name}={value!r} is not allowed; it must be an integer from {least} to {most}")


def check_number(name: str, value: Any, least: float, most: float) -> None:
    """Checks that a value is a number within bounds; NaN is not.

    Raises:
        ArgumentError: If it is not.
    """
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= number <= most:
        raise ArgumentError(f"{name}={value!r} is not allowed; it must be a number from {least:g} to {most:g}")


def text_list(name: str, value: Any) -> list[str]:
    """One text or several, as a list.

    Raises:
        PromptError: If it is neither a string nor a list or tuple of at least one string.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(text, str) for text in value):
        return list(value)
    if isinstance(value, (list, tuple)) and not value:
        raise PromptError(f"{name}=[] is empty; give at least one text")
    raise PromptError(f"{name}={shown(value)} is not allowed; it must be a string, or a list of strings")


def one_text(name: str, value: Any) -> list[str]:
    """A single text, as a list of one.

    Raises:
        PromptError: If it is not a string.
    """
    if not isinstance(value, str):
        raise PromptError(f"{name}={shown(value)} is not allowed; it must be a string")
    return [value]


def shown(value: Any) -> str:
    """The `repr` of a value, or its class where that is long: of tensors, arrays and large collections."""
    if isinstance(value, (str, int, float, type(None))):
        return repr(value)
    length = len(value) if isinstance(value, Sequence | dict | set) else None
    if length is not None and length <= 8:
        return repr(value)
    return f"<{type(value).__name__}>" if length is None else f"<{type(value).__name__} of {length}>"
