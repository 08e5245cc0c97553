"""Dia: columns of 9 DAC codes with delays 0, 8, 9, ..., generated from the bytes of a text.

Call `GenerationMixin.generate(model, **inputs, custom_generate=mmspec.generate)`: the model's own `generate` accepts
the argument and ignores it.

transformers ends codebooks with processors that count steps; here the end is a function of the columns so far. If the
first codebook ends at column s, codebook k ends at s + d_k and is padding from there on. A stream that reaches its
length ends its first codebook early enough for the others to end too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.generation.logits_process import (
    DiaClassifierFreeGuidanceLogitsProcessor,
    DiaEOSChannelFilterLogitsProcessor,
    DiaEOSDelayPatternLogitsProcessor,
)

from mmspec.audio.multi_codebook.column_target import ColumnTarget
from mmspec.audio.multi_codebook.cross_attention import CrossAttention
from mmspec.audio.multi_codebook.decoding import (
    ColumnDecodingPlan,
    ColumnOutput,
    decode_columns,
    prompt_and_columns,
    refuse_logits_processors,
)
from mmspec.audio.multi_codebook.history import ColumnHistory, EndRule
from mmspec.audio.multi_codebook.history_target import HistoryTarget
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.errors import ArgumentError
from mmspec.hf.arguments import read_length, read_processors, read_sampling, refuse_modes
from mmspec.hf.cache_name import cache_input
from mmspec.hf.causal_target import CausalTarget, Prompt, with_cuda_graphs
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer
from mmspec.hf.plan import position_ids_of
from mmspec.hf.prepared_inputs import refuse_unknown_inputs
from mmspec.hf.request import GenerateRequest
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams

INPUTS = ("encoder_outputs", "decoder_attention_mask", "decoder_delay_mask")  # that are read
DIA_PROCESSORS = (
    DiaClassifierFreeGuidanceLogitsProcessor,
    DiaEOSChannelFilterLogitsProcessor,
    DiaEOSDelayPatternLogitsProcessor,
)


@dataclass(frozen=True)
class DiaGuidance:
    """Dia's guidance: the `top_k` codes of `cond + scale * (cond - uncond)` are possible, with the logits `cond`.

    Attributes:
        scale: Guidance scale.
        top_k: Codes per cell; None returns the guided logits instead.
    """

    scale: float
    top_k: int | None

    def __call__(self, cond: Tensor, uncond: Tensor) -> Tensor:
        guided = cond + (cond - uncond) * self.scale
        if self.top_k is None:
            return guided
        best = guided.topk(min(self.top_k, guided.shape[-1]), dim=-1).indices
        return torch.full_like(cond, -torch.inf).scatter(-1, best, cond.gather(-1, best))


@dataclass(frozen=True)
class DiaRequest:
    """The arguments of a `generate` call, as transformers prepared them.

    Attributes:
        prompt: int64 [B, P, C], delayed columns to continue.
        mask: bool [B, P], False on padding.
        known: Host int64 [B, N, C], the given cells of the columns to generate; -1 elsewhere.
        guidance: None is off.
        sampling: Sampling parameters, without guidance.
        inputs: `encoder_outputs` and `attention_mask` of the text; if guided, of the unconditional rows too.
    """

    prompt: Tensor
    mask: Tensor
    known: NDArray[np.int64]
    guidance: DiaGuidance | None
    sampling: SamplingParams
    inputs: Mapping[str, Any]


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over."""
    return int(model.vocab_size)


def generate(call: GenerateRequest) -> Tensor | ColumnOutput:
    """`mmspec.generate` for Dia: delayed columns int64 [B, T, C], prompt included, as its own `generate` returns them.

    `DiaProcessor.batch_decode` decodes them into audio.
    """
    model, request = call.model, read(call)
    decoded = decode_columns(call, len(request.prompt), lambda model: plan(model, request))
    columns = prompt_and_columns(request.prompt, decoded, row_end(model))
    if call.config.return_dict_in_generate:
        return ColumnOutput(sequences=columns, columns=decoded.tokens, stats=decoded.stats)
    return columns


