"""Logits that depend on earlier columns, where the Triton kernels run, against those of torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.models.dia.decoding import DiaGuidance, DiaTarget, LatestColumn
from mmspec.audio.models.higgs.decoding import HiggsTarget, RepetitionLimit
from mmspec.audio.models.higgs_v3.decoding import HiggsV3Target
from mmspec.audio.models.moss_tts.decoding import MossTarget
from mmspec.audio.models.zonos2.decoding import Repetition, Zonos2Target
from mmspec.audio.multi_codebook.history import ColumnHistory
from mmspec.decoding.rows import select_rows
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler

pytest.importorskip("triton")
pytestmark = [pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off")]

ROWS, BOOKS, VOCAB, LENGTH = 3, 3, 12, 24
PARAMS = SamplingParams(0.9, top_k=6, top_p=0.8)


class Fixed:
    """A model with random logits, which are the same in each run."""

    vocab_size, layers, device = VOCAB, 1, torch.device("cpu")

    def __init__(self, guided: bool, favored: int, dtype: torch.dtype = torch.float32) -> None:
        self._generator, self._guided = torch.Generator().manual_seed(3), guided
        self._favored, self._dtype, self.rows = favored, dtype, ROWS

    def _next(self, width: int) -> Logits:
        cond, uncond = torch.randn(2, ROWS, width, BOOKS, VOCAB, generator=self._generator)
        cond[:, 1::2, :, self._favored] += 2.0
        cond, uncond = (one[: self.rows].to(self._dtype) for one in (cond, uncond))
        return Logits(cond, uncond if self._guided else None)

    def prefill(self) -> Logits:
        return self._next(1)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: object = None) -> Logits:
        return self._next(tokens.shape[1])

    def select_rows(self, row_ids: list[int]) -> None:
        self.rows = len(row_ids)


def history(before: int = 0, cells: int = BOOKS) -> ColumnHistory:
    return ColumnHistory(torch.full((ROWS, before, cells), 1), LENGTH + 8)


def dia(last: list[LatestColumn], guidance: DiaGuidance | None, dtype: torch.dtype = torch.float32) -> DiaTarget:
    ids = SimpleNamespace(eos_token_id=VOCAB - 3, pad_token_id=VOCAB - 2)
    config: Any = SimpleNamespace(delay_pattern=[0, 2, 1], decoder_config=ids)
    inner: Any = Fixed(guidance is not None, VOCAB - 3, dtype)
    return DiaTarget(inner, history(), guidance, 9, last, config)


def higgs(last: list[LatestColumn], repetition: RepetitionLimit | None) -> HiggsTarget:
    config = SimpleNamespace(audio_stream_bos_id=VOCAB - 2, audio_stream_eos_id=VOCAB - 1, num_codebooks=BOOKS)
    sampler = None if repetition is None else TokenSampler([PARAMS] * ROWS, None, torch.device("cpu"))
    inner: Any = Fixed(False, VOCAB - 1)
    return HiggsTarget(inner, history(4), sampler, repetition, config)


def higgs_v3(last: list[LatestColumn]) -> HiggsV3Target:
    inner: Any = Fixed(False, VOCAB - 2)
    return HiggsV3Target(inner, history(cells=1), BOOKS, VOCAB - 2)


def moss(last: list[LatestColumn], sampling: SamplingParams) -> MossTarget:
    inner: Any = Fixed(False, 1)
    return MossTarget(inner, history(), sampling, 1.2)


def zonos2(last: list[LatestColumn]) -> Zonos2Target:
    config: Any = SimpleNamespace(codebooks=BOOKS, codes=VOCAB - 3, end=VOCAB - 3)
    inner: Any = Fixed(False, VOCAB - 3)
    return Zonos2Target(inner, history(), Repetition(1.5, 4, 2), config)


CASES: dict[str, tuple[Callable[[list[LatestColumn]], Any], int]] = {
    "dia": (lambda last: dia(last, DiaGuidance(2.0, 5)), VOCAB - 3),
    "dia-bfloat16": (lambda last: dia(last, DiaGuidance(2.0, 5), torch.bfloat16), VOCAB - 3),
    "dia-guided": (lambda last: dia(last, DiaGuidance(2.0, None)), VOCAB - 3),
    "dia-unguided": (lambda last: dia(last, None), VOCAB - 3),
    "higgs": (lambda last: higgs(last, None), VOCAB - 1),
    "higgs-repetition": (lambda last: higgs(last, RepetitionLimit(4, 2)), VOCAB - 1),
    "higgs-v3": (higgs_v3, VOCAB - 2),
    "moss": (lambda last: moss(last, PARAMS), 1),
    "zonos2": (zonos2, VOCAB - 3),
    "moss-uncut": (lambda last: moss(last, SamplingParams(0.7)), 1),
    "moss-greedy": (lambda last: moss(last, SamplingParams(0.0)), 1),
}

SLOW = {"higgs-repetition", "moss-uncut", "moss-greedy"}


def run(name: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], list[bool]]:
    """The distributions after a prompt and windows that overlap, by whose end all rows have a marker; and the flags.

    A row is at another position than the others and falls back once; one leaves. The marker also stands in a draft that
    is then overwritten, in columns of which it is not searched, and where it may not count yet.
    """
    monkeypatch.setenv("MMSPEC_KERNELS", kernels)
    make, marker = CASES[name]
    last = [LatestColumn() for _ in range(ROWS)]
    target, generator = make(last), torch.Generator().manual_seed(1)
    found = [target.prefill().cond]
    for at, place in (
        ([0, 0, 0], 0),
        ([2, 1, 3], 2),
        ([5, 3, 6], None),
        ([7, 6, 6], 1),
        ([9, 8, 9], 2),
        ([13, 11, 12], 0),
    ):
        tokens = torch.randint(0, VOCAB - 4, (ROWS, 3, BOOKS), generator=generator)
        tokens = tokens + (tokens == marker).long()
        if place is not None:
            tokens[0, place, 0] = tokens[1, -1, -1] = tokens[2, place, 0] = marker
        found.append(target.forward(tokens, np.array(at)).cond)
    select_rows(target, [2, 0], ROWS)
    found.append(target.forward(tokens[[2, 0]], np.array([15, 16])).cond)
    return [one.softmax(-1) for one in found], [bool(each.is_end) for each in last]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_processed_logits_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (ours, flags), (theirs, known) = (run(name, kernels, monkeypatch) for kernels in ("triton", "torch"))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    ones = torch.cat([one.amax(-1).flatten() for one in ours])
    assert (ones == 1).any() and (ones < 1).any(), "a weak test: no cell is forced, or all are"
    assert flags == known
