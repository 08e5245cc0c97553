"""Messages that name arguments of Python, in the options of a command."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

_TOKENIZER = re.compile(r"\btokenizer=(?:'([^']*)')?")
_CONFIG = re.compile(r"\bconfig=\{'(\w+)': (\.\.\.|[A-Z]+)\}")
_OBJECTS = re.compile(r"\bconfig=\{")


def options_of(command: Any, words: Sequence[str]) -> set[str]:
    """The options of the command that the words name, such as `--codec`.

    Args:
        command: The group of all commands.
        words: What the user has typed.
    """
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return {name for parameter in command.params for name in parameter.opts}


def in_options(message: str, options: Collection[str]) -> str:
    """A message whose `tokenizer=` and `config={...}` are the options that stand for them.

    What only objects of Python can be given for is said to be of Python.

    Args:
        message: Of an error.
        options: Those of the command.
    """
    option = next((name for name in ("--codec", "--tokenizer") if name in options), None)
    if option is not None:
        message = _TOKENIZER.sub(lambda found: f"{option} {found[1]}" if found[1] else option, message)
    if "--config" in options:
        message = _CONFIG.sub(_option, message)
        if "--draft-model" in options:
            message = message.replace("--config draft_model=...", "--draft-model")
    message = message.replace("pass processor=", "save it in the folder of the model")
    return _OBJECTS.sub("in Python config={", message)


def _option(found: re.Match[str]) -> str:
    """A codec there is an object; `--codec` names folders."""
    return found[0] if found[1] == "codec" else f"--config {found[1]}={found[2]}"
