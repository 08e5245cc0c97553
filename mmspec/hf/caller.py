"""Arguments of transformers' `generate` that it does not pass on to the callable in `custom_generate`.

`GenerationMixin.generate` drops `streamer`, `assistant_model` and `synced_gpus` on the way to a callable. They are
still the local variables of its frame, which is where this module reads them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
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
    found = running_call(CODE, model)
    if found is None:
        return DroppedArguments()
    missing = [name for name in LOCALS if name not in found]
    if missing:
        raise ArgumentError(
            f"transformers' generate has no {missing[0]}, which mmspec reads; {comparison('transformers')}"
        )
    return DroppedArguments(*(found[name] for name in LOCALS))


def running_call(code: CodeType, model: Any) -> dict[str, Any] | None:
    """The local variables of the innermost running call of a method of `model`; None if there is none.

    Args:
        code: The code of the method, without decorators.
        model: Its `self`.
    """
    frame = inspect.currentframe()
    while frame is not None and not (frame.f_code is code and frame.f_locals.get("self") is model):
        frame = frame.f_back
    return None if frame is None else dict(frame.f_locals)