def read(call: GenerateRequest) -> DiaRequest:
    """Reads the arguments of a `generate` call.

    Raises:
        ArgumentError: For arguments that are not supported for columns.
    """
    model, config, inputs = call.model, call.config, call.inputs
    refuse_modes(config, inputs, embeds=True)
    refuse_unknown_inputs(model, inputs, INPUTS, call.given)
    if config.num_return_sequences not in (None, 1):
        raise ArgumentError(f"num_return_sequences={config.num_return_sequences} is not supported for Dia; use 1")
    own = {type(each): each for each in call.processors if type(each) in DIA_PROCESSORS}
    found, others = read_processors([each for each in call.processors if type(each) not in DIA_PROCESSORS])
    refuse_logits_processors(model, others)
    cfg = own.get(DiaClassifierFreeGuidanceLogitsProcessor)
    prompt = call.input_ids.transpose(1, 2)  # from [B, C, P]
    length = new_columns(call, prompt.shape[1])
    pad = int(model.config.decoder_config.pad_token_id)
    known = np.full((len(prompt), length, prompt.shape[2]), -1, dtype=np.int64)
    given = inputs["decoder_delay_mask"][:, prompt.shape[1] :][:, :length].cpu().numpy()
    known[:, : given.shape[1]] = np.where(given == pad, -1, given)
    return DiaRequest(
        prompt,
        inputs["decoder_attention_mask"][:, : prompt.shape[1]].bool(),
        known,
        None if cfg is None else DiaGuidance(float(cfg.guidance_scale), cfg.guidance_top_k),
        read_sampling(found, bool(config.do_sample)),
        inputs,
    )


def new_columns(call: GenerateRequest, prompt: int) -> int:
    """Columns to generate after `prompt` columns.

    GenerationMixin takes the number of channels of [B, C, P] for the length of the prompt, and counts a `max_length` of
    the model's generation config from the beginning of the prompt, which Dia's own `generate` counts from its end.

    Raises:
        ArgumentError: If there is no length.
    """
    if call.config.max_new_tokens:
        return int(call.config.max_new_tokens)
    length, _ = read_length(call.criteria, prompt)
    default = call.model.generation_config.max_length
    from_config = default is not None and length + prompt == default + max(call.model.config.delay_pattern)
    return length + prompt if from_config else length


def row_end(model: Any) -> Any:
    """A function of columns [B, W, C] to bool [B, W]: True for the column in which the last codebook ends."""
    delays, end = model.config.delay_pattern, int(model.config.decoder_config.eos_token_id)
    return lambda columns: columns[..., int(np.argmax(delays))] == end


def plan(model: Any, request: DiaRequest) -> ColumnDecodingPlan:
    """The plan of a request with a model, which is the target's or the draft model."""
    decoder, config = model.model.decoder, model.config.decoder_config
    rows, length, channels = request.known.shape
    size = vocab_size(model)
    latest = length - 1 - max(model.config.delay_pattern)
    last = [LatestColumn() for _ in range(rows)]

    def target(window: int, guided: bool) -> DiaTarget:
        states, mask = request.inputs["encoder_outputs"][0], request.inputs.get("attention_mask")
        mask = torch.ones(states.shape[:2], device=states.device) if mask is None else mask
        if not guided:
            states, mask = states[:rows], mask[:rows]
        cross_attention = CrossAttention(states, mask)
        prompt = Prompt(decoder.embeddings(request.prompt), request.mask, position_ids_of(request.mask))
        inner = ColumnTarget(
            DiaLayers(decoder, cross_attention),
            decoder.embeddings,
            lambda hidden: model.logits_dense(hidden).unflatten(-1, (channels, size)),
            channels,
            size,
            prompt,
            guided,
            length,
            window,
            cross_attention,
        )
        history = ColumnHistory(request.prompt[:, :0], length + window)
        guidance = request.guidance if guided else None
        return DiaTarget(with_cuda_graphs(inner), history, guidance, latest, last, model.config)

    end = int(config.eos_token_id)

    def was_cut(row: int, columns: Tensor) -> bool:
        """Whether the first codebook ends where it must, so that the last one can end, and not by itself."""
        return not (bool((columns[: max(latest, 0), 0] == end).any()) or bool(last[row].is_end))

    layout = Layout(
        length,
        cell=(channels,),
        forced=ForcedCells(request.known),
        pad=int(config.pad_token_id),
        ends=row_end(model),
        cut=was_cut,
    )
    return ColumnDecodingPlan(target, layout, size, request.sampling, request.guidance is not None)


@dataclass
class LatestColumn:
    """The last column of a row in which the first codebook may end.

    Attributes:
        is_end: Whether it would end there by itself, a bool that may be on the device; of the latest call that reads
            it, which is the one that the column is committed after.
    """

    is_end: Tensor | bool = False


