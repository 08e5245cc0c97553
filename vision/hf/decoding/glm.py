"""GLM-Image's autoregressive stage: a small grid of codes, then a large one, with positions along three axes."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_guidance, refuse_inputs, shared_vocabulary_plan


def vocab_size(model: Any) -> int:
    """The number of ids that the model's logits cover: codes only, while prompts have a larger vocabulary."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request is decoded. The model computes the position ids, from `image_grid_thw` and `images_per_sample`."""
    grids = request.inputs.get("image_grid_thw")
    known = ("image_grid_thw", "images_per_sample", *(("position_ids",) if grids is None else ()))
    refuse_inputs(model, request, *known)
    refuse_guidance(model, request)
    if (request.config.num_return_sequences or 1) > 1 and grids is not None:
        # transformers repeats each grid on its own, which mixes the grids of different samples.
        raise ArgumentError("num_return_sequences is not supported for GLM-Image; give the prompt several times")
    result = shared_vocabulary_plan(
        model, model.model.language_model, model.get_input_embeddings(), model.lm_head, request
    )
    if grids is None:
        return result
    # The model keeps the positions of its latest call; those of another thread's call would be read.
    core = copy(model.model)
    positions, _ = core.get_rope_index(
        request.input_ids,
        image_grid_thw=grids.to(request.input_ids.device),
        images_per_sample=request.inputs.get("images_per_sample"),
        attention_mask=request.mask.long(),
    )
    following = core._cached_decode_position_ids.permute(1, 0, 2)
    return replace(result, cond=replace(result.cond, positions=positions, following=following), width=int(grids[0, 2]))
