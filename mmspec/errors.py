"""The exceptions of mmspec.

A message is one line that names the argument, its value and what is allowed.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable


class MMSpecError(Exception):
    """Base class of all exceptions that mmspec raises."""


class ArgumentError(MMSpecError, ValueError):
    """The value of an argument is not allowed."""


class PromptError(MMSpecError, ValueError):
    """The model does not accept a prompt."""


class UnknownNameError(MMSpecError, LookupError):
    """No model, recipe, rule or drafter has this name."""


class PluginError(MMSpecError, RuntimeError):
    """An entry point of another package cannot be loaded, or is not what its group requires."""


class ModelError(MMSpecError, RuntimeError):
    """A model or checkpoint is invalid, or the model computed invalid values."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'circle'?)"` for the closest known word, or an empty string if no word is close.

    Args:
        word: The word that the user gave.
        known: The valid words.
    """
    names = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), names, cutoff=0.5)
    # Among equally close words, prefer the one with the same letters: swapped letters are the most common typo.
    close.sort(key=lambda k: -sum((Counter(word.lower()) & Counter(k)).values()))
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The exception for a name that is not in `known`, with the closest name and the whole list."""
    names = sorted(known)
    return UnknownNameError(f"unknown {kind} {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}")
