"""Higgs Audio v2: columns of 8 codes inside a Llama's stream of text, each codebook a column later.

transformers begins and ends codebooks with processors that count steps; here both are functions of the columns so far.
After the token that begins audio, codebook k begins k + 1 columns later; after the first column s in which any codebook
ends, codebook k ends at s + k + 1; a column in which all codebooks end is the last.

Repetition-aware sampling samples a code again, from the raw distribution, if it has occurred often among the latest
codes. The result is a distribution: p'(x) = p(x) [x is not repetitive] + P(repetitive) p_raw(x) for each codebook.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.models.higgs_audio_v2.generation_higgs_audio_v2 import HiggsAudioV2DelayPatternLogitsProcessor

from mmspec.audio.multi_codebook.column_target import ColumnTarget
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
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import TokenSampler

INPUTS = ("audio_input_ids", "audio_input_ids_mask")  # that are read


@dataclass(frozen=True)
class RepetitionLimit:
    """Repetition-aware sampling: when a code is repetitive and sampled again.

    Attributes:
        window: How many of the latest columns count.
        limit: How many of them must have the code in its codebook.
    """

    window: int
    limit: int


@dataclass(frozen=True)
class HiggsRequest:
    """The arguments of a `generate` call, as transformers prepared them.

    Attributes:
        ids: int64 [B, T], text with placeholder tokens for audio.
        mask: bool [B, T], False on padding.
        columns: int64 [B, A, K], the columns of the placeholders, padded on the right.
        columns_mask: bool [B, A], False on padding.
        length: N, columns to generate.
        sampling: Sampling parameters.
        repetition: Repetition-aware sampling, or None.
    """

    ids: Tensor
    mask: Tensor
    columns: Tensor
    columns_mask: Tensor
    length: int
    sampling: SamplingParams
    repetition: RepetitionLimit | None


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over."""
    return int(model.config.codebook_size)


@dataclass
class HiggsOutput(ColumnOutput):
    """The output of `generate` with `return_dict_in_generate=True`.

    Attributes:
        sequences: int64 [B, T + n], ids of the text, with a placeholder of each generated column.
        audio_sequences: int64 [B, A + n, K], the columns of the prompt and those generated.
    """

    audio_sequences: Tensor | None = None


def generate(call: GenerateRequest) -> Tensor | ColumnOutput:
    """`mmspec.generate` for Higgs Audio: delayed columns int64 [B, A + n, K], those of the prompt included.

    The model's own `generate` returns the same; its processor decodes them into audio.
    """
    model, request = call.model, read(call)
    decoded = decode_columns(call, len(request.ids), lambda model: plan(model, request))
    columns = prompt_and_columns(request.columns, decoded, row_end(model))
    if not call.config.return_dict_in_generate:
        return columns
    text = torch.cat([request.ids, placeholders(model, request, columns[:, request.columns.shape[1] :])], dim=1)
    return HiggsOutput(sequences=text, audio_sequences=columns, columns=decoded.tokens, stats=decoded.stats)


def placeholders(model: Any, request: HiggsRequest, columns: Tensor) -> Tensor:
    """The ids of text that stand for generated columns [B, n, K], int64 [B, n]."""
    config = model.config
    ended = columns == config.audio_stream_eos_id
    delayed = (request.ids[:, -1:] == config.audio_delay_token_id) | (ended.any(-1).cumsum(1) > 0)
    ids = torch.where(delayed, config.audio_delay_token_id, config.audio_token_id)
    return ids if config.eos_token_id is None else ids.masked_fill(ended.all(-1), config.eos_token_id)


