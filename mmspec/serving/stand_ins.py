"""Names that requests use for others: of models, voices and sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from mmspec.arguments import shown
from mmspec.errors import ArgumentError, MMSpecError

ANY = "*"  # stands for all names that are not known
DEFAULT_VOICE = "default"
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
        if name == ANY:
            raise ArgumentError(f"--alias {name}={model} is not allowed; name each, since a request may name no other")
        if name in models:
            raise ArgumentError(f"--alias {name}={model} is not allowed; {name} is itself a model")
        if model not in models:
            raise ArgumentError(f"--alias {name}={model} is not allowed; the models are {', '.join(models)}")


def check_voices(voices: Mapping[str, str], known: Sequence[Sequence[str]]) -> None:
    """Checks that other names of voices do not hide voices, and stand for some.

    Args:
        voices: The other names.
        known: The voices of each model of speech.

    Raises:
        ArgumentError: If one does not.
    """
    allowed = list(dict.fromkeys([*(voice for own in known for voice in own), DEFAULT_VOICE]))
    for name, voice in voices.items():
        refused = f"--voice-alias {name}={voice} is not allowed; "
        if not known:
            raise ArgumentError(f"{refused}no model here generates speech")
        if voice not in allowed:
            raise ArgumentError(f"{refused}the voices are {', '.join(allowed)}")
        if name == DEFAULT_VOICE or all(name in own for own in known):
            raise ArgumentError(f"{refused}{name} is itself a voice")


def check_size_names(sizes: Mapping[str, str]) -> None:
    """Checks that sizes of images and what they stand for look like sizes.

    Raises:
        ArgumentError: If one does not.
    """
    for name, size in sizes.items():
        if not re.match(SIZE, size) or not (name == ANY or re.match(SIZE, name)):
            raise ArgumentError(
                f"--size-alias {name}={size} is not allowed; write SIZE=SIZE or *=SIZE, with auto or WIDTHxHEIGHT as "
                "SIZE"
            )


def check_sizes(sizes: Mapping[str, str], sized: Sequence[Callable[[str], object]]) -> None:
    """Checks that sizes stand for those that models have, and are none themselves.

    Args:
        sizes: The sizes, by those that requests name.
        sized: Of each model of images a function that refuses the sizes that it does not have.

    Raises:
        ArgumentError: If one does not.
    """
    for name, size in sizes.items():
        refused = f"--size-alias {name}={size} is not allowed; "
        if not sized:
            raise ArgumentError(f"{refused}no model here generates images")
        reasons = [reason for check in sized if (reason := _refusal(check, size))]
        if len(reasons) == len(sized):
            raise ArgumentError(f"{refused}{reasons[0]}")
        if name != ANY and not any(_refusal(check, name) for check in sized):
            raise ArgumentError(f"{refused}{name} is itself a size")


def _refusal(check: Callable[[str], object], size: str) -> str:
    """Why a size is refused, or nothing."""
    try:
        check(size)
    except MMSpecError as error:
        return str(error)
    return ""


def stand_in(names: Mapping[str, str], name: str) -> str | None:
    """What a name stands for, or None."""
    return names.get(name, names.get(ANY))
