"""Moshi: a stream of text tokens, each followed by a frame of Mimi codes from a depth decoder.

`MoshiForConditionalGeneration.generate(..., custom_generate=mmspec.generate)` decodes the depth by any recipe without
trees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.logits_process import LogitsProcessorList

from mmspec.audio.depth.captured_depth import CapturedDepth, DepthGraphs
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.decoding.attention_masks import additive_mask
from mmspec.decoding.target import EarlyExit, read_window
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError
from mmspec.hf.arguments import read_length, read_processors, read_sampling, refuse_modes
from mmspec.hf.cache_name import cache_input
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt, with_cuda_graphs
from mmspec.hf.plan import position_ids_of
from mmspec.hf.prepared_inputs import refuse_unknown_inputs
from mmspec.hf.request import GenerateRequest
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers, on_device
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds

# Inputs that are read.
INPUTS = (
    "inputs_embeds", "moshi_delay_pattern_mask", "user_delay_pattern_mask", "blank_user_audio_codes",
    "kwargs_depth_decoder",
)  # fmt: skip


class MoshiFrames:
    """A Moshi with its prompts given: a `mmspec.audio.depth.depth_decoding.FrameModel`.

    A frame is a text token and its codes.

    Args:
        model: A `MoshiForConditionalGeneration`.
        embeds: [B, T, D], text and both audio streams of the prompts, padded on the left.
        mask: bool [B, T], False on padding.
        pattern: int64 [B, codebooks, columns], the given codes of Moshi's stream; -1 where the generated ones are used.
        user_pattern: int64 [B, codebooks, columns], the same for the user's stream.
        silence: int64 [B, codebooks, 1], the codes of the user's stream where none are given.
        length: Frames to generate.
    """

    ROWS = ("_target", "_length", "_pattern", "_user_pattern", "_silence")
    SAME = None

    def __init__(
        self,
        model: Any,
        embeds: Tensor,
        mask: Tensor,
        pattern: Tensor,
        user_pattern: Tensor,
        silence: Tensor,
        length: int,
    ) -> None:
        self.codes = int(model.num_codebooks)
        self.device, self.reader = embeds.device, model.depth_decoder
        self._model, self._pattern, self._user_pattern, self._silence = model, pattern, user_pattern, silence
        self._column = embeds.shape[1]
        self._length = Numbers(np.zeros(len(embeds), dtype=np.int64))
        # Not the model, to which its `generate` gives new tensors in each call: graphs are kept for the same functions.
        head, table_of_text, tables = model.decoder.lm_head, model.decoder.model.embed_tokens, model.embed_tokens

        def embed(columns: Tensor) -> Tensor:
            """Columns int64 [B, W, 1 + 2 * codebooks], of text, codes and the user's codes, to [B, W, D]."""
            text, *codes = columns.unbind(-1)
            embeds: Tensor = table_of_text(text)
            return embeds + sum(table(book) for table, book in zip(tables, codes, strict=True))

        cell = (1 + 2 * self.codes,)
        parts = Backbone(model.decoder.model, embed, head, head.out_features, embeds.device, cell)
        target = CausalTarget(parts, Prompt(embeds, mask, position_ids_of(mask)), None, length, 0)
        self._target = with_cuda_graphs(target)
        self._graphs = DepthGraphs(self.reader, len(embeds))

    def start(self) -> Logits:
        return self._target.prefill()

    def step(self, frame: Tensor) -> Logits:
        pattern, user_pattern = self._pattern[..., self._column], self._user_pattern[..., self._column]
        codes = torch.where(pattern == -1, frame[:, 1:], pattern)
        user_codes = torch.where(user_pattern == -1, self._silence[..., 0], user_pattern)
        at = self._length.uploaded(self.device)
        logits = read_window(self._target, torch.cat([frame[:, :1], codes, user_codes], dim=1)[:, None], at)
        self._length, self._column = at.plus(1), self._column + 1
        return logits

    def depth(self, first: Tensor, start: int, window: int) -> MoshiDepth | CapturedDepth:
        return self._graphs.of(MoshiDepth(self._model.depth_decoder, self.hidden(), first, start, window))

    def hidden(self) -> Tensor:
        """The last hidden state [B, D]."""
        return self._target.features()[:, -1]


