"""ZONOS2: columns of K codes, codebook k a column after codebook k - 1.

Every cell of every column is sampled from all ids. Where any codebook ends for the first time, in column s, the audio
ends: before frame s - m, where m is the last codebook that does. The original goes on for K columns more than that, to
have the codes of all frames; here column s + K - 1 is the last. Its first cell, which no frame needs, holds an id of
its own, the end of the row.

Logits are lowered by a repetition penalty of codes in the latest columns, each codebook by its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.audio.models.zonos2.config import Zonos2Config
from mmspec.audio.models.zonos2.model import Zonos2, Zonos2Layers
from mmspec.audio.multi_codebook.column_target import ColumnTarget
from mmspec.audio.multi_codebook.decoding import ColumnDecodingPlan
from mmspec.audio.multi_codebook.history import ColumnHistory, EndRule
from mmspec.audio.multi_codebook.history_target import HistoryTarget
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.hf.causal_target import CausalTarget, Prompt, with_cuda_graphs
from mmspec.hf.plan import position_ids_of
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams


@dataclass(frozen=True)
class Repetition:
    """The repetition penalty (Keskar et al. 2019) of codes.

    Attributes:
        penalty: By which positive logits are divided and negative ones multiplied; 1 is none.
        window: How many of the latest columns count; 0 is none.
        codebooks: How many codebooks it applies to, from the first.
    """

    penalty: float = 1.2
    window: int = 50
    codebooks: int = 8


@dataclass(frozen=True)
class Zonos2Request:
    """A batch of prompts, padded on the left.

    Attributes:
        columns: int64 [B, T, K + 1], codes and an id of text.
        mask: bool [B, T], False on padding.
        voice: The embedding of the voice, float [width], in place of the first column; or None.
        length: Columns to generate.
        sampling: Sampling parameters.
        repetition: The repetition penalty.
    """

    columns: Tensor
    mask: Tensor
    voice: Tensor | None
    length: int
    sampling: SamplingParams
    repetition: Repetition


def row_end(config: Zonos2Config) -> int:
    """The id in the first cell of a row's last column."""
    return config.codes + 2


def audio_end(columns: Tensor, config: Zonos2Config) -> int | None:
    """How many frames the audio of columns int64 [T, K] has; None if no codebook has ended."""
    found = columns == config.end
    ended = found.any(1).nonzero()
    if not len(ended):
        return None
    column = int(ended[0])
    return max(column - int(found[column].nonzero().max()), 0)


def plan(model: Zonos2, request: Zonos2Request) -> ColumnDecodingPlan:
    """The plan of a request with a model, which is the target's or the draft model."""
    config, end = model.config, row_end(model.config)

    def target(window: int, guided: bool) -> Zonos2Target:
        embeds = model.embed(request.columns)
        if request.voice is not None:
            first = request.mask.int().argmax(1)
            embeds[torch.arange(len(embeds), device=embeds.device), first] = model.embed_voice(request.voice)
        inner = ColumnTarget(
            Zonos2Layers(model),
            model.embed_columns,
            model.logits,
            config.codebooks,
            end + 1,
            Prompt(embeds, request.mask, position_ids_of(request.mask)),
            False,
            request.length,
            window,
        )
        nothing = request.columns[:, :0, :-1]
        history = ColumnHistory(nothing, request.length + window)
        return Zonos2Target(with_cuda_graphs(inner), history, request.repetition, config)

    def was_cut(row: int, columns: Tensor) -> bool:
        frames = audio_end(columns, config)
        return frames is None or len(columns) - config.codebooks + 1 < frames

    layout = Layout(
        request.length,
        cell=(config.codebooks,),
        pad=end,
        ends=lambda columns: columns[..., 0] == end,
        cut=was_cut,
    )
    return ColumnDecodingPlan(target, layout, end + 1, request.sampling, False)


class Zonos2Target(HistoryTarget):
    """A ZONOS2 whose logits include its repetition penalty and the end of a row.

    Args:
        inner: The model.
        history: The columns that it reads.
        repetition: The repetition penalty.
        config: The model's configuration.
    """

    SAME = ("_repetition",)

    def __init__(
        self,
        inner: CausalTarget | CUDAGraphTarget,
        history: ColumnHistory,
        repetition: Repetition,
        config: Zonos2Config,
    ) -> None:
        super().__init__(inner, history)
        self._repetition, self._config = repetition, config

    def _rule(self) -> EndRule:
        books = self._config.codebooks
        codes = torch.full((books, books), -1, device=self.device)
        codes[0, books - 1] = row_end(self._config)
        return EndRule(self._config.end, books, codes)

    def _forced(self, logits: Logits, must: Tensor, at: Numbers) -> Logits:
        positions = at.window(1, must.shape[1], self.device)
        return super()._forced(Logits(self._penalized(logits.cond.float(), positions), None), must, at)

    def _processed(self, logits: Logits, positions: Numbers) -> Logits:
        books, z = self._config.codebooks, self._penalized(logits.cond.float(), positions)
        since = positions.on(z.device) - self._history.first(self._config.end, books, positions)
        only = torch.where(torch.arange(self.vocab_size, device=z.device) == row_end(self._config), 0.0, -torch.inf)
        first = torch.where((since >= books - 1)[..., None], only, z[:, :, 0])
        return Logits(torch.cat([first[:, :, None], z[:, :, 1:]], dim=2), None)

    def _penalized(self, z: Tensor, positions: Numbers) -> Tensor:
        """Logits float32 [B, W, K, V] after the repetition penalty."""
        own, penalty = self._repetition, self._repetition.penalty
        if penalty == 1 or not own.window or not own.codebooks:
            return z
        latest = self._history.latest(own.window, positions).transpose(2, 3)[:, :, : own.codebooks]
        counts = (latest >= 0) & (latest < self._config.codes)
        seen = torch.zeros(*latest.shape[:3], self.vocab_size, dtype=torch.int32, device=z.device)
        seen = seen.scatter_add_(-1, latest.clamp(min=0), counts.int()) > 0
        some = z[:, :, : own.codebooks]
        lowered = torch.where(seen, torch.where(some > 0, some / penalty, some * penalty), some)
        return torch.cat([lowered, z[:, :, own.codebooks :]], dim=2)
