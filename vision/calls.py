"""The parts that calls and requests of image and video pipelines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.batching.call import CallEngine
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStep, Step, Watch
from mmspec.keywords import check_options
from mmspec.recipes import Recipe
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.callbacks import CallbackOnStepEnd, Interrupted, observer
from mmspec.vision.outputs import ImageOutput, check_output_type, memory_for


def generate_tokens(
    pipe: Any,
    requests: Sequence[PreparedRequest],
    recipe: Recipe,
    on_step: OnStep | None,
    callback: CallbackOnStepEnd | None,
    tensor_inputs: Sequence[str],
    tokens_of: Callable[[Step], Tensor],
    measure_entropy: bool = False,
) -> tuple[Tensor, Stats]:
    """The tokens [B, ...] of a call, those so far if its callback interrupts it; and its statistics.

    Args:
        pipe: The pipeline.
        requests: One per row, whose results have one row of `tokens`.
        recipe: How to decode.
        on_step: As in a call.
        callback: `callback_on_step_end` of a call.
        tensor_inputs: `callback_on_step_end_tensor_inputs` of a call.
        tokens_of: The tokens of a step as the pipeline returns them, with -1 or NaN where they are missing.
        measure_entropy: As in a call.

    Raises:
        ArgumentError: If the rows do not fit into memory, or a tensor or a callback's result is not allowed.
    """
    with memory_for(len(requests)), pipe.progress_bar(total=0) as bar:
        watch = Watch(observer(pipe, bar, on_step, callback, tensor_inputs, tokens_of), measure_entropy)
        engine = CallEngine(pipe, requests, recipe, len(requests), watch)
        try:
            results = engine.results()
        except Interrupted as end:
            return end.tokens, end.stats
        return torch.cat([result.tokens for result in results]), engine.call_stats()


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
        row: The row.
        output_type: As in a call.
        codes: See `PreparedRequest`.
    """

    def finish(tokens: Sequence[Tensor], stats: Stats) -> ImageOutput:
        batch = tokens[0][None]
        return ImageOutput(pipe.decode(batch, output_type=output_type), batch, [row.seed], stats)

    return PreparedRequest([row], finish, row.seed, codes=codes)
