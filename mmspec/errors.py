"""The one family of errors a user of mmspec meets.

A message is one line that names the argument, the value it got and what is allowed.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable


class MMSpecError(Exception):
    """Base of every error mmspec raises on purpose."""


class ArgumentError(MMSpecError, ValueError):
    """An argument has a value that is not allowed."""


class PromptError(MMSpecError, ValueError):
    """A prompt cannot be read by the model."""


class UnknownNameError(MMSpecError, LookupError):
    """A model, recipe, rule or drafter of that name does not exist."""


class ModelError(MMSpecError, RuntimeError):
    """A model, or a checkpoint, is not what it claims to be or computed something impossible."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'circle'?)"` for the closest known word, or an empty string when nothing is close.

    Args:
        word: What the user wrote.
        known: The words that exist.
    """
    close = difflib.get_close_matches(word.lower(), [k.lower() for k in known], cutoff=0.5)
    # Among equally close words, the one with the same letters: swapped letters are the commonest slip.
    close.sort(key=lambda k: -sum((Counter(word.lower()) & Counter(k)).values()))
    return f" (did you mean {close[0]!r}?)" if close else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not in `known`, with the closest one and the whole list."""
    names = sorted(known)
    return UnknownNameError(f"unknown {kind} {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}")
