"""The talker of Qwen2.5-Omni (arXiv 2503.20215) code by code: to each code the text that it speaks is added.

Only the talker is decoded by mmspec; the thinker, which writes the text, is a language model like others. Arguments
with the prefix `talker_` reach the talker: `model.generate(**inputs, talker_custom_generate=mmspec.generate,
talker_recipe="scd")`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import Plan, PlanRequest, position_ids_of, refuse_guidance, refuse_inputs

READS_EMBEDS = True
INPUTS = ("inputs_embeds", "thinker_reply_part", "input_text_ids")
# Of multimodal prompts, for the positions.
MEDIA = ("image_grid_thw", "video_grid_thw", "use_audio_in_video", "audio_feature_lengths", "video_second_per_grid")


def vocab_size(model: Any) -> int:
    """Size of the talker's vocabulary."""
    return int(model.codec_head.out_features)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request of the `generate` of Qwen2.5-Omni is decoded.

    Raises:
        ArgumentError: If the talker is called without the thinker's states, or with an input that is not read.
    """
    refuse_guidance(model, request)
    inputs = request.inputs
    if any(inputs.get(name) is None for name in INPUTS):
        raise ArgumentError(f"{', '.join(INPUTS)} are missing; call the generate of the whole model")
    refuse_inputs(model, request, *INPUTS, *MEDIA)
    embed, project = model.get_input_embeddings(), model.thinker_to_talker_proj
    embeds, mask = inputs["inputs_embeds"].clone(), request.mask
    positions = position_ids_of(mask)
    if not bool(mask.all()):
        # transformers drops the mask of prompts without padding; its talker then adds no marks of the codes' start, and
        # counts media like text.
        embeds[:, -2:] += embed(torch.tensor([model.codec_pad_token, model.codec_bos_token], device=mask.device))
        media = [inputs.get(name) for name in MEDIA]
        positions, _ = model.get_rope_index(inputs["input_text_ids"], *media[:2], mask.long(), *media[2:])

    def embed_codes(codes: Tensor) -> Tensor:
        projected: Tensor = project(embed(codes))
        return projected

    # The projection of a sum is the sum of the projections, of which one has the bias.
    text = F.linear(inputs["thinker_reply_part"], project.weight)
    return Plan(
        Backbone(model.model, embed_codes, model.codec_head, vocab_size(model), request.input_ids.device),
        Prompt(project(embeds), mask, positions.to(mask.device), added=text),
        None,
        request.length,
        history=request.input_ids,
    )
