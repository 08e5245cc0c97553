"""Higgs TTS 3: columns of K codes, codebook k a column after codebook k - 1.

In column j < K the cells after cell j hold the mark of the beginning. From column K on, the first codebook ends the
audio with the mark of the end, in column s; column s + K - 2 is the last, in which the last codebook has its last code.
All other cells are sampled from all codes and both marks, whether a codec reads them or not: the next column depends on
them. Here the first cell of the last column, which no codec reads, holds an id of its own, the end of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.models.higgs_v3.model import HiggsV3
from mmspec.audio.multi_codebook.column_target import ColumnTarget
from mmspec.audio.multi_codebook.decoding import ColumnDecodingPlan
from mmspec.audio.multi_codebook.delay_pattern import linear_delays, triangles
from mmspec.audio.multi_codebook.history import ColumnHistory, EndRule
from mmspec.audio.multi_codebook.history_target import HistoryTarget
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.decoding.target import EarlyExit
from mmspec.hf.causal_target import CausalTarget, Prompt, with_cuda_graphs
from mmspec.hf.plan import position_ids_of
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class HiggsV3Request:
    """A batch of prompts, padded on the left.

    Attributes:
        ids: int64 [B, T], text ids, and -1 in the places of a voice.
        columns: int64 [B, T, K], the columns of the voice in its places.
        mask: bool [B, T], False on padding.
        length: Columns to generate.
        sampling: Sampling parameters of codes.
    """

    ids: Tensor
    columns: Tensor
    mask: Tensor
    length: int
    sampling: SamplingParams


def row_end(model: HiggsV3) -> int:
    """The id in the first cell of a row's last column."""
    return model.config.codes + 2


def plan(model: HiggsV3, request: HiggsV3Request) -> ColumnDecodingPlan:
    """The plan of a request with a model, which is the target's or the draft model."""
    config, end = model.config, row_end(model)

    def target(window: int, guided: bool) -> HiggsV3Target:
        text = model.body.embed_tokens(request.ids.clamp(min=0))
        embeds = torch.where((request.ids < 0)[..., None], model.embed_columns(request.columns), text)
        inner = ColumnTarget(
            model.body,
            model.embed_columns,
            model.logits,
            config.codebooks,
            end + 1,
            Prompt(embeds, request.mask, position_ids_of(request.mask)),
            False,
            request.length,
            window,
        )
        nothing = torch.empty(len(request.ids), 0, 1, dtype=torch.int64, device=model.device)
        history = ColumnHistory(nothing, request.length + window)
        return HiggsV3Target(with_cuda_graphs(inner), history, config.codebooks, config.end)

    waits = triangles(request.length, linear_delays(config.codebooks), config.begin, None)
    layout = Layout(
        request.length,
        cell=(config.codebooks,),
        forced=ForcedCells(waits),
        pad=end,
        ends=lambda columns: columns[..., 0] == end,
    )
    return ColumnDecodingPlan(target, layout, end + 1, request.sampling, False)


class HiggsV3Target(HistoryTarget):
    """A Higgs TTS 3 whose logits include the end of a row.

    Args:
        inner: The model.
        history: Cell 0 of the columns that it reads, from column K on; -1 before.
        codebooks: K.
        end: The code that ends the first codebook.
    """

    def __init__(self, inner: CausalTarget | CUDAGraphTarget, history: ColumnHistory, codebooks: int, end: int) -> None:
        super().__init__(inner, history)
        self._codebooks, self._end = codebooks, end

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        if self._by_kernels:
            return super().forward(tokens, at, early_exit)
        start = Numbers(at).uploaded(self.device)
        positions = start.window(1, tokens.shape[1], self.device)
        may_end = positions.on(self.device) > self._codebooks
        self._history.write(torch.where(may_end, tokens[..., 0], -1)[..., None], start)
        return self._processed(self._inner_logits(tokens, start, early_exit), positions)

    def _rule(self) -> EndRule:
        codes = torch.full((self._codebooks, self._codebooks), -1, device=self.device)
        codes[0, self._codebooks - 2] = self.vocab_size - 1
        return EndRule(self._end, 1, codes, first=self._codebooks)

    def _read(self, tokens: Tensor) -> Tensor:
        return tokens[..., :1]

    def _processed(self, logits: Logits, positions: Numbers) -> Logits:
        z, ended = logits.cond.float(), self._history.first(self._end, 1, positions)
        last = positions.on(z.device) - ended == self._codebooks - 2  # [B, W]
        only = torch.where(torch.arange(self.vocab_size, device=z.device) == self.vocab_size - 1, 0.0, -torch.inf)
        first = torch.where(last[..., None], only, z[:, :, 0])
        return Logits(torch.cat([first[:, :, None], z[:, :, 1:]], dim=2), None)
