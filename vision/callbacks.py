"""Progress of a call of an image pipeline: the progress bar, `on_step`, and diffusers' `callback_on_step_end`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import shown
from mmspec.decoding.step import OnStep, Step
from mmspec.errors import ArgumentError, did_you_mean

CallbackOnStepEnd = Callable[[Any, int, int, dict[str, Any]], dict[str, Any] | None]


class Interrupted(Exception):
    """Ends the decoding of a call whose callback set `pipe._interrupt`.

    Attributes:
        tokens: The tokens so far; see `observer`.
    """

    def __init__(self, tokens: Tensor) -> None:
        super().__init__("interrupted")
        self.tokens = tokens


def observer(
    pipe: Any,
    bar: Any,
    on_step: OnStep | None,
    callback: CallbackOnStepEnd | None,
    tensor_inputs: Sequence[str],
    tokens_of: Callable[[Step], Tensor],
) -> OnStep | None:
    """A function for `on_step` of a decoding loop; None if there is nothing to do after a step.

    It updates the progress bar, and calls `on_step` and `callback_on_step_end`. The latter may set `pipe._interrupt`,
    which ends the call with the tokens so far; it cannot change tokens, because later ones depend on them.

    Args:
        pipe: The pipeline.
        bar: The progress bar; it counts the tokens of all rows.
        on_step: Called after every target call, or None.
        callback: In the form of diffusers, `(pipe, target calls, tokens so far, tensors)`, or None. It returns the
            tensors, or None.
        tensor_inputs: Names of the tensors that the callback gets; "tokens" is the only one.
        tokens_of: The tokens of a step as the pipeline returns them, with -1 or NaN where they are missing.

    Raises:
        ArgumentError: If a tensor is unknown; from the result, if the callback returns other tokens.
        Interrupted: From the result, if the callback interrupts the call.
    """
    known = pipe._callback_tensor_inputs
    names: Sequence[str] = getattr(callback, "tensor_inputs", tensor_inputs)
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"callback_on_step_end_tensor_inputs={shown(names)} is not allowed; it must be a list of names of tensors"
        )
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"callback_on_step_end_tensor_inputs has {name!r}{did_you_mean(name, known)}; "
                f"{type(pipe).__name__} has {', '.join(known)}"
            )
    pipe._interrupt = False
    if bar.disable and on_step is None and callback is None:
        return None

    def observe(step: Step) -> None:
        bar.total = step.total
        bar.update(step.committed - bar.n)
        if on_step is not None:
            on_step(step)
        if callback is not None:
            given = {name: tokens_of(step) for name in names}
            # Copies, so that a change in place is found.
            returned = callback(
                pipe, step.target_calls, step.committed, {name: value.clone() for name, value in given.items()}
            )
            check_unchanged(given, returned)
        if pipe._interrupt:
            raise Interrupted(tokens_of(step))

    return observe


def check_unchanged(given: dict[str, Tensor], returned: Any) -> None:
    """Checks that a callback returns nothing, or the tensors that it was given.

    Raises:
        ArgumentError: If it returns something else.
    """
    if returned is not None and not isinstance(returned, dict):
        raise ArgumentError(
            f"callback_on_step_end returned a {type(returned).__name__}; return None, or the dict that it was given"
        )
    for name, value in (returned or {}).items():
        if name not in given:
            raise ArgumentError(f"callback_on_step_end returned {name!r}, which it was not given; leave it out")
        own = given[name]
        if (
            not isinstance(value, Tensor)
            or value.shape != own.shape
            or not torch.equal(value.nan_to_num(), own.nan_to_num())
        ):
            raise ArgumentError(
                f"callback_on_step_end returned other {name}; generated tokens cannot be changed "
                "(set pipe._interrupt = True to end the call)"
            )
