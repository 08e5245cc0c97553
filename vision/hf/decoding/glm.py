"""GLM-Image's autoregressive stage: a small grid of codes, then a large one, with positions along three axes.

With images in the prompt, whose codes stand in it, there is the large grid alone."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_guidance, refuse_inputs, shared_vocabulary_plan

SOURCES = ("pixel_values", "mm_encoder_outputs")  # the images of prompts, and what transformers makes of them


def vocab_size(model: Any) -> int:
    """The number of ids that the model's logits cover: codes only, while prompts have a larger vocabulary."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request is decoded. The model computes the position ids, from `image_grid_thw` and `images_per_sample`."""
    grids = request.inputs.get("image_grid_thw")
    known = ("image_grid_thw", "images_per_sample", *(("position_ids",) if grids is None else SOURCES))
    refuse_inputs(model, request, *known)
    refuse_guidance(model, request)
    if (request.config.num_return_sequences or 1) > 1 and grids is not None:
        # transformers repeats each grid on its own, which mixes the grids of different samples.
        raise ArgumentError("num_return_sequences is not supported for GLM-Image; give the prompt several times")
    codes = None if grids is None else source_codes(model.model, request)
    if codes is not None:
        mask = model.model.get_placeholder_mask(request.input_ids, codes)
        request = replace(request, input_ids=request.input_ids.masked_scatter(mask, codes))
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
    first = 0  # of the grids of a sample, the one that is drawn large: the first, or that after the sources
    if codes is not None:
        each = request.inputs.get("images_per_sample")
        first = (len(grids) if each is None else int(each[0])) - 1
    width = int(grids[first, 2])
    return replace(result, cond=replace(result.cond, positions=positions, following=following), width=width)


def source_codes(core: Any, request: PlanRequest) -> Tensor | None:
    """The codes int64 [n] of the images of the prompts, which stand in them as placeholders; None without images."""
    encoded = (request.inputs.get("mm_encoder_outputs") or {}).get("image")
    pixels = request.inputs.get("pixel_values")
    if encoded is None and pixels is None:
        return None
    with torch.no_grad():
        if encoded is None:
            each, grids = (request.inputs.get(name) for name in ("images_per_sample", "image_grid_thw"))
            sources = core.get_image_grids_for_generation(each, grids)
            encoded = core.get_image_features(pixels, sources, return_dict=True)
        codes: Tensor = core.get_image_tokens(encoded.pooler_output).view(-1)
    return codes.to(request.input_ids.device)
