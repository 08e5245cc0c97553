"""GLM-Image's autoregressive stage: a small grid, then the large one, with positions along three axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_guidance, refuse_inputs, shared_vocabulary_plan


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over; it holds codes only, while prompts are in a larger one."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """The model's own table gives the positions of prompt and grids, from `image_grid_thw` and `images_per_sample`."""
    refuse_inputs(model, request, "image_grid_thw", "images_per_sample")
    refuse_guidance(model, request)
    grids = request.inputs.get("image_grid_thw")
    if (request.config.num_return_sequences or 1) > 1 and grids is not None:
        # transformers repeats grids one by one, which mixes those of different samples.
        raise ArgumentError("num_return_sequences is not supported for GLM-Image; give the prompt several times")
    made = shared_vocabulary_plan(
        model, model.model.language_model, model.get_input_embeddings(), model.lm_head, request
    )
    if grids is None:
        return made
    core = model.model
    positions, _ = core.get_rope_index(
        request.input_ids,
        image_grid_thw=grids.to(request.input_ids.device),
        images_per_sample=request.inputs.get("images_per_sample"),
        attention_mask=request.mask.long(),
    )
    following = core._cached_decode_position_ids.permute(1, 0, 2)
    return replace(made, cond=replace(made.cond, positions=positions, following=following), width=int(grids[0, 2]))
