"""Names that requests use for others: of models, voices and sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mmspec.arguments import shown
from mmspec.errors import ArgumentError

ANY = "*"  # stands for all names that are not known
SIZE = r"^(auto|[1-9]\d{0,4}x[1-9]\d{0,4})$"


def read_stand_ins(pairs: Sequence[str], option: str, meaning: str) -> dict[str, str]:
    """What names stand for, of the values of an option: "tts-1=spoken".

    Args:
        pairs: The values.
        option: The name of the option, for messages.
        meaning: What follows the sign "=", for messages.

    Raises:
        ArgumentError: For a value of another form, and for a name that is given twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value:
            raise ArgumentError(f"{option} {shown(pair)} is not allowed; write NAME={meaning}")
        if name in found:
            raise ArgumentError(f"{option} names {name!r} twice: {found[name]}, {value}")
        found[name] = value
    return found


def check_aliases(aliases: Mapping[str, str], models: Sequence[str]) -> None:
    """Checks that other names of models do not hide models, and stand for some.

    Raises:
        ArgumentError: If one does not.
    """
    for name, model in aliases.items():
        if name in models:
            raise ArgumentError(f"--alias {name}={model} is not allowed; {name} is itself a model")
        if model not in models:
            raise ArgumentError(f"--alias {name}={model} is not allowed; the models are {', '.join(models)}")


def check_voices(voices: Mapping[str, str], known: Sequence[str]) -> None:
    """Checks that other names of voices stand for voices.

    Raises:
        ArgumentError: If one does not.
    """
    for name, voice in voices.items():
        if voice not in known:
            raise ArgumentError(f"--voice-alias {name}={voice} is not allowed; the voices are {', '.join(known)}")


def check_sizes(sizes: Mapping[str, str]) -> None:
    """Checks that sizes of images stand for sizes.

    Raises:
        ArgumentError: If one does not.
    """
    for name, size in sizes.items():
        if not re.match(SIZE, size) or not (name == ANY or re.match(SIZE, name)):
            raise ArgumentError(
                f"--size-alias {name}={size} is not allowed; write SIZE=SIZE or *=SIZE, with auto or WIDTHxHEIGHT as "
                "SIZE"
            )


def stand_in(names: Mapping[str, str], name: str) -> str | None:
    """What a name stands for, or None."""
    return names.get(name, names.get(ANY))
