"""Draft models of speech models: smaller models that generate the same codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from mmspec.errors import ModelError

_Model = TypeVar("_Model")


def check_draft(draft_model: _Model, model: Any, names: Iterable[str]) -> _Model:
    """The draft model, after a check that it generates what the model generates.

    Args:
        names: The settings that both configurations must have in common.

    Raises:
        ModelError: If one of them or the class differs.
    """
    own: Any = draft_model
    if type(own) is not type(model):
        raise ModelError(f"draft_model is a {type(own).__name__}, which is another class than the model")
    for name in names:
        ours, theirs = getattr(model.config, name), getattr(own.config, name)
        if ours != theirs:
            raise ModelError(f"draft_model has {name}={theirs}, the model {ours}")
    return draft_model