def read(call: GenerateRequest) -> HiggsRequest:
    """Reads the arguments of a `generate` call.

    Raises:
        ArgumentError: For arguments that are not supported for columns, and for a prompt whose last ids contain the end
            of an audio segment.
    """
    model, config, inputs = call.model, call.config, call.inputs
    refuse_modes(config, inputs)
    refuse_unknown_inputs(model, inputs, INPUTS, call.given)
    own = HiggsAudioV2DelayPatternLogitsProcessor
    found, others = read_processors([processor for processor in call.processors if type(processor) is not own])
    refuse_logits_processors(model, others)
    codebooks = model.config.num_codebooks
    if bool((call.input_ids[:, -codebooks:] == model.config.audio_delay_token_id).any()):
        raise ArgumentError(
            f"input_ids has the end of an audio segment among its last {codebooks} ids; mmspec cannot continue there"
        )
    columns, columns_mask = inputs.get("audio_input_ids"), inputs.get("audio_input_ids_mask")
    if columns is None:
        columns = call.input_ids.new_zeros(len(call.input_ids), 0, codebooks)
    if columns_mask is None:
        columns_mask = torch.ones(columns.shape[:2], dtype=torch.bool, device=columns.device)
    mask = inputs.get("attention_mask")
    window, limit = (getattr(config, name, None) for name in ("ras_win_len", "ras_win_max_num_repeat"))
    return HiggsRequest(
        call.input_ids,
        torch.ones_like(call.input_ids, dtype=torch.bool) if mask is None else mask.bool(),
        columns,
        columns_mask.bool(),
        read_length(call.criteria, call.input_ids.shape[1])[0],
        read_sampling(found, bool(config.do_sample)),
        None if window is None or limit is None else RepetitionLimit(int(window), int(limit)),
    )


def row_end(model: Any) -> Any:
    """A function of columns [B, W, K] to bool [B, W]: True for columns in which all codebooks end."""
    end = int(model.config.audio_stream_eos_id)
    return lambda columns: (columns == end).all(-1)


def start_cells(model: Any, request: HiggsRequest) -> NDArray[np.int64]:
    """The cells before their codebook begins, host int64 [B, N, K]; -1 elsewhere."""
    config, count = model.config, model.config.num_codebooks
    last = (request.ids[:, -count:] == config.audio_bos_token_id).cpu().numpy()
    # Columns of each row since the token that begins audio, this token included; more than K if there is none.
    past = np.where(last.any(1), last.shape[1] - last.argmax(1), count + 1)
    columns, books = np.arange(request.length)[:, None], np.arange(count)
    waits = books + 1 - past[:, None, None] - columns >= 0
    return np.where(waits, int(config.audio_stream_bos_id), -1)


def plan(model: Any, request: HiggsRequest) -> ColumnDecodingPlan:
    """The plan of a request with a model, which is the target's or the draft model."""
    config, core = model.config, model.model
    codebooks, size = int(config.num_codebooks), vocab_size(model)
    rows, length = len(request.ids), request.length
    placeholders = (request.ids == config.audio_token_id) | (request.ids == config.audio_delay_token_id)
    repetition, sampling = request.repetition, request.sampling

    def target(window: int, guided: bool) -> HiggsTarget:
        embeds = core.embed_tokens(request.ids)
        if request.columns.shape[1]:
            audio = core.embed_audio_tokens(request.columns)[request.columns_mask]
            embeds = embeds.masked_scatter(placeholders[..., None], audio.to(embeds.dtype))
        inner = ColumnTarget(
            HiggsLayers(core, placeholders),
            core.embed_audio_tokens,
            lambda hidden: model.audio_lm_head(hidden).unflatten(-1, (codebooks, size)),
            codebooks,
            size,
            Prompt(embeds, request.mask, position_ids_of(request.mask)),
            False,
            length,
            window,
        )
        history = ColumnHistory(request.columns, length + window)
        sampler = None if repetition is None else TokenSampler([sampling] * rows, None, embeds.device)
        return HiggsTarget(with_cuda_graphs(inner), history, sampler, repetition, config)

    layout = Layout(
        length,
        cell=(codebooks,),
        forced=ForcedCells(start_cells(model, request)),
        pad=int(config.audio_stream_eos_id),
        ends=row_end(model),
    )
    # With repetition-aware sampling the target's logits are those of the final distribution.
    return ColumnDecodingPlan(target, layout, size, sampling if repetition is None else SamplingParams(), False)


