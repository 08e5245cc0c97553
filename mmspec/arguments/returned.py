"""What components of other packages return: anything but what their kind must return is an error that names both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mmspec.arguments import shown
from mmspec.errors import PluginError


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
