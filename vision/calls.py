"""The part that the calls of all image and video pipelines share: requests to tokens, watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.batching.call import CallEngine
from mmspec.batching.request import PreparedRequest
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStep, Step, Watch
from mmspec.recipes import Recipe
from mmspec.vision.callbacks import CallbackOnStepEnd, Interrupted, observer
from mmspec.vision.outputs import memory_for


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
