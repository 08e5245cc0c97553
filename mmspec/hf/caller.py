"""Arguments of transformers' `generate` that it does not pass on to the callable in `custom_generate`.

`GenerationMixin.generate` drops `streamer`, `assistant_model` and `synced_gpus` on the way to a callable. They are
still the local variables of its frame, which is where this module reads them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from transformers.generation import GenerationMixin

from mmspec.errors import ArgumentError
from mmspec.versions import comparison

LOCALS = ("streamer", "assistant_model", "synced_gpus", "kwargs")
CODE = inspect.unwrap(GenerationMixin.generate).__code__  # without the decorator `torch.no_grad()`


@dataclass(frozen=True)
class DroppedArguments:
    """The arguments of a call of `generate` that transformers drops; the defaults are those of a direct call.

    Attributes:
        streamer: Receives the tokens.
        assistant_model: A draft model.
        synced_gpus: As the caller passed it.
        given: All keywords that `generate` has no parameter for, as the caller passed them; None of a direct call.
    """

    streamer: Any = None
    assistant_model: Any = None
    synced_gpus: bool | None = None
    given: Mapping[str, Any] | None = None


def dropped_arguments(model: Any) -> DroppedArguments:
    """The arguments that the `generate` of transformers, which is on the call stack, does not pass on.

    Args:
        model: The model whose `generate` was called, without the wrapper of `torch.compile`.
    """
    found = running_call(CODE, model, LOCALS)
    return DroppedArguments() if found is None else DroppedArguments(*found.values())


def running_call(code: CodeType, model: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Some local variables of the innermost running call of a method of `model`; None if there is none.

    Args:
        code: The code of the method, without decorators.
        model: Its `self`.
        names: The variables.

    Raises:
        ArgumentError: If the installed transformers has no variable of a name.
    """
    frame = inspect.currentframe()
    while frame is not None and not (frame.f_code is code and frame.f_locals.get("self") is model):
        frame = frame.f_back
    if frame is None:
        return None
    found = frame.f_locals
    missing = [name for name in names if name not in found]
    if missing:
        raise ArgumentError(
            f"transformers' {code.co_name} has no {missing[0]}, which mmspec reads; {comparison('transformers')}"
        )
    return {name: found[name] for name in names}
