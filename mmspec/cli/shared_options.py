"""Options of all commands, which may stand before or after the name of a command."""

from __future__ import annotations

from copy import copy
from typing import Any

SHARED = ("verbose", "threads")


def share_options(command: Any) -> None:
    """Gives each command below a group the options of the group itself.

    Args:
        command: The group of all commands.
    """
    options = []
    for option in command.params:
        if option.name in SHARED:
            option.expose_value = False
            options.append(copy(option))
            options[-1].envvar = None  # read once, so that it does not replace what stands before the name
    _add(options, command)


def _add(options: list[Any], group: Any) -> None:
    for command in group.commands.values():
        command.params += options
        if hasattr(command, "commands"):
            _add(options, command)
