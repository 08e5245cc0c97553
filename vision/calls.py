"""The parts that calls and requests of image and video pipelines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_integer, shown
from mmspec.arguments.keywords import check_options
from mmspec.batching.call import CallEngine
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.stats import Stats, no_tokens
from mmspec.decoding.step import OnStep, Step, Watch
from mmspec.errors import ArgumentError, did_you_mean
from mmspec.recipes import Recipe
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.outputs import MAX_IMAGES, MISSING, ImageOutput, check_output_type, memory_for


def generate_tokens(
    pipe: Any,
    requests: Sequence[PreparedRequest],
    recipe: Recipe,
    on_step: OnStep | None,
    callback: CallbackOnStepEnd | None,
    tensor_inputs: Sequence[str],
    tokens_of: Callable[[Step, slice], Tensor],
    measure_entropy: bool = False,
    batch_size: int | None = None,
) -> tuple[Tensor, Stats]:
    """The tokens [B, ...] of a call, those so far if its callback interrupts it; and its statistics.

    Args:
        requests: One per row, whose results have one row of `tokens`.
        recipe: How to decode.
        callback: `callback_on_step_end` of a call.
        tensor_inputs: `callback_on_step_end_tensor_inputs` of a call.
        tokens_of: The tokens of a step of some of the rows as the pipeline returns them, with -1 or NaN where they are
            missing.
        batch_size: Rows to decode at a time, at most; None is all. Callbacks count anew for each batch.

    Raises:
        ArgumentError: If the rows do not fit into memory, or a batch size, a tensor or a callback's result is not
            allowed.
    """
    if batch_size is not None:
        check_integer("batch_size", batch_size, 1, MAX_IMAGES)
    size = batch_size or len(requests)
    found: list[Tensor] = []
    total: Stats | None = None
    with memory_for(size), pipe.progress_bar(total=0) as bar:
        rows = slice(0, size)  # that are being decoded
        see = observer(pipe, bar, on_step, callback, tensor_inputs, lambda step: tokens_of(step, rows))
        for first in range(0, len(requests), size):
            rows = slice(first, min(first + size, len(requests)))
            batch = requests[rows]
            engine = CallEngine(pipe, batch, recipe, len(batch), Watch(see, measure_entropy))
            interrupted: Interrupted | None = None
            try:
                found += [result.tokens for result in engine.results()]
            except Interrupted as end:
                interrupted = end
            stats = engine.call_stats()
            total = stats if total is None else total.followed_by(stats)
            if interrupted is not None:
                later = len(requests) - rows.stop
                found += whole_images(interrupted.tokens, later, found)
                return torch.cat(found), total.over([*total.rows, *[no_tokens(measure_entropy)] * later])
        assert total is not None, "a call has rows"
        return torch.cat(found), total


def whole_images(tokens: Tensor, later: int, found: Sequence[Tensor]) -> list[Tensor]:
    """The tokens of interrupted images [B, n, ...], as long as those of whole ones; and of later ones, without any."""
    missing = torch.nan if tokens.is_floating_point() else MISSING
    if found:  # the maps of VAR are not filled up
        more = found[0].shape[1] - tokens.shape[1]
        tokens = torch.cat([tokens, tokens.new_full((len(tokens), more, *tokens.shape[2:]), missing)], dim=1)
    return [tokens, tokens.new_full((later, *tokens.shape[1:]), missing)]


def read_options(options: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], int, str]:
    """The options of a request that a model has, its seed and its output type.

    Args:
        options: All options by name.
        names: Those of the model.

    Raises:
        ArgumentError: For an option of another name, a seed or an output type that is not allowed.
    """
    check_options(options, ("seed", "output_type", *names))
    output_type = options.get("output_type", "pil")
    check_output_type(output_type)
    (seed,) = row_seeds(options.get("seed"), 1)
    return {name: options[name] for name in names if name in options}, seed, output_type


def image_request(
    pipe: Any, row: RowPrompt, output_type: str = "latent", codes: Callable[[Tensor], Tensor] | None = None
) -> PreparedRequest:
    """The request of an image of one row.

    Args:
        pipe: The pipeline; its `decode` makes the image.
    """

    def finish(tokens: Sequence[Tensor], stats: Stats) -> ImageOutput:
        batch = tokens[0][None]
        return ImageOutput(pipe.decode(batch, output_type=output_type), batch, [row.seed], stats)

    return PreparedRequest([row], finish, row.seed, codes=codes)


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
