"""The parts that calls and requests of image and video pipelines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_integer
from mmspec.arguments.keywords import check_options
from mmspec.batching.call import CallEngine
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.stats import Stats, no_tokens
from mmspec.decoding.step import OnStep, Step, Watch
from mmspec.recipes import Recipe
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.callbacks import CallbackOnStepEnd, Interrupted, observer
from mmspec.vision.outputs import MAX_IMAGES, ImageOutput, check_output_type, memory_for
from mmspec.vision.previews import MISSING


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
        pipe: The pipeline.
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
        codes: See `PreparedRequest`.
    """

    def finish(tokens: Sequence[Tensor], stats: Stats) -> ImageOutput:
        batch = tokens[0][None]
        return ImageOutput(pipe.decode(batch, output_type=output_type), batch, [row.seed], stats)

    return PreparedRequest([row], finish, row.seed, codes=codes)