class MoshiDepth:
    """The depth decoder as a target of the codes of one frame: a `mmspec.audio.depth.captured_depth.CapturableDepth`.

    Every codebook has its own weights, so that rows at different positions could not share a call. A call therefore
    reads the whole frame, which has few tokens; the causal mask hides the codes after a position.

    Args:
        decoder: A `MoshiDepthDecoder`.
        hidden: [B, D], the hidden state of the backbone.
        first: int64 [B, 1], the text token.
        start: The position of the first code.
        window: How far a window may reach past the end.

    Attributes:
        start: The position of the first code.
        prompt_slots: Slots that the prefill reads.
        inputs: What a frame begins with, by row: the hidden state and the text token.
    """

    ROWS = ("inputs", "_codes")

    prompt_slots = 1
    cfg_factor = 1

    def __init__(self, decoder: Any, hidden: Tensor, first: Tensor, start: int, window: int) -> None:
        self.vocab_size = int(decoder.config.audio_vocab_size)
        self.device = hidden.device
        self.start = start
        self.inputs: tuple[Tensor, ...] = (hidden, first)
        self._decoder, self._window = decoder, window
        self._codebooks = int(decoder.config.num_codebooks)
        self._codes = torch.zeros(len(first), self._codebooks + window + 1, dtype=torch.int64, device=hidden.device)
        self._cache = SlotCache(self._codebooks)  # of single codes alone

    def prefill(self) -> Logits:
        return Logits(self._whole()[0][:, :1], None)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        slots = on_device(at[:, None] + (1 - self.start) + np.arange(tokens.shape[1]), self.device)
        return Logits(self.read(tokens, slots, self.capacity)[0], None)

    def read(
        self, tokens: Tensor, slots: Tensor, end: int, early_exit: EarlyExit | None = None
    ) -> tuple[Tensor, Tensor]:
        """Slot 1 holds the first code."""
        # Tokens of the previous frame, with which a window may begin, go to the unused slot 0.
        slots = slots.clamp(min=0)
        self._codes.scatter_(1, slots, tokens)
        (logits, hidden), following = self._whole(), slots.clamp(max=self._codebooks - 1)[..., None]
        return (
            logits.gather(1, following.expand(-1, -1, self.vocab_size)),
            hidden.gather(1, following.expand(-1, -1, hidden.shape[2])),
        )

    def code(self, number: int, before: Tensor | None) -> Tensor:
        """The logits [B, 1, V] of one code: see `mmspec.audio.depth.captured_depth.CapturableDepth.code`.

        Its place is known, so that its weights alone are read, and the codes before it are in a KV cache.
        """
        decoder, index = self._decoder, torch.arange(number, number + 1, device=self.device)
        of_frame, first = self.inputs
        hidden = decoder.text_embed_tokens(first) if before is None else decoder.embed_tokens[number - 1](before)
        hidden = hidden + decoder.input_projections(of_frame[:, None], index)
        self._cache.at(number, number + 1)
        bias = hidden.new_zeros(1, 1, 1, number + 1)
        return decoder.lm_heads(self._layers(hidden, bias, index, self._cache), index)

    @property
    def rows(self) -> int:
        """B."""
        return len(self._codes)

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return self._codes.shape[1]

    def with_rows(self, rows: int) -> MoshiDepth:
        """A target of as many rows, whose inputs are zeros."""
        hidden, first = (each.new_zeros(rows, *each.shape[1:]) for each in self.inputs)
        return MoshiDepth(self._decoder, hidden, first, self.start, self._window)

    def shapes(self) -> tuple[Any, ...]:
        return self._codes.shape, *((each.shape, each.dtype) for each in self.inputs)

    def tensors(self) -> list[Tensor]:
        return [*self.inputs, self._codes, *self._cache.tensors()]

    def take_over(self, tensors: list[Tensor]) -> None:
        """The inputs are those of an earlier frame until others come."""
        hidden, first, self._codes = tensors[:3]
        self.inputs = hidden, first
        with torch.inference_mode():  # the tensors were made in it
            self._cache.take_over(tensors[3:])

    def _whole(self) -> tuple[Tensor, Tensor]:
        """The logits [B, codebooks, V] and hidden states [B, codebooks, H] of the whole frame."""
        # transformers' own forward attends without a causal mask if none is given.
        decoder, index = self._decoder, torch.arange(self._codebooks, device=self.device)
        of_frame, first = self.inputs
        books = [embed(self._codes[:, j + 1]) for j, embed in enumerate(decoder.embed_tokens)]
        hidden = torch.stack([decoder.text_embed_tokens(first[:, 0]), *books], dim=1)
        hidden = hidden + decoder.input_projections(of_frame[:, None].expand(-1, len(index), -1), index)
        bias = additive_mask((index <= index[:, None])[None], hidden.dtype)
        hidden = self._layers(hidden, bias, index, None)
        return decoder.lm_heads(hidden, index), hidden

    def _layers(self, hidden: Tensor, bias: Tensor, index: Tensor, cache: SlotCache | None) -> Tensor:
        for layer in self._decoder.layers:
            hidden = layer(
                hidden, attention_mask=bias, position_ids=index[None], codebook_idx=index, **cache_input(layer, cache)
            )
        return hidden


