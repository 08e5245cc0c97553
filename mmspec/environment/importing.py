"""Imports what a name "module:attribute" points to, and says how to install what is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from mmspec.errors import ArgumentError, PluginError


def resolve(where: Any) -> Any:
    """Imports "module:attribute" and returns the attribute, or the module if no attribute is given.

    Args:
        where: "module:attribute", "module", or the object itself, which is returned.

    Raises:
        PluginError: If it is outside mmspec and cannot be imported.
    """
    if not isinstance(where, str):
        return where
    module, _, attribute = where.partition(":")
    try:
        found = import_module(module)
        for name in filter(None, attribute.split(".")):
            found = getattr(found, name)
    except Exception as error:  # a module of another package may raise anything
        if module.partition(".")[0] == __name__.partition(".")[0]:
            raise
        reason = " ".join(str(error).split())
        raise PluginError(f"plug-in {where!r} cannot be loaded: {type(error).__name__}: {reason}") from error
    return found


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Imports of the packages of an extra inside the context.

    Args:
        name: The extra's name in pyproject.toml.
        what: What needs it, for the message.

    Raises:
        ArgumentError: If an import fails.
    """
    try:
        yield
    except ImportError as error:
        raise ArgumentError(f"{what} needs another package; {install_extra(name)} ({error})") from None


def install_extra(extras: str) -> str:
    """How to install optional dependencies, for messages.

    Args:
        extras: Their names in pyproject.toml, such as "ray,serve".
    """
    # mmspec has no release: an index that is asked for its name would install something else.
    return f"run pip install '.[{extras}]' in a checkout of mmspec"


def require_server() -> None:
    """Checks that what the server needs is installed.

    Raises:
        ArgumentError: If it is not.
    """
    for name in ("fastapi", "prometheus_client", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ArgumentError(f"the server needs {name}, which is not installed; {install_extra('serve')}")
