"""CSM: frames of Mimi codes from a backbone and a depth decoder.

`CsmForConditionalGeneration.generate(..., custom_generate=mmspec.generate)` decodes the depth of frames by any recipe
without trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import MaxLengthCriteria
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.logits_process import LogitsProcessorList

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_frames import DepthFrames
from mmspec.audio.depth.depth_target import by_index
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import frames_ahead
from mmspec.audio.draft_model import check_draft
from mmspec.decoding.step import OnStep
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError
from mmspec.heads.head import Head
from mmspec.hf.arguments import read_length, read_processors, read_sampling, refuse_modes
from mmspec.hf.cache_name import cache_input
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.prepared_inputs import refuse_unknown_inputs
from mmspec.hf.request import GenerateRequest, unwrap
from mmspec.hf.slot_cache import SlotCache
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds

INPUTS = ("input_values", "input_values_cutoffs")  # that are read
DRAFT_SETTINGS = ("num_codebooks", "vocab_size", "text_vocab_size")
"""What a draft model's configuration must have in common with the model's."""


class CsmFrames(DepthFrames):
    """A CSM with its prompts given.

    Args:
        model: A `CsmForConditionalGeneration`.
        embeds: [B, T, D], text and audio of the prompts, padded on the left.
        mask: bool [B, T], False on padding.
        length: Frames to generate.
        slack: How many frames a window may reach past the end.
    """

    def __init__(self, model: Any, embeds: Tensor, mask: Tensor, length: int, slack: int = 0) -> None:
        backbone = model.backbone_model
        parts = Backbone(backbone, backbone.embed_tokens, model.lm_head, int(model.config.vocab_size), embeds.device)
        prompt = Prompt(embeds, mask, position_ids_of(mask))
        super().__init__(parts, CsmDepth(model.depth_decoder), prompt, length, slack)


class CsmDepth:
    """The depth decoder of CSM; see `mmspec.audio.depth.depth_target.DepthDecoder`.

    Args:
        decoder: A `CsmDepthDecoderForCausalLM`.
    """

    def __init__(self, decoder: Any) -> None:
        self.vocab_size = int(decoder.config.vocab_size)
        self.codebooks = int(decoder.config.num_codebooks)
        self.module = self.reader = self._decoder = decoder

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        embeds: Tensor = self._decoder.model.embed_tokens(tokens + books * self.vocab_size)
        return embeds

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        # transformers' own forward gives all rows the same positions, and drops the logits of a window's first token.
        model = self._decoder.model
        hidden = model.inputs_embeds_projector(embeds)
        rotary = model.rotary_emb(hidden, position_ids=positions)
        for layer in model.layers:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=positions,
                **cache_input(layer, cache),
                use_cache=True,
                position_embeddings=rotary,
            )
        normed: Tensor = model.norm(hidden)
        return normed

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        weight = self._decoder.codebooks_head.weight
        return by_index(
            hidden, heads, self.codebooks - 1, self.vocab_size, hidden.dtype, lambda head, own: own @ weight[head]
        )


def generate(call: GenerateRequest, ahead: int = 0) -> Any:
    """`mmspec.generate` for CSM: frames int64 [B, T, codebooks], as its own `generate` returns them.

    The depth decoder samples by its own generation config (`depth_decoder_do_sample` and similar arguments). A row ends
    with the first frame whose codes are all `codebook_eos_token_id`; the last code is ignored, as in transformers. The
    frames after it are padding; without an `eos_token_id`, transformers continues to generate codes there. Statistics
    are reported to `on_step` and `on_stats` only.

    Args:
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.

    Raises:
        ArgumentError: For an argument that is not supported, or whose value is not allowed.
        ModelError: For a draft model that generates other frames.
    """
    model, input_ids, inputs = call.model, call.input_ids, call.inputs
    ahead = frames_ahead(ahead, int(model.config.num_codebooks), call.recipe, model)
    refuse_modes(call.config, inputs)
    refuse_unknown_inputs(model, inputs, INPUTS, call.given)
    found, others = read_processors(call.processors)
    if others:
        raise ArgumentError("repetition_penalty and its like are not supported for CSM, whose prompt has no codes")
    if input_ids.ndim != 2:
        raise ArgumentError(
            f"input_ids has shape {list(input_ids.shape)}; pass ids of text [B, T], and audio as input_values"
        )
    length, _ = read_length([c for c in call.criteria if isinstance(c, MaxLengthCriteria)], input_ids.shape[1])
    pad = int(model.config.codebook_pad_token_id)
    first = read_sampling(found, bool(call.config.do_sample))
    spec = FrameSpec(length, frame_ends(model), pad, first, depth_sampling(model))
    draft = None
    if call.draft_model is not None:
        draft_model = check_draft(call.draft_model, model, DRAFT_SETTINGS)
        if call.recipe.needs_draft_model:
            draft = frames_of(draft_model, input_ids, length, inputs, ahead)
    prompted, seeds = frames_of(model, input_ids, length, inputs, ahead), row_seeds(call.seed, len(input_ids))
    windows = adaptive_windows_of(model)
    decoded = decode_frames(
        prompted, call.recipe, spec, seeds, draft, call.on_step, windows, ahead, call.heads, call.on_stats
    )
    if call.config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=decoded.frames)  # `CsmGenerateOutput` has no field for statistics
    return decoded.frames


def generate_ahead(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    recipe: str | Recipe = "scd",
    seed: int | Sequence[int] | None = None,
    draft_model: Any = None,
    on_step: OnStep | None = None,
    ahead: int = 2,
    heads: Sequence[Head] = (),
    **inputs: Any,
) -> Any:
    """`mmspec.generate` for CSM with windows of `ahead` frames; see `mmspec.audio.depth.frame_windows`.

    Pass it to `model.generate` as `custom_generate`. `heads` are draft heads, as
    `mmspec.heads.checkpoint.load_head` reads them, for the recipe `frame`.

    Raises:
        ArgumentError: For an argument that is not supported, or whose value is not allowed.
        ModelError: For a draft model that generates other frames.
    """
    if ahead < 1:
        raise ArgumentError(f"ahead={ahead!r} is not allowed; it must be 1 frame or more")
    asked = (input_ids, logits_processor, stopping_criteria, generation_config, inputs)
    by_kind = {head.kind: head.to(input_ids.device) for head in heads}
    request = GenerateRequest(unwrap(model), *asked, parse(recipe), seed, unwrap(draft_model), on_step, by_kind)
    return generate(request, ahead)


def frame_ends(model: Any) -> Callable[[Tensor], Tensor]:
    """A function of frames int64 [..., codebooks] to bool [...]: True for frames that end their row."""
    return lambda frames: (frames[..., :-1] == model.config.codebook_eos_token_id).all(-1)


def frames_of(model: Any, input_ids: Tensor, length: int, inputs: Mapping[str, Any], ahead: int) -> CsmFrames:
    """A model, which is the target's or the draft model, with the prompts of a `generate` call."""
    with torch.inference_mode():
        merged = model._merge_input_ids_with_input_values(
            input_ids, inputs.get("input_values"), inputs.get("input_values_cutoffs")
        )
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask
    return CsmFrames(model, merged["inputs_embeds"], mask.bool(), length, ahead)


def depth_sampling(model: Any) -> SamplingParams:
    """The sampling parameters of the depth decoder's generation config."""
    decoder = model.depth_decoder
    config, _ = decoder._prepare_generation_config(None)
    processors = decoder._get_logits_processor(
        generation_config=config, input_ids_seq_length=2, logits_processor=LogitsProcessorList(), device=model.device
    )
    found, _ = read_processors(
        [p for p in processors if type(p).__name__ not in ("MinNewTokensLengthLogitsProcessor",)]
    )
    return read_sampling(found, bool(config.do_sample))