def generate(call: GenerateRequest) -> Any:
    """`mmspec.generate` for Moshi: text ids, as its own `generate` expects them of a decoding loop.

    Moshi's `generate` decodes the codes of the last frame itself, and then the audio. The depth decoder samples by
    `depth_decoder_do_sample` and similar arguments.

    Raises:
        ArgumentError: For an argument that is not supported. `eos_token_id` is not: transformers ignores it for frames.
    """
    model, inputs = call.model, call.inputs
    refuse_modes(call.config, inputs, embeds=True)
    refuse_unknown_inputs(model, inputs, INPUTS, {})
    found, others = read_processors(call.processors)
    if others:
        raise ArgumentError("repetition_penalty and its like are not supported for Moshi")
    if call.draft_model is not None:
        raise ArgumentError(
            "draft_model is not possible for Moshi, whose prompt consists of the model's own embeddings"
        )
    length, eos = read_length(call.criteria, call.input_ids.shape[1])
    if eos:
        raise ArgumentError("eos_token_id is not possible for Moshi; it generates max_new_tokens frames")
    embeds, mask = inputs["inputs_embeds"], inputs.get("attention_mask")
    prompted = MoshiFrames(
        model,
        embeds,
        torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device) if mask is None else mask.bool(),
        inputs["moshi_delay_pattern_mask"],
        inputs["user_delay_pattern_mask"],
        inputs["blank_user_audio_codes"].to(embeds.device),
        length,
    )
    first = read_sampling(found, bool(call.config.do_sample))
    spec = FrameSpec(length, None, 0, first, depth_sampling(model, inputs["kwargs_depth_decoder"]))
    seeds, windows = row_seeds(call.seed, len(embeds)), adaptive_windows_of(model)
    frames = decode_frames(
        prompted, call.recipe, spec, seeds, None, call.on_step, windows, on_stats=call.on_stats
    ).frames
    codes = torch.cat([model.generated_audio_codes, frames[:, :-1, 1:].transpose(1, 2)], dim=2)
    model.generated_audio_codes = model.apply_delay_pattern_mask(codes, inputs["moshi_delay_pattern_mask"])
    model.last_hidden_state = prompted.hidden()[:, None]
    ids = torch.cat([call.input_ids, frames[..., 0]], dim=1)
    return GenerateDecoderOnlyOutput(sequences=ids) if call.config.return_dict_in_generate else ids


def depth_sampling(model: Any, settings: dict[str, Any]) -> SamplingParams:
    """The sampling parameters of the depth decoder's generation config with these settings."""
    decoder = model.depth_decoder
    config, _ = decoder._prepare_generation_config(None, **settings)
    config.min_length = config.min_new_tokens = 0  # all frames have the same length
    processors = decoder._get_logits_processor(
        generation_config=config, input_ids_seq_length=1, logits_processor=LogitsProcessorList(), device=model.device
    )
    found, _ = read_processors(processors)
    return read_sampling(found, bool(config.do_sample))