class HiggsTarget(HistoryTarget):
    """A Higgs Audio whose logits include its logits processors and its repetition-aware sampling.

    Args:
        inner: The model.
        history: The columns that it reads.
        sampler: Makes the distribution p of the first sample; None without repetition-aware sampling.
        repetition: When a code is sampled again; None without repetition-aware sampling.
        config: The model's config.
    """

    ROWS = (*HistoryTarget.ROWS, "_sampler")
    SAME = ("_repetition",)

    def __init__(
        self,
        inner: CausalTarget | CUDAGraphTarget,
        history: ColumnHistory,
        sampler: TokenSampler | None,
        repetition: RepetitionLimit | None,
        config: Any,
    ) -> None:
        super().__init__(inner, history)
        self._sampler = sampler
        self._repetition = repetition
        self._begin, self._end = int(config.audio_stream_bos_id), int(config.audio_stream_eos_id)
        self._codebooks = int(config.num_codebooks)

    def _rule(self) -> EndRule:
        books = torch.arange(self._codebooks, device=self.device)
        since = torch.arange(self._codebooks + 1, device=self.device)
        return EndRule(self._end, self._codebooks, torch.where(since > books[:, None], self._end, -1))

    def _forced(self, logits: Logits, must: Tensor, at: Numbers) -> Logits:
        found = super()._forced(logits, must, at)
        if self._repetition is None:
            return found
        positions = at.window(1, must.shape[1], self.device)
        return self._sampled_again(found.cond, logits.cond.float(), positions)

    def _processed(self, logits: Logits, positions: Numbers) -> Logits:
        raw = logits.cond.float()
        code, books = torch.arange(self.vocab_size, device=raw.device), torch.arange(self._codebooks, device=raw.device)
        since = positions.on(raw.device) - self._history.first(self._end, self._codebooks, positions)
        ends = since[..., None] > books
        return self._sampled_again(raw.masked_fill(ends[..., None] & (code != self._end), -torch.inf), raw, positions)

    def _sampled_again(self, z: Tensor, raw: Tensor, positions: Numbers) -> Logits:
        """The logits after repetition-aware sampling, of the processed and the raw ones, [B, W, K, V]."""
        if self._sampler is None or self._repetition is None:
            return Logits(z, None)
        width = z.shape[1]
        cell_positions = Numbers(positions.host.repeat(self._codebooks, axis=1))
        p = dense(self._sampler(Logits(z.flatten(1, 2), None), cell_positions)).unflatten(1, (width, self._codebooks))
        again = self._repetitive(positions)
        p = p.masked_fill(again, 0.0) + (p * again).sum(-1, keepdim=True) * raw.softmax(-1)
        return Logits(p.log(), None)

    def _repetitive(self, positions: Numbers) -> Tensor:
        """Which codes have reached the limit, bool [B, W, K, V]; special tokens never do."""
        assert self._repetition is not None
        latest = self._history.latest(self._repetition.window, positions).transpose(2, 3)  # [B, W, K, window]
        counts = (latest >= 0) & (latest != self._begin) & (latest != self._end)
        zeros = torch.zeros(*latest.shape[:3], self.vocab_size, dtype=torch.int64, device=latest.device)
        return zeros.scatter_add_(-1, latest.clamp(min=0), counts.long()) >= self._repetition.limit


class HiggsLayers(DecoderLayers):
    """The layers of a Higgs Audio, which treat text and audio apart.

    Args:
        core: The decoder of the model.
        audio_mask: bool [B, T], where the prompt is audio; after the prompt, everything is.
    """

    def __init__(self, core: Any, audio_mask: Tensor) -> None:
        super().__init__(core.layers, core.norm)
        self.module = core
        self._rotary = core.rotary_emb
        self._audio_mask: Tensor | None = audio_mask

    def only(self, layers: Iterable[int]) -> HiggsLayers:
        part = super().only(layers)
        part._audio_mask = None  # early exits read windows only, which follow the prompt
        return part

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        audio_mask, self._audio_mask = self._audio_mask, None  # the first call reads the prompt
        rotary = self._rotary(embeds, positions)

        def run(layer: Any, hidden: Tensor) -> Tensor:
            out: Tensor = layer(
                hidden,
                attention_mask=mask,
                audio_token_mask=audio_mask,
                position_ids=positions,
                position_embeddings=rotary,
                **cache_input(layer, cache),
            )
            return out

        return embeds, run