class DiaTarget(HistoryTarget):
    """A Dia whose logits include its guidance and its logits processors.

    Args:
        inner: The model.
        history: The columns that it reads.
        guidance: Guidance, if it has unconditional rows.
        latest: The last column in which the first codebook may end; negative for a stream too short for all delays,
            which never ends.
        last: That column of each row.
        config: The model's config.
    """

    ROWS = (*HistoryTarget.ROWS, "_last", "_flags")
    SAME = ("_guidance", "_latest")

    def __init__(
        self,
        inner: CausalTarget | CUDAGraphTarget,
        history: ColumnHistory,
        guidance: DiaGuidance | None,
        latest: int,
        last: Sequence[LatestColumn],
        config: Any,
    ) -> None:
        super().__init__(inner, history)
        self._guidance = guidance
        self._delays = torch.tensor(config.delay_pattern, device=self.device)
        self._end = int(config.decoder_config.eos_token_id)
        self._pad = int(config.decoder_config.pad_token_id)
        self._latest, self._last = latest, list(last)
        self._flags: Tensor | None = None  # bool [B], `LatestColumn.is_end` of the rows, where kernels write it

    def after_move(self) -> None:
        if self._flags is not None:
            self._note(self._flags)

    def _note(self, flags: Tensor) -> None:
        """Has kernels write to these flags, bool [B]."""
        self._flags = flags
        for row, last in enumerate(self._last):
            last.is_end = flags[row]

    def _rule(self) -> EndRule:
        delays = self._delays[:, None]
        since = torch.arange(int(delays.max()) + 2, device=self.device)
        codes = torch.where(since == delays, self._end, torch.where(since > delays, self._pad, -1))
        return EndRule(self._end, 1, codes, latest=max(self._latest, -1))

    def _forced(self, logits: Logits, must: Tensor, at: Numbers) -> Logits:
        # Imported here: Triton may be missing.
        from mmspec.kernels.end_channel import end_channel_logits

        if self._flags is None:
            self._note(torch.zeros(len(must), dtype=torch.bool, device=self.device))
        assert self._flags is not None
        guidance = self._guidance
        uncond = None if guidance is None else logits.uncond
        scale, top_k = (0.0, 0) if guidance is None else (guidance.scale, guidance.top_k or 0)
        there = at.on(self.device)
        found = end_channel_logits(logits.cond, uncond, scale, top_k, self._end, must, there, self._latest, self._flags)
        return Logits(found, None)

    def _processed(self, logits: Logits, positions: Numbers) -> Logits:
        z = logits.cond.float()
        if self._guidance is not None and logits.uncond is not None:
            z = self._guidance(z, logits.uncond.float())
        code = torch.arange(self.vocab_size, device=z.device)
        # The first codebook ends if and only if the end token has the highest logit; the others end by the delays.
        z = z.masked_fill((code > self._end) | ((code == self._end) & (self._delays > 0)[:, None]), -torch.inf)
        is_end = z.argmax(-1, keepdim=True) == self._end
        for row, column in zip(*np.nonzero(positions.host == self._latest), strict=True):
            self._last[row].is_end = is_end[row, column, 0, 0]
        z = z.masked_fill(torch.where(is_end, code != self._end, code == self._end), -torch.inf)
        ended = self._history.first(self._end, 1, positions)
        position = positions.on(z.device)
        if self._latest >= 0:
            ended = torch.where((ended > self._latest) & (position >= self._latest), self._latest, ended)
        since = (position - ended)[..., None] - self._delays  # [B, W, C]: 0 where a codebook ends
        z = torch.where((since == 0)[..., None], allow_only(code, self._end), z)
        return Logits(torch.where((since > 0)[..., None], allow_only(code, self._pad), z), None)


def allow_only(codes: Tensor, code: int) -> Tensor:
    """Logits [V] that allow a single code."""
    return torch.zeros(len(codes), device=codes.device).masked_fill_(codes != code, -torch.inf)


class DiaLayers(DecoderLayers):
    """The layers of a `DiaDecoder`, which attend to encoded text as well."""

    def __init__(self, decoder: Any, cross_attention: CrossAttention) -> None:
        super().__init__(decoder.layers, decoder.norm)
        self.module = decoder
        self._rotary = decoder.rotary_emb
        self._cross_attention = cross_attention

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        text, rows = self._cross_attention, len(embeds)
        cache, states, bias = text.with_self_attention(cache, rows), text.states[:rows], text.bias[:rows]
        rotary = self._rotary(embeds, position_ids=positions)

        def run(layer: Any, hidden: Tensor) -> Tensor:
            out: Tensor = layer(hidden, rotary, mask, states, encoder_attention_mask=bias, **cache_input(layer, cache))
            return out

        return embeds, run
