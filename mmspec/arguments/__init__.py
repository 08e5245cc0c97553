"""Checks of arguments of public calls, and of what components of other packages return.

Each raises an error that names the argument or the component, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

from mmspec.errors import ArgumentError, MMSpecError, PluginError, PromptError


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


def check_text(name: str, value: Any) -> str:
    """A text of characters.

    Raises:
        PromptError: If it is no string, or has surrogates, which tokenizers refuse and files cannot hold.
    """
    if not isinstance(value, str):
        raise PromptError(f"{name}={shown(value)} is not allowed; it must be a string")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise PromptError(f"{name}={value!r} has surrogates, which are not characters; decode it correctly")
    return value


@contextmanager
def processor_errors(name: str, value: Any) -> Iterator[None]:
    """Makes a `PromptError` of what a processor or tokenizer of another package raises about a text.

    Args:
        name: The argument.
        value: The text, or the texts.
    """
    try:
        yield
    except MMSpecError:
        raise
    except Exception as error:
        of_template = type(error).__module__.startswith("jinja2.")  # of a chat; it is imported where there is one
        if not of_template and not isinstance(error, (ValueError, TypeError, LookupError, OverflowError)):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PromptError(f"{name}={shown(value)} cannot be read by the processor of this model: {reason}") from error


def text_list(name: str, value: Any) -> list[str]:
    """One text or several, as a list.

    Raises:
        PromptError: If it is neither a string nor a list or tuple of at least one string; see `check_text`.
    """
    if isinstance(value, (list, tuple)) and not value:
        raise PromptError(f"{name}=[] is empty; give at least one text")
    texts = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise PromptError(f"{name}={shown(value)} is not allowed; it must be a string, or a list of strings")
    return [check_text(name, text) for text in texts]


def one_text(name: str, value: Any) -> list[str]:
    """A single text, as a list of one; see `check_text`."""
    return [check_text(name, value)]


def shown(value: Any) -> str:
    """The `repr` of a value, or its class where that is long: of tensors, arrays and large collections."""
    if isinstance(value, (str, int, float, type(None))):
        return repr(value)
    if isinstance(value, type):
        return f"<class {value.__name__}>"
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):  # torch is not imported here
        return str(value)
    length = len(value) if isinstance(value, Sequence | dict | set) else None
    if length is not None and length <= 8:
        return repr(value)
    return f"<{type(value).__name__}>" if length is None else f"<{type(value).__name__} of {length}>"


def refused(plugin: str, must: str, found: Any) -> PluginError:
    """The error of a component that has returned something else.

    Args:
        plugin: The component, and what was called: "the rule 'slack'".
        must: What it must return.
        found: What it has returned.
    """
    kind = str(getattr(found, "dtype", "")).removeprefix("torch.")
    what = f"{kind} {list(found.shape)}" if kind and hasattr(found, "shape") else shown(found)
    return PluginError(f"{plugin} must return {must}, not {what}")


def checked_call(plugin: str, function: Any, *arguments: Any, must: str, fits: Callable[[Any], bool]) -> Any:
    """Calls a component.

    Raises:
        PluginError: If it cannot be called, or does not return what it must.
    """
    if not callable(function):
        raise PluginError(f"{plugin} must be a function that returns {must}, not {shown(function)}")
    found = function(*arguments)
    if not fits(found):
        raise refused(plugin, must, found)
    return found


def has(*names: str) -> Callable[[Any], bool]:
    """A test whether an object has attributes."""
    return lambda found: not missing(found, names)


def missing(found: Any, names: Sequence[str]) -> list[str]:
    """The attributes that an object lacks."""
    return [name for name in names if not hasattr(found, name)]
