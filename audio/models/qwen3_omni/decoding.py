"""The talker of Qwen3-Omni (arXiv 2509.17765) frame by frame; its code predictor generates all codes but the first.

Only the talker is decoded by mmspec; the thinker, which writes the text, is a language model like others. Arguments
with the prefix `talker_` reach the talker: `model.generate(**inputs, talker_custom_generate=mmspec.generate,
talker_recipe="scd:window=8")`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.logits_process import LogitsProcessorList

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_frames import DepthFrames
from mmspec.audio.depth.depth_target import by_index
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.decoding.step import OnStep
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError
from mmspec.hf.arguments import read_length, read_padding, read_processors, read_sampling, refuse_modes
from mmspec.hf.cache_name import run_decoder
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.prepared_inputs import refuse_unknown_inputs
from mmspec.hf.request import GenerateRequest, unwrap
from mmspec.hf.slot_cache import SlotCache
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds

# Inputs that are read; transformers computes `position_ids` from the others.
INPUTS = (
    "inputs_embeds", "trailing_text_hidden", "tts_pad_embed",
    "talker_input_ids", "image_grid_thw", "video_grid_thw", "audio_feature_lengths", "video_second_per_grid",
    "use_audio_in_video",
)  # fmt: skip
# transformers calls the code predictor with these when it samples.
TOP_K, TOP_P = 50, 0.8


class Qwen3OmniDepth:
    """The code predictor; see `mmspec.audio.depth.depth_target.DepthDecoder`.

    Args:
        talker: A `Qwen3OmniMoeTalkerForConditionalGeneration`.
    """

    def __init__(self, talker: Any) -> None:
        self.vocab_size = int(talker.code_predictor.config.vocab_size)
        self.codebooks = int(talker.config.num_code_groups)
        self.module, self.reader = talker, talker.code_predictor
        self._talker = talker

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        first = self._talker.get_input_embeddings()
        return by_index(
            tokens, books, self.codebooks, first.embedding_dim, first.weight.dtype, partial(embed_code, self._talker)
        )

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        return run_decoder(self._talker.code_predictor.model, embeds, mask, positions, cache)

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        lm_head = self._talker.code_predictor.lm_head
        return by_index(
            hidden, heads, self.codebooks - 1, self.vocab_size, hidden.dtype, lambda head, own: lm_head[head](own)
        )


def embed_code(talker: Any, book: int, codes: Tensor) -> Tensor:
    """Codes int64 [...] of codebook `book`, 0 to K - 1, to embeddings [..., D]; larger ids count as the last."""
    predictor = talker.code_predictor
    embeds: Tensor
    if book:
        last = predictor.config.vocab_size - 1
        embeds = predictor.get_input_embeddings()[book - 1](codes.clamp(max=last))
    else:
        embeds = talker.get_input_embeddings()(codes)
    return embeds


def talker_frames(
    talker: Any, prompt: Prompt, length: int, slack: int = 0, processors: Sequence[LogitsProcessor] = ()
) -> DepthFrames:
    """A talker with its prompts given; first tokens are ids of its vocabulary.

    Args:
        talker: A `Qwen3OmniMoeTalkerForConditionalGeneration`.
        prompt: Its prompts, with the text that is added to the frames.
        length: Frames to generate.
        slack: How many frames a window may reach past the end.
    """
    head = talker.codec_head

    def embed_frames(frames: Tensor) -> Tensor:
        books = enumerate(frames.unbind(-1))
        return torch.stack([embed_code(talker, book, codes) for book, codes in books], dim=-2).sum(-2)

    parts = Backbone(talker.model, embed_frames, head, head.out_features, prompt.embeds.device)
    return DepthFrames(parts, Qwen3OmniDepth(talker), prompt, length, slack, processors)


def generate(call: GenerateRequest, ahead: int = 0) -> Any:
    """`mmspec.generate` for the talker, as the `generate` of Qwen3-Omni calls it.

    The code predictor samples like the talker's own: by its generation config, top-k 50 and top-p 0.8, and greedily if
    the talker does. After the end of a row follows padding.

    Args:
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows`; 0 keeps windows inside a frame.

    Returns:
        The first tokens int64 [B, N]; with `return_dict_in_generate`, as `hidden_states` also the frames, where the
        model expects them: the frame int64 [B, K] of token i is the last entry of element i + 1.

    Raises:
        ArgumentError: For an argument that is not supported, or whose value is not allowed.
    """
    talker, inputs = call.model, call.inputs
    config = copy.copy(call.config)
    config.output_hidden_states = False  # the model asks for them only because it reads the frames from there
    refuse_modes(config, inputs, embeds=True)
    refuse_unknown_inputs(talker, inputs, (*INPUTS, "position_ids"), {})
    if call.draft_model is not None:
        raise ArgumentError(
            "draft_model is not possible for Qwen3-Omni, whose prompt consists of the talker's own embeddings"
        )
    if inputs.get("inputs_embeds") is None or inputs.get("trailing_text_hidden") is None:
        raise ArgumentError("inputs_embeds and trailing_text_hidden are missing; call the generate of the whole model")
    found, processors = read_processors(call.processors)
    length, eos = read_length(call.criteria, call.input_ids.shape[1])
    embeds, mask, positions = inputs["inputs_embeds"], inputs.get("attention_mask"), inputs.get("position_ids")
    mask = torch.ones(embeds.shape[:2], device=embeds.device) if mask is None else mask
    text = torch.cat([inputs["trailing_text_hidden"], inputs["tts_pad_embed"]], dim=1)
    prompt = Prompt(embeds, mask.bool(), position_ids_of(mask.bool()) if positions is None else positions, added=text)
    model = talker_frames(talker, prompt, length, ahead, processors)
    pad = read_padding(call.config)
    ends = torch.tensor(sorted(eos), dtype=torch.int64, device=embeds.device)
    first = read_sampling(found, bool(call.config.do_sample))
    spec = FrameSpec(
        length,
        (lambda frames: torch.isin(frames[..., 0], ends)) if eos else None,
        0 if pad is None else pad,
        first,
        depth_sampling(talker, bool(call.config.do_sample)),
    )
    seeds, windows = row_seeds(call.seed, len(embeds)), adaptive_windows_of(talker)
    decoded = decode_frames(model, call.recipe, spec, seeds, None, call.on_step, windows, ahead, on_stats=call.on_stats)
    frames = decoded.frames
    sequences = torch.cat([call.input_ids, frames[..., 0]], dim=1)
    if not call.config.return_dict_in_generate:
        return sequences
    states = ((None,), *((frame,) for frame in frames[:, :-1].unbind(1)))
    return GenerateDecoderOnlyOutput(sequences=sequences, hidden_states=states)


def generate_ahead(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    recipe: str | Recipe = "scd",
    seed: int | Sequence[int] | None = None,
    on_step: OnStep | None = None,
    ahead: int = 2,
    **inputs: Any,
) -> Any:
    """`mmspec.generate` for the talker with windows of `ahead` frames; see `mmspec.audio.depth.frame_windows`.

    Pass it to the model's `generate` as `talker_custom_generate`.

    Raises:
        ArgumentError: For an argument that is not supported, or whose value is not allowed.
    """
    if ahead < 1:
        raise ArgumentError(f"ahead={ahead!r} is not allowed; it must be 1 frame or more")
    asked = (input_ids, logits_processor, stopping_criteria, generation_config, inputs)
    return generate(GenerateRequest(unwrap(model), *asked, parse(recipe), seed, None, on_step), ahead)


def depth_sampling(talker: Any, do_sample: bool) -> SamplingParams:
    """The sampling parameters of the code predictor."""
    predictor = talker.code_predictor
    if not do_sample:
        return SamplingParams(temperature=0)
    config, _ = predictor._prepare_generation_config(None, do_sample=True, top_k=TOP_K, top_p=TOP_P)
    processors = predictor._get_logits_processor(
        generation_config=config, input_ids_seq_length=2, logits_processor=LogitsProcessorList(), device=talker.device
    )
    found, _ = read_processors(processors)
    return read_sampling(found, True)
